// What the theme lacks on each page: names for the arrows of the menu, and paper. What can be done when the
// site is built stands in marks.py, so that nothing moves after the page was shown.

document.addEventListener("DOMContentLoaded", () => {
  // The left column is a landmark, and a button is called as what stands on it.
  const isChinese = document.documentElement.lang === "zh-CN";
  const label = isChinese ? "本站页面" : "Site";
  Object.assign(document.querySelector(".bd-sidebar-primary"), { role: "navigation", ariaLabel: label });
  for (const one of document.querySelectorAll("summary[aria-label^=Toggle]"))
    one.removeAttribute("aria-label");
  const names = { Main: "页面列表", Page: "本页目录" }; // the theme's templates have them in English only
  for (const one of isChinese ? document.querySelectorAll("nav[aria-label]") : [])
    one.ariaLabel = names[one.ariaLabel] ?? one.ariaLabel;
  // A screen reader says what an arrow in the left column opens.
  for (const arrow of document.querySelectorAll(".bd-sidebar-primary li > details > summary")) {
    const page = arrow.closest("li").querySelector("a").textContent.trim();
    arrow.setAttribute("aria-label", isChinese ? `“${page}”的下级页面` : `Pages below ${page}`);
  }
});

// On a phone a tap shows a picture in its own size, where it stands, and a second one makes it small
// again. The browser's own page for a picture would make it as small as it was.
document.addEventListener("click", (event) => {
  const box = event.target.closest?.(".picture-box");
  if (!box || !matchMedia("(max-width: 576px)").matches) return;
  event.preventDefault();
  const { left, width } = box.firstElementChild.getBoundingClientRect();
  const part = (event.clientX - left) / width;
  box.classList.toggle("large");
  box.scrollLeft = part * box.firstElementChild.offsetWidth - box.clientWidth / 2; // what was tapped
});

// The theme keeps the left column where it was, also if the open page is then out of sight in it.
addEventListener("load", () => {
  const column = document.querySelector(".bd-sidebar-primary");
  const entry = [...column.querySelectorAll("li.current > a.current")].at(-1);
  if (!entry) return;
  const [seen, here] = [column, entry].map((one) => one.getBoundingClientRect());
  if (here.top < seen.top || here.bottom > seen.bottom)
    column.scrollTop += here.top - seen.top - seen.height / 3;
});

// Paper is light, and nobody can unfold an answer on it.
matchMedia("print").addEventListener("change", ({ matches }) => {
  const { dataset } = document.documentElement;
  if (matches) {
    dataset.onScreen = dataset.theme;
    dataset.theme = "light";
    for (const details of document.querySelectorAll("article details:not([open], .hide)")) {
      details.open = true;
      details.dataset.opened = "";
    }
  } else if (dataset.onScreen) {
    dataset.theme = dataset.onScreen;
    for (const details of document.querySelectorAll("details[data-opened]")) {
      details.open = false;
      delete details.dataset.opened;
    }
  }
});
