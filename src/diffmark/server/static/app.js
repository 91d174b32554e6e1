// The auditor's page: signing in, a queue of images, the report, the history.

import * as api from "/page/api.js";
import { makeCard, showError, showProgress, showReading, showResult, waitAgain } from "/page/card.js";
import { readAside } from "/page/pixel-aside.js";
import { chosenKey, forgetKey, watchKey } from "/page/pixel-form.js";
import { blindVerdict, keyInWords } from "/page/pixel-words.js";
import { acceptPictures, element } from "/page/shown.js";
import { bytes, verdict } from "/page/words.js";

const AT_ONCE = 2; // images on their way at a time
const PAGE = 20; // entries of the history
const $ = (id) => document.getElementById(id);

let caller = null;
let entries = []; // {file, ask, reason, stop, sha256, examined, result, said}
let waiting = [];
let running = 0;
let shown = PAGE;

// --- signing in and out ---

async function start() {
  if (api.signedIn()) {
    try {
      open(await api.whoAmI());
      return;
    } catch (error) {
      api.signOut();
    }
  }
  close();
}

function open(found) {
  caller = found;
  $("who-name").textContent = `${found.name}, ${found.role}`;
  $("limits").textContent = `Several at once are fine; up to ${bytes(found.upload_bytes)} each.`;
  $("who").hidden = false;
  $("login").hidden = true;
  $("work").hidden = false;
  const examines = found.role !== "investigator";
  $("ask").hidden = !examines;
  $("only-history").hidden = examines;
}

function close(message = "") {
  api.signOut();
  clear();
  $("here").checked = false;
  showWhere();
  caller = null;
  $("history").open = false;
  $("entries").replaceChildren();
  $("who").hidden = true;
  $("work").hidden = true;
  $("login").hidden = false;
  $("login-error").textContent = message;
  $("token").value = "";
  $("token").focus();
}

$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("login-error").textContent = "";
  try {
    open(await api.signIn($("token").value.trim()));
    $("token").value = "";
    (caller.role === "investigator" ? $("main") : $("choose")).focus();
  } catch (error) {
    const known = { 401: "This token is not valid: it may be mistyped, expired or revoked." };
    $("login-error").textContent = known[error.status] ?? error.message;
    $("token").select();
  }
});

$("sign-out").addEventListener("click", () => close());

// --- images in: chosen, dropped, pasted ---

$("here").addEventListener("change", showWhere);
watchKey(chosenKey);

function showWhere() {
  const here = $("here").checked;
  $("here-keys").hidden = !here;
  $("reason-field").hidden = here; // for the audit log, which does not record it
  if (!here) forgetKey();
}

const accepts = () => caller !== null && caller.role !== "investigator";

acceptPictures($("files"), add, accepts);

function add(files) {
  if (!accepts()) return;
  const here = $("here").checked;
  const key = here ? chosenKey() : null;
  if (key === undefined) {
    $("key").focus(); // the form says what is wrong
    return;
  }
  const ask = here ? (entry) => readHere(entry, key) : askService;
  for (const file of files) {
    const reason = here ? "" : $("reason").value.trim();
    const entry = { file, ask, reason, card: makeCard(file), stop: new AbortController(), result: null };
    entry.card.querySelector(".again").addEventListener("click", () => {
      waitAgain(entry.card);
      enqueue(entry);
    });
    entries.push(entry);
    $("results").prepend(entry.card);
    enqueue(entry);
  }
  $("report").hidden = entries.length === 0;
}

function enqueue(entry) {
  showProgress(entry.card, "Waiting …", 0);
  waiting.push(entry);
  next();
}

function next() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    examine(waiting.shift()).finally(() => {
      running -= 1;
      next();
    });
  }
}

async function examine(entry) {
  const { file, card } = entry;
  try {
    const show = await entry.ask(entry);
    if (!entries.includes(entry)) return; // cleared meanwhile
    show();
    announce(`${file.name}: ${entry.said.headline}`);
  } catch (error) {
    if (!entries.includes(entry)) return;
    if (error.status === 401) {
      close("Your token is no longer valid. Sign in again.");
      return;
    }
    showError(card, error.message);
    announce(`${file.name} could not be examined: ${error.message}`);
  }
}

