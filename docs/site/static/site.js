// What the theme lacks on each page: names for the arrows of the menu. What can be done when the
// site is built stands in marks.py, so that nothing moves after the page was shown.

document.addEventListener("DOMContentLoaded", () => {
  // The left column is a landmark, and a button is called as what stands on it.
  Object.assign(document.querySelector(".bd-sidebar-primary"), { role: "navigation", ariaLabel: "Site" });
  for (const one of document.querySelectorAll("summary[aria-label^=Toggle]"))
    one.removeAttribute("aria-label");
  // A screen reader says what an arrow in the left column opens.
  for (const arrow of document.querySelectorAll(".bd-sidebar-primary details > summary")) {
    const page = arrow.closest("li").querySelector("a").textContent.trim();
    arrow.setAttribute("aria-label", `Pages below ${page}`);
  }
});
