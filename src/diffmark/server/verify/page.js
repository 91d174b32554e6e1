// The page: a picture in, its reading in words out. Nothing is sent anywhere.

import { readAside } from "./pixel-aside.js";
import { chosenKey, watchKey } from "./pixel-form.js";
import { blindVerdict, factsOf, keyInWords } from "./pixel-words.js";
import { acceptPictures, bitCells, element, factList } from "./shown.js";
import { bytes } from "./words.js";

const $ = (id) => document.getElementById(id);
const workerAddress = URL.createObjectURL(new Blob([$("worker").textContent], { type: "text/javascript" }));
const makeWorker = () => new Worker(workerAddress);
const KINDS = ["named", "stranger", "none", "failed"];

let file = null; // the picture that is shown
let reading = null; // what can be stopped

// --- the picture in: chosen, dropped, pasted ---

acceptPictures($("file"), take);

function take(files) {
  if (!files.length) return;
  [file] = files;
  examine();
  if ($("key-error").textContent) $("key").focus();
}

// --- reading ---

watchKey(() => {
  if (file) examine();
  else chosenKey();
});

async function examine() {
  const key = chosenKey();
  reading?.abort();
  $("result").hidden = true;
  $("status").textContent = "";
  if (key === undefined) return;
  reading = new AbortController();
  const { signal } = reading;
  showPicture();
  showProgress("Opening the picture …");
  $("result").scrollIntoView({ block: "nearest" });
  try {
    const found = await readAside(file, key, makeWorker, (words) => signal.aborted || showProgress(words), signal);
    showFound(found, keyInWords(key, found));
  } catch (error) {
    if (signal.aborted) return; // another picture or key came
    finish({ kind: "failed", headline: "This picture could not be read.", sentences: [error.message] });
  }
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
  const said = blindVerdict(found, keyWords);
  finish(said);
  $("facts").replaceChildren(...factList(factsOf(found, said)));
  $("bits").replaceChildren(...bitCells(found.margins));
  $("bits").setAttribute("aria-label", `The ${found.margins.length} bits that were read, ${found.bits} in hex.`);
  $("found").hidden = false;
}
