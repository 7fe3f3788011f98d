"use strict";
// Sorts a table by a column: numbers by value, others as text; rows without a value stay last.
function sortTable(table, column, heading) {
  const direction = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
  const sign = direction === "ascending" ? 1 : -1;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const rows = Array.from(table.tBodies[0].rows);
  rows.sort((first, second) => {
    const a = key(first), b = key(second);
    if (a === "" || b === "") return (a === "") - (b === "");
    const x = Number(a), y = Number(b);
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y);
  });
  table.tBodies[0].append(...rows);
}
for (const table of document.querySelectorAll("table.data")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortTable(table, column, heading));
  });
}
// Every word has to be in the row; a short table needs no filter.
for (const table of document.querySelectorAll("table.filterable")) {
  if (table.tBodies[0].rows.length < 8) continue;
  const input = document.createElement("input");
  input.type = "search";
  input.className = "filter";
  input.placeholder = "Filter rows";
  input.setAttribute("aria-label", "Filter rows");
  table.parentElement.before(input);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
// A link to something folded away unfolds it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let element = target; element; element = element.parentElement) {
    if (element.tagName === "DETAILS") element.open = true;
  }
  target.scrollIntoView({ block: "start" });
}
window.addEventListener("hashchange", reveal);
reveal();
