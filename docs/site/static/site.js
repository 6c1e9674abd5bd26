// What the theme lacks on each page: names for the arrows of the menu, tables that can be read on a
// phone, and a filter for pages of many entries.

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
  const entries = [...document.querySelectorAll(".bd-article section > h3")];
  if (entries.length > 60) addFilter(entries);
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

/** A field above the entries: it leaves those whose headings have all words typed, and those of which
    one wording is in a message that is pasted, but for what the message has in its gaps. */
function addFilter(headings) {
  const field = document.createElement("input");
  const label = "Paste your message, or type words of it";
  Object.assign(field, { type: "search", className: "filter", placeholder: label });
  field.setAttribute("aria-label", label);
  const nothing = document.createElement("p");
  nothing.setAttribute("role", "status");
  const parts = new Set(headings.map((heading) => heading.parentElement.parentElement));
  [...parts][0].before(field, nothing);
  const wordsOf = (text) => text.toLowerCase().match(/[a-z_]{2,}|\d+/g) ?? [];
  const entries = headings.map((heading) => {
    const wordings = [...heading.querySelectorAll("code")].map((one) => wordsOf(one.textContent));
    return { entry: heading.parentElement, wordings, text: heading.textContent.toLowerCase() };
  });
  field.addEventListener("input", () => {
    const typed = new Set(wordsOf(field.value));
    const isIn = (wording) => wording.filter((word) => typed.has(word)).length >= 0.7 * wording.length;
    const fits = ({ wordings, text }) =>
      [...typed].every((word) => text.includes(word)) ||
      wordings.some((wording) => wording.join("").length > 8 && isIn(wording));
    for (const one of entries) one.entry.hidden = !fits(one);
    for (const part of parts) part.hidden = !part.querySelector("section:not([hidden])");
    const found = entries.some(({ entry }) => !entry.hidden);
    const issue = document.querySelector('a[href$="/issues/new"]')?.href;
    nothing.innerHTML = found
      ? ""
      : `No entry has these words. <a href="debugging.html">Debugging</a> says how to find the cause` +
        (issue ? `, and <a href="${issue}">the issue form</a> is for a message that is missing.` : ".");
  });
}
