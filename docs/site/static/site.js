// Two changes to Sphinx's search, made before it starts, and names for the arrows of the menu.
document.addEventListener("DOMContentLoaded", () => {
  // 1. A page with the reader's words in its title comes before one that has them somewhere.
  const query = new URLSearchParams(window.location.search).get("q") ?? "";
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  Scorer.score = ([, title, , , score]) =>
    score + 10 * words.filter((word) => title.toLowerCase().includes(word)).length;

  // 2. The lines shown of a page come from its text, not from the theme's buttons and lists.
  const toText = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const others = ".bd-header-article, .bd-sidebar-secondary, #jb-print-docs-body, footer";
    page.querySelectorAll(others).forEach((element) => element.remove());
    return toText(page.documentElement.outerHTML, anchor);
  };

  // 3. A screen reader says what an arrow in the left column opens.
  for (const arrow of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const page = arrow.closest("li").querySelector("a").textContent.trim();
    arrow.setAttribute("aria-label", `Pages below ${page}`);
  }
});
