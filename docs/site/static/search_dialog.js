// In the dialog of the search (Ctrl K): the first titles while one types. The index is large, so it
// is loaded with the first letter, as scripts, because a page without a server cannot fetch.

const SEARCH_PARTS = ["language_data.js", "search.js", "search_places.js", "../searchindex.js"];
const SEARCH_FOLDER = document.currentScript.src;
let searchLoaded;

function loadSearch() {
  const load = (name) =>
    new Promise((resolve, reject) => {
      const script = document.createElement("script");
      Object.assign(script, { src: new URL(name, SEARCH_FOLDER), onload: resolve, onerror: reject });
      document.head.append(script);
    });
  searchLoaded ??= SEARCH_PARTS.reduce((before, name) => before.then(() => load(name)), Promise.resolve());
  return searchLoaded;
}

document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.querySelector("#pst-search-dialog");
  const field = dialog?.querySelector("input");
  if (!field || document.querySelector("#search-results")) return; // that page has them already
  const list = document.createElement("ul");
  list.className = "search-titles";
  list.setAttribute("aria-live", "polite");
  dialog.append(list);
  field.addEventListener("input", async () => {
    await loadSearch();
    const query = field.value.trim();
    const isSearched = query.length > 1 || HAN.test(query);
    const found = isSearched ? Search.rank(query, 5) : [];
    const items = found.map((one) => {
      const item = document.createElement("li");
      const link = Search.linkTo(one);
      if (one.section) {
        // On a phone a line per part: what was found, and in small letters its page.
        const page = Object.assign(document.createElement("small"), { textContent: one.whole });
        link.replaceChildren(one.section, page);
      }
      item.append(link);
      return item;
    });
    if (isSearched && !found.length) items.push(nothingFound(query));
    list.replaceChildren(...items);
  });
});

/** What the page of the search says, with a link to it. */
function nothingFound(query) {
  const words = HAN.test(query) ? "没有找到。打开搜索页" : "No page has these words. Open the search page.";
  const item = document.createElement("li");
  const link = Search.linkTo({ page: "search", title: words, anchor: `?q=${encodeURIComponent(query)}` });
  item.append(link);
  return item;
}
