// Elements that both pages show.

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
