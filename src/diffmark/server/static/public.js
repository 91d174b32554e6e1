// The public verifier: a picture or its address in, the answer of /public/verify in words out.

import { readAside } from "./pixel-aside.js";
import { blindVerdict } from "./pixel-words.js";
import { acceptPictures, element, factList } from "./shown.js";
import { bytes } from "./words.js";

const $ = (id) => document.getElementById(id);
const words = JSON.parse($("words").textContent);
const KINDS = { marked: "named", declared: "stranger", similar: "stranger", undecided: "stranger", nothing: "none" };
const makeWorker = () => new Worker("/page/pixel-worker.js", { type: "module" });

let running = null; // what can be stopped
let answer = null; // the one that is shown

// --- the picture in: chosen, dropped, pasted, or its address ---

acceptPictures($("file"), take);

$("address-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const address = $("address").value.trim();
  if (address) ask({ address });
});

function take([file]) {
  if (file) ask({ file });
}

async function ask({ file, address }) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  showStart(file, address);
  try {
    if (file && $("here").checked) {
      const found = await readAside(file, null, makeWorker, () => {}, signal);
      showHere(blindVerdict(found, "").kind);
    } else {
      showAnswer(await send(file, address, signal));
    }
  } catch (error) {
    if (!signal.aborted) finish("failed", words.failed, [error.message]);
  }
}

async function send(file, address, signal) {
  const form = new FormData();
  if (file) form.append("image", file, "image"); // the name stays here
  else form.append("url", address);
  let response;
  try {
    response = await fetch(`/public/verify?lang=${document.documentElement.lang}`, { method: "POST", body: form, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error(words.offline);
  }
  if (response.ok) return response.json();
  const said = { 429: words.too_many, 503: words.busy, 504: words.busy }[response.status];
  if (said) throw new Error(said);
  const { detail } = await response.json().catch(() => ({}));
  throw new Error(typeof detail === "string" ? detail : `${response.status}`);
}

// --- what is shown ---

function showStart(file, address) {
  URL.revokeObjectURL($("picture").src);
  $("picture").parentElement.hidden = !file;
  if (file) $("picture").src = URL.createObjectURL(file);
  $("name").textContent = file ? `${file.name}, ${bytes(file.size)}` : address;
  $("result").hidden = false;
  $("result").setAttribute("aria-busy", "true");
  $("result").classList.remove("named", "stranger", "none", "failed");
  $("headline").textContent = words.reading;
  $("progress").hidden = false;
  $("sentences").replaceChildren();
  $("found").hidden = true;
  $("status").textContent = words.reading;
  $("result").scrollIntoView({ block: "nearest" });
}

function finish(kind, headline, sentences) {
  $("result").setAttribute("aria-busy", "false");
  $("result").classList.add(kind);
  $("headline").textContent = headline;
  $("progress").hidden = true;
  $("sentences").replaceChildren(...sentences.map((text) => element("p", text)));
  $("status").textContent = headline;
}

function showHere(kind) {
  const headline = { named: words.device_marked, stranger: words.device_undecided, none: words.device_none }[kind];
  finish(kind, headline, [words.device_sentence]);
}

function showAnswer(found) {
  answer = found;
  finish(KINDS[found.verdict], found.headline, found.sentences);
  $("bases").replaceChildren(...found.bases.map(basisItem));
  $("facts").replaceChildren(...factList([
    [words.sha_label, found.sha256, "code"],
    [words.time_label, found.time, ""],
    [words.detector_label, `DiffMark ${found.detector.diffmark}, ${found.detector.reader}, ${found.detector.operator_key ?? ""}`, ""],
  ]));
  $("sheet").hidden = !found.signed;
  $("signed").value = found.signed ? JSON.stringify(found.signed) : "";
  $("found").hidden = false;
}

function basisItem({ basis, found, words: said, details }) {
  const state = found === null ? words.not_told : found ? words.found : words.not_found;
  const item = element("li");
  const title = element("strong", `${words[`basis_${basis}`]} `);
  title.append(element("span", `(${state})`, "state"));
  item.append(title, element("span", said));
  const facts = Object.entries(details).filter(([name, value]) => value && name !== "reader");
  if (facts.length) {
    const list = element("dl", "", "facts");
    list.append(...factList(facts.map(([name, value]) => [name.replaceAll("_", " "), value, ""])));
    item.append(list);
  }
  return item;
}

$("save").addEventListener("click", () => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(answer.signed)], { type: "application/json" }));
  link.download = `verdict-${answer.sha256.slice(0, 12)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
});

$("feedback").addEventListener("submit", async (event) => {
  event.preventDefault();
  const agrees = { yes: true, no: false }[new FormData(event.target).get("agrees")] ?? null;
  const body = { text: $("opinion").value, agrees, sha256: answer?.sha256 ?? "", verdict: answer?.verdict ?? "" };
  const headers = { "Content-Type": "application/json" };
  try {
    const response = await fetch("/public/feedback", { method: "POST", headers, body: JSON.stringify(body) });
    $("opinion-note").textContent = response.ok ? words.feedback_thanks : words.too_many;
    if (response.ok) event.target.reset();
  } catch {
    $("opinion-note").textContent = words.offline;
  }
  $("status").textContent = $("opinion-note").textContent;
});
