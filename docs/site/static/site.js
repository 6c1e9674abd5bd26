// What the theme lacks on each page: names for the arrows of the menu, and a filter for tables of
// many entries.
const CHINESE = document.documentElement.lang.startsWith("zh");

document.addEventListener("DOMContentLoaded", () => {
  // A screen reader says what an arrow in the left column opens.
  for (const arrow of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const page = arrow.closest("li").querySelector("a").textContent.trim();
    arrow.setAttribute("aria-label", CHINESE ? `${page} 的下级页面` : `Pages below ${page}`);
  }
  const tables = [...document.querySelectorAll(".bd-article table")];
  for (const table of tables.filter((one) => one.tBodies[0]?.rows.length > 60)) addFilter(table);
});

/** A field above a table: it leaves the rows that have all words typed, and those of which one
    wording is in a message that is pasted, but for what the message has in its gaps. */
function addFilter(table) {
  const field = document.createElement("input");
  const label = CHINESE ? "粘贴报错信息，或输入其中的词" : "Paste your message, or type words of it";
  Object.assign(field, { type: "search", className: "filter", placeholder: label });
  field.setAttribute("aria-label", label);
  table.before(field);
  const wordsOf = (text) => text.toLowerCase().match(/[a-z_]{2,}|[\u4e00-\u9fff]|\d+/g) ?? [];
  const rows = [...table.tBodies[0].rows].map((row) => {
    const wordings = [...row.cells[0].querySelectorAll("code")].map((one) => wordsOf(one.textContent));
    return { row, wordings, text: row.textContent.toLowerCase() };
  });
  field.addEventListener("input", () => {
    const typed = new Set(wordsOf(field.value));
    const isIn = (wording) => wording.filter((word) => typed.has(word)).length >= 0.7 * wording.length;
    const fits = ({ wordings, text }) =>
      [...typed].every((word) => text.includes(word)) ||
      wordings.some((wording) => wording.join("").length > 8 && isIn(wording));
    for (const one of rows) one.row.hidden = !fits(one);
  });
}
