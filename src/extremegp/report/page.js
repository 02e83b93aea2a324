"use strict";
const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
};
const compared = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const now = head.getAttribute("aria-sort"), first = head.classList.contains("n") ? "descending" : "ascending";
    const wanted = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
    heads.forEach(other => other.setAttribute("aria-sort", other === head ? wanted : "none"));
    const sign = wanted === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].sort((a, b) => sign * compared(valueOf(a, column), valueOf(b, column)));
    table.tBodies[0].append(...rows);
  }));
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(each => { each.open = true; }));
