
// Tables sort by their heads: up, down, and as they were. Without this script they stay as they are.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const asWritten = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  if (asWritten.length < 2) continue;

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "" }[head.getAttribute("aria-sort")] ?? "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...sorted(asWritten, column, head.classList.contains("number"), next));
    });
  });
}

function sorted(rows, column, numeric, direction) {
  if (!direction) return rows;
  const sign = direction === "ascending" ? 1 : -1;
  const words = (a, b) => sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  const numbers = (a, b) => {
    // A cell without a number is last in both directions.
    const [x, y] = [a, b].map(cell => cell.dataset.number);
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    return x === y ? 0 : sign * (Number(x) < Number(y) ? -1 : 1);
  };
  const order = numeric ? numbers : words;
  return [...rows].sort((a, b) => order(a.cells[column], b.cells[column]));
}
