// The page of the search: what rank (search.js) finds for the words in the address.

document.addEventListener("DOMContentLoaded", () => {
  const query = new URLSearchParams(location.search).get("q")?.trim() ?? "";
  const field = document.querySelector(".search-page input[name=q]");
  field.value = query;
  field.focus();
  if (!query) return;
  const found = Search.rank(query);
  const summary = document.querySelector("#search-summary");
  const words = HAN.test(query) ? [`找到 ${found.length} 页。`, "没有找到。"] : [`${found.length} pages found.`, "No page has these words. "];
  summary.textContent = words[found.length ? 0 : 1];
  if (!found.length) {
    const link = Search.linkTo({ page: "docs/explain", title: HAN.test(query) ? "粘贴日志（英文）" : "Do you have a log? Paste it here.", anchor: "" });
    summary.append(link);
  }
  for (const one of found) {
    const item = document.createElement("li");
    const text = document.createElement("p");
    item.append(Search.linkTo(one), text);
    document.querySelector("#search-results").append(item);
    whenSeen(item, async () => {
      const found = Search.excerpt(await Search.textOf(one.page), one, query);
      text.replaceChildren(...Search.markedWords(found.sentence, query));
      if (!one.byText || !found.count || !found.id) return;
      const place = { ...one, anchor: `#${found.id}`, title: `${one.whole} > ${found.heading}` };
      item.firstChild.replaceWith(Search.linkTo(place));
    });
  }
});

/** A page's text is loaded when its result comes near the screen. */
function whenSeen(element, show) {
  const observer = new IntersectionObserver(
    ([{ isIntersecting }]) => {
      if (!isIntersecting) return;
      observer.disconnect();
      show();
    },
    { rootMargin: "300px" },
  );
  observer.observe(element);
}
