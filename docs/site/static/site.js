// What the theme lacks on each page: names for the arrows of the menu, and tables that can be read
// on a phone.

document.addEventListener("DOMContentLoaded", () => {
  // The left column is a landmark, and a button is called as what stands on it.
  Object.assign(document.querySelector(".bd-sidebar-primary"), { role: "navigation", ariaLabel: "Site" });
  for (const one of document.querySelectorAll(".search-button-field, summary[aria-label^=Toggle]"))
    one.removeAttribute("aria-label");
  // A screen reader says what an arrow in the left column opens.
  for (const arrow of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const page = arrow.closest("li").querySelector("a").textContent.trim();
    arrow.setAttribute("aria-label", `Pages below ${page}`);
  }
  const tables = [...document.querySelectorAll(".bd-article table:not(.highlighttable)")];
  for (const table of tables) markText(table);
  // On a laptop, output with long lines is set smaller rather than cut off (site.css).
  for (const pre of document.querySelectorAll(".bd-article .highlight pre"))
    pre.classList.toggle("wide", pre.scrollWidth > pre.clientWidth);
});

/** Columns of text get a least width; on a phone, a table with several of them stacks its cells, each
    under the name of its column (site.css). */
function markText(table) {
  const rows = [...(table.tBodies[0]?.rows ?? [])];
  const names = [...(table.tHead?.rows[0]?.cells ?? [])].map((cell) => cell.textContent.trim());
  const isText = names.map((_, column) =>
    rows.some((row) => (row.cells[column]?.textContent.trim().length ?? 0) > 40),
  );
  if (names.length > 1 && isText.some(Boolean)) table.classList.add("stacks");
  for (const row of rows)
    for (const [column, cell] of [...row.cells].entries()) {
      if (isText[column]) cell.classList.add("text");
      cell.dataset.name = names[column] ?? "";
    }
}
