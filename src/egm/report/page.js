"use strict";
/* Headings become buttons: a click (or Enter, or Space) sorts the table by that column, a second one turns it round. */
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    heading.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], down ? -1 : 1));
      body.append(...rows);
    });
  });
}

/* Numbers before texts, and empty cells last in either direction. */
function compare(a, b, sign) {
  const [x, y] = [a, b].map((cell) => cell.dataset.sort ?? cell.textContent.trim());
  if (x === "" || y === "") return (x === "") - (y === "");
  const [p, q] = [x, y].map((text) => (/^[-+−.\d]/.test(text) ? parseFloat(text.replace("−", "-")) : NaN));
  if (!Number.isNaN(p) && !Number.isNaN(q)) return sign * (p - q);
  if (Number.isNaN(p) !== Number.isNaN(q)) return sign * (Number.isNaN(p) - Number.isNaN(q));
  return sign * x.localeCompare(y);
}
