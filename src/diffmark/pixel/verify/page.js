// The page: a picture in, its reading in words out. Nothing is sent anywhere.

import { parseKey } from "./pixel-keys.js";
import { pixelsOf } from "./pixel-picture.js";
import { blindVerdict, viewInWords } from "./pixel-words.js";
import { bytes } from "./words.js";

const $ = (id) => document.getElementById(id);
const calibration = JSON.parse($("calibration").textContent);
const workerAddress = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
const KINDS = ["named", "stranger", "none", "failed"];

let file = null; // the picture that is shown
let worker = null; // what reads it, while it does
let turn = 0; // of the picture: answers to earlier ones are dropped

// --- the picture in: chosen, dropped, pasted ---

$("choose").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", (event) => {
  take(event.target.files);
  event.target.value = "";
});

for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault(); // a file that misses must not replace the page
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
}

document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) take(event.clipboardData.files);
});

function take(files) {
  if (!files.length) return;
  [file] = files;
  examine();
  if ($("key-error").textContent) $("key").focus();
}

// --- the key ---

for (const choice of [$("public"), $("own")]) {
  choice.addEventListener("change", () => {
    $("own-key").hidden = !$("own").checked;
    if ($("own").checked) $("key").focus();
    else if (file) examine();
  });
}

$("key").addEventListener("input", () => complain(""));
$("key").addEventListener("change", () => {
  if (file) examine();
  else chosenKey();
});

function complain(message) {
  $("key-error").textContent = message;
  $("key").setAttribute("aria-invalid", String(Boolean(message)));
}

// The key's hex digits, null for the public key, undefined if they are not right.
function chosenKey() {
  if ($("public").checked) return null;
  try {
    parseKey($("key").value);
    complain("");
    return $("key").value;
  } catch (error) {
    complain(error.message);
    return undefined;
  }
}

// --- reading ---

async function examine() {
  const key = chosenKey();
  stopWorker();
  $("result").hidden = true;
  $("status").textContent = "";
  if (key === undefined) return;
  const mine = ++turn;
  showPicture();
  showProgress("Opening the picture …");
  $("result").scrollIntoView({ block: "nearest" });
  try {
    const pixels = await pixelsOf(file);
    if (mine !== turn) return;
    $("name").textContent += `, ${pixels.width} × ${pixels.height} pixels`;
    showProgress("Reading …");
    const found = await readAside(key, pixels);
    if (mine === turn) showFound(found, key === null ? "the public key" : `the key ${found.keyId}`);
  } catch (error) {
    if (mine === turn) finish({ kind: "failed", headline: "This picture could not be read.", sentences: [error.message] });
  }
}

// A reading by a worker.
function readAside(key, pixels) {
  worker = new Worker(workerAddress);
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => {
      if (data.progress) showProgress(data.progress);
      else if (data.error) reject(new Error(data.error));
      else resolve(data.found);
    };
    worker.onerror = (event) => reject(new Error(event.message || "This browser cannot run the reader."));
    worker.postMessage({ key, pixels }, [pixels.data.buffer]);
  }).finally(stopWorker);
}

function stopWorker() {
  worker?.terminate();
  worker = null;
}

// --- what is shown ---

function showPicture() {
  URL.revokeObjectURL($("picture").src);
  $("picture").src = URL.createObjectURL(file);
  $("picture").alt = `The picture ${file.name}`;
  $("name").textContent = `${file.name}, ${bytes(file.size)}`;
}

function showProgress(words) {
  $("result").hidden = false;
  $("result").setAttribute("aria-busy", "true");
  $("result").classList.remove(...KINDS);
  $("headline").textContent = words;
  $("progress").hidden = false;
  $("sentences").replaceChildren();
  $("found").hidden = true;
  $("status").textContent = words;
}

function finish({ kind, headline, sentences }) {
  $("result").setAttribute("aria-busy", "false");
  $("result").classList.add(kind);
  $("headline").textContent = headline;
  $("progress").hidden = true;
  $("sentences").replaceChildren(...sentences.map((text) => element("p", text)));
  $("status").textContent = `${file.name}: ${headline}`;
}

function showFound(found, keyWords) {
  const said = blindVerdict(found, calibration, keyWords);
  finish(said);
  const facts = [
    [said.kind === "named" ? "Secret" : "Bits as read", found.bits, "secret"],
    ["Key id", `${found.keyId}${keyWords === "the public key" ? " (the public key)" : ""}`, "code"],
    ["Evidence", `${found.evidence.toLocaleString("en", { maximumFractionDigits: 1 })} nats`],
    ...(said.kind === "none" ? [] : [["View", viewInWords(found.view)]]),
    ["Time", `${Math.round(found.milliseconds).toLocaleString("en")} ms`],
  ];
  $("facts").replaceChildren(
    ...facts.flatMap(([name, value, kind]) => [element("dt", name), element("dd", value, kind)]),
  );
  showBits(found);
  $("found").hidden = false;
}

function showBits({ margins, bits }) {
  $("bits").replaceChildren(...[...margins].map((margin) => {
    const sure = Math.tanh(Math.abs(margin) / 2); // chance of the likelier value, less that of the other
    const cell = element("span", margin > 0 ? "1" : "0", sure > 0.55 ? "dark" : "");
    cell.style.setProperty("--sure", (0.08 + 0.92 * sure).toFixed(2));
    return cell;
  }));
  $("bits").setAttribute("aria-label", `The ${margins.length} bits that were read, ${bits} in hex.`);
}

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = name;
  return made;
}
