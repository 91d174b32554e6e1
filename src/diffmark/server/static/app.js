// The auditor's page: signing in, a queue of images, the report, the history.

import * as api from "/page/api.js";
import { element, makeCard, showError, showProgress, showResult, waitAgain } from "/page/card.js";
import { bytes, verdict } from "/page/words.js";

const AT_ONCE = 2; // images on their way at a time
const PAGE = 20; // entries of the history
const $ = (id) => document.getElementById(id);

let caller = null;
let entries = []; // {file, reason, sha256, examined, result}
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

$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", (event) => {
  add(event.target.files);
  event.target.value = "";
});

const accepts = () => caller !== null && caller.role !== "investigator";

document.addEventListener("dragover", (event) => {
  event.preventDefault(); // a file that misses the box must not replace the page
  $("drop").classList.toggle("over", accepts());
});
document.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) $("drop").classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  add(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) add(event.clipboardData.files);
});

function add(files) {
  if (!accepts()) return;
  for (const file of files) {
    const entry = { file, reason: $("reason").value.trim(), card: makeCard(file), result: null };
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
  const { file, card, reason } = entry;
  try {
    if (file.size > caller.upload_bytes) {
      throw new Error(`It has ${bytes(file.size)}; the service takes ${bytes(caller.upload_bytes)}.`);
    }
    showProgress(card, "Sending …", 0);
    entry.sha256 = await digest(file);
    const result = await api.examine(
      file,
      reason,
      (share) => showProgress(card, share < 1 ? "Sending …" : "Reading …", share < 1 ? share : null),
      (seconds) => showProgress(card, `The service is busy; trying again in ${seconds} s …`, null),
    );
    entry.examined = Date.now();
    entry.result = result;
    if (!entries.includes(entry)) return; // cleared meanwhile
    showResult(card, result, entry, caller.image_size);
    announce(`${file.name}: ${verdict(result).headline}`);
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
  for (const { card } of entries) URL.revokeObjectURL(card.querySelector("img").src);
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
    results: done.map(({ file, reason, sha256, examined, result }) => ({
      file: file.name,
      bytes: file.size,
      sha256,
      reason,
      examined: new Date(examined).toISOString(),
      verdict: verdict(result).headline,
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
