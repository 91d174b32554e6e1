// One image's card: picture, evidence map, verdict, candidates, bits.

import { factsOf } from "/page/pixel-words.js";
import { bitCells, element, factList } from "/page/shown.js";
import { bitsOf, bytes, cautions, probability } from "/page/words.js";

const FAINT = 1;
const STRONG = 5;
const COLOUR = [214, 40, 96];

export function makeCard(file) {
  const card = document.getElementById("card").content.firstElementChild.cloneNode(true);
  const image = card.querySelector("img");
  image.src = URL.createObjectURL(file);
  image.alt = `The image ${file.name}`;
  image.onerror = () => {
    image.hidden = true;
    card.querySelector(".frame").classList.add("unseen"); // the service reads formats that browsers do not
  };
  card.querySelector(".name").textContent = `${file.name}, ${bytes(file.size)}`;
  return card;
}

export function showProgress(card, words, share) {
  const bar = card.querySelector("progress");
  card.querySelector("h3").textContent = words;
  bar.setAttribute("aria-label", words);
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
}

export function showError(card, message) {
  finish(card, "failed", "This image could not be examined.", [message]);
  card.querySelector(".again").hidden = false;
}

// What was read on this device.
export function showReading(card, found, entry) {
  const { said } = entry;
  finish(card, said.kind, said.headline, said.sentences);
  card.querySelector(".cautions").replaceChildren(element("li", "Read on this device: the picture was not uploaded."));
  card.querySelector(".more").hidden = false;
  card.querySelector(".more summary").textContent = "Bits and evidence";
  card.querySelector(".more .fine").textContent = "Darker is surer. In a picture without a mark, bits are chance.";
  showBits(card, { margins: found.margins, found: { secret: found.bits } });
  card.querySelector(".facts").replaceChildren(...factList([...factsOf(found, said), ...fileFacts(entry)]));
}

export function showResult(card, result, entry, imageSize) {
  const { said } = entry;
  finish(card, said.kind, said.headline, said.sentences);
  card.querySelector(".cautions").replaceChildren(
    ...cautions(result, imageSize).map((text) => element("li", text)),
  );
  card.querySelector(".more").hidden = false;
  if (result.answer) showCandidates(card, result.answer.candidates);
  showBits(card, result);
  showFacts(card, entry, result);
  if (result.evidence) showMap(card, result.evidence);
}

export function waitAgain(card) {
  card.className = "card";
  card.setAttribute("aria-busy", "true");
  card.querySelector("progress").hidden = false;
  card.querySelector(".again").hidden = true;
  card.querySelector(".sentences").replaceChildren();
}

function finish(card, kind, headline, sentences) {
  card.classList.add(kind);
  card.setAttribute("aria-busy", "false");
  card.querySelector("progress").hidden = true;
  card.querySelector("h3").textContent = headline;
  card.querySelector(".sentences").replaceChildren(...sentences.map((text) => element("p", text)));
}

function showCandidates(card, candidates) {
  const box = card.querySelector(".candidates");
  box.hidden = candidates.length === 0;
  box.querySelector("tbody").replaceChildren(
    ...candidates.map((one) => {
      const cells = [one.principal, one.key ?? "withheld", one.status, one.distance, probability(one.family_wise)];
      const row = element("tr");
      row.append(...cells.map((text, place) => element("td", String(text), ["", "code", "", "number", "number"][place])));
      return row;
    }),
  );
}

function showBits(card, { margins, answer, found }) {
  if (!margins) { // they are for auditors
    card.querySelector(".bits-title").textContent = "The bits that were read are shown to auditors";
    return;
  }
  const nearest = answer?.candidates[0];
  const key = nearest?.key ? bitsOf(nearest.key) : null; // only of an account that is named
  const wrong = [];
  const cells = bitCells(margins);
  cells.forEach((cell, place) => {
    if (!key || key[place] === (margins[place] > 0 ? 1 : 0)) return;
    cell.classList.add("wrong");
    wrong.push(place + 1);
  });
  const bits = card.querySelector(".bits");
  bits.replaceChildren(...cells);
  const differ = key ? `; ${wrong.length ? `bits ${wrong.join(", ")} differ` : "none differs"} from the nearest key` : "";
  bits.setAttribute("aria-label", `The ${margins.length} bits that were read, ${found.secret} in hex${differ}.`);
  card.querySelector(".bits-title").textContent = `The ${margins.length} bits that were read`;
}

function showFacts(card, entry, result) {
  card.querySelector(".facts").replaceChildren(...factList([
    ["Bits as hex", result.found.secret || "shown to auditors", "code"],
    ["Read by", readBy(result.found), "code"],
    ["Size", `${result.width} × ${result.height} pixels`, "code"],
    ...fileFacts(entry),
  ]));
}

const readBy = ({ reader, key_id: key }) => `${reader}${key ? `, operator key ${key}` : ""}`;

function fileFacts({ sha256, examined }) {
  return [
    ["SHA-256 of the file", sha256 ?? "not available without HTTPS", "code"],
    ["Examined", new Date(examined).toLocaleString(), "code"],
  ];
}

// The picture turns grey and is coloured where the evidence is.
function showMap(card, { scores }) {
  const canvas = card.querySelector("canvas");
  canvas.height = scores.length;
  canvas.width = scores[0].length;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  scores.flat().forEach((score, place) => {
    const opacity = Math.min(Math.max((score - FAINT) / (STRONG - FAINT), 0), 1) * 0.6;
    pixels.data.set([...COLOUR, Math.round(255 * opacity)], 4 * place);
  });
  context.putImageData(pixels, 0, 0);
  const toggle = card.querySelector(".toggle");
  toggle.hidden = false;
  toggle.querySelector("input").onchange = (event) => {
    canvas.hidden = !event.target.checked;
    card.querySelector(".scale").hidden = !event.target.checked;
    card.querySelector(".frame").classList.toggle("mapped", event.target.checked);
  };
}