// Both ways to examine a picture note what was found in its entry and return what shows it.
async function askService(entry) {
  const { file, card, reason } = entry;
  if (file.size > caller.upload_bytes) {
    throw new Error(`It has ${bytes(file.size)}; the service takes ${bytes(caller.upload_bytes)}.`);
  }
  showProgress(card, "Sending …", 0);
  const sha256 = await digest(file);
  const result = await api.examine(
    file,
    reason,
    (share) => showProgress(card, share < 1 ? "Sending …" : "Reading …", share < 1 ? share : null),
    (seconds) => showProgress(card, `The service is busy; trying again in ${seconds} s …`, null),
  );
  Object.assign(entry, { sha256, examined: Date.now(), result, said: verdict(result) });
  return () => showResult(card, result, entry, caller.image_size);
}

async function readHere(entry, key) {
  const { file, card, stop } = entry;
  const makeWorker = () => new Worker("/page/pixel-worker.js", { type: "module" });
  const sha256 = await digest(file);
  const found = await readAside(file, key, makeWorker, (words) => showProgress(card, words, null), stop.signal);
  const { keyId, evidence, bits, view, width, height } = found;
  const result = { read: "on this device", key_id: keyId, evidence, bits, view, width, height };
  const said = blindVerdict(found, keyInWords(key, found));
  Object.assign(entry, { sha256, examined: Date.now(), result, said });
  return () => showReading(card, found, entry);
}

// Of the file's bytes, in hex; browsers offer it over HTTPS and on this machine only.
async function digest(file) {
  if (!crypto.subtle) return null;
  const sum = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
  return [...new Uint8Array(sum)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function announce(text) {
  const done = entries.filter((entry) => entry.card.getAttribute("aria-busy") === "false").length;
  $("status").textContent = entries.length > 1 ? `${done} of ${entries.length} done. ${text}` : text;
}

// --- the report ---

function clear() {
  for (const { card, stop } of entries) {
    URL.revokeObjectURL(card.querySelector("img").src);
    stop.abort();
  }
  entries = [];
  waiting = [];
  $("results").replaceChildren();
  $("report").hidden = true;
  $("status").textContent = "";
}

$("clear").addEventListener("click", () => {
  clear();
  $("choose").focus();
});

$("export").addEventListener("click", () => {
  const done = entries.filter((entry) => entry.result);
  const report = {
    created: new Date().toISOString(),
    by: caller.name,
    results: done.map(({ file, reason, sha256, examined, result, said }) => ({
      file: file.name,
      bytes: file.size,
      sha256,
      reason,
      examined: new Date(examined).toISOString(),
      verdict: said.headline,
      ...result,
    })),
  };
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(report, null, 1)], { type: "application/json" }));
  link.download = `diffmark-${report.created.slice(0, 10)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
});

$("print").addEventListener("click", () => window.print());
window.addEventListener("beforeprint", () => {
  const reasons = [...new Set(entries.map((entry) => entry.reason).filter(Boolean))].join("; ");
  $("print-head").textContent = `Examined by ${caller?.name ?? "nobody"} with DiffMark at ${location.host}, printed `
    + `${new Date().toLocaleString()}.${reasons ? ` Reason: ${reasons}.` : ""}`;
  for (const details of document.querySelectorAll(".card details")) details.open = true;
});

// --- the history ---

$("history").addEventListener("toggle", () => {
  if ($("history").open) {
    shown = PAGE;
    showHistory();
  }
});
$("more").addEventListener("click", () => {
  shown = Math.min(5 * shown, 1000);
  showHistory();
});

async function showHistory() {
  try {
    const found = await api.history(shown);
    $("entries").replaceChildren(
      ...found.reverse().map((entry) => {
        const when = new Date(entry.time / 1000).toLocaleString();
        const cells = [when, entry.actor, entry.role, entry.action, entry.reason, entry.digest.slice(0, 12)];
        const row = element("tr");
        row.append(...cells.map((text, place) => element("td", text, place === 5 ? "code" : "")));
        return row;
      }),
    );
    $("more").hidden = found.length < shown || shown === 1000;
  } catch (error) {
    if (error.status === 401) close("Your token is no longer valid. Sign in again.");
    else $("status").textContent = error.message;
  }
}

start();
