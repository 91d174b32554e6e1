// The choice of a key: the public one, or an operator's that is pasted. It stays in the form.

import { parseKey } from "./pixel-keys.js";

const $ = (id) => document.getElementById(id);

// `onChange()` is called when another key was chosen, right or wrong.
export function watchKey(onChange) {
  for (const choice of [$("public"), $("own")]) {
    choice.addEventListener("change", () => {
      $("own-key").hidden = !$("own").checked;
      if ($("own").checked) $("key").focus();
      else onChange();
    });
  }
  $("key").addEventListener("input", () => complain(""));
  $("key").addEventListener("change", onChange);
}

// The key's hex digits, null for the public key, undefined if they are not right: then the form says why.
export function chosenKey() {
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

export function forgetKey() {
  $("key").value = "";
  $("public").checked = true;
  $("own-key").hidden = true;
  complain("");
}

function complain(message) {
  $("key-error").textContent = message;
  $("key").setAttribute("aria-invalid", String(Boolean(message)));
}
