// What the pages share: elements, and how a picture gets in.

export function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = name;
  return made;
}

// Terms and descriptions of a <dl>: [[name, value, class], ...].
export function factList(facts) {
  return facts.flatMap(([name, value, kind]) => [element("dt", name), element("dd", value, kind)]);
}

// One cell for each bit, the darker the surer; margins are compared with their median.
export function bitCells(margins) {
  const scale = Array.from(margins, Math.abs).sort((a, b) => a - b)[Math.floor(margins.length / 2)] || 1;
  return Array.from(margins, (margin) => {
    const sure = Math.min(Math.abs(margin) / scale, 1);
    const cell = element("span", margin > 0 ? "1" : "0", sure > 0.55 ? "dark" : "");
    cell.style.setProperty("--sure", (0.08 + 0.92 * sure).toFixed(2));
    return cell;
  });
}

// Files that are chosen in an input, dropped or pasted go to `take`; `open` says whether any are taken now.
export function acceptPictures(input, take, open = () => true) {
  const drop = document.getElementById("drop");
  document.getElementById("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    take(input.files);
    input.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault(); // a file that misses must not replace the page
      drop.classList.toggle("over", kind === "dragover" && open());
      if (kind === "drop") take(event.dataTransfer.files);
    });
  }
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) take(event.clipboardData.files);
  });
}
