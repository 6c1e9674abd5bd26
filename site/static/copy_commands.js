// A button that copies, behind each command in a table. sphinx-copybutton has one for each block of
// code only. marks.py finds the commands, and keeps the place of the button free.

const COPY_ICON = `<svg viewBox="0 0 16 16" aria-hidden="true">
  <path d="M5 1h9v11h-3v3H2V4h3zm1.5 1.5V4H11v6.5h1.5v-8zm-3 3v8h6v-8z" fill-rule="evenodd"/></svg>`;

document.addEventListener("DOMContentLoaded", () => {
  for (const button of document.querySelectorAll("td .copy-command")) {
    const command = button.previousElementSibling.textContent;
    button.innerHTML = COPY_ICON;
    button.classList.add("works");
    button.addEventListener("click", () => copyCommand(button, command));
  }
});

async function copyCommand(button, text) {
  await navigator.clipboard.writeText(text);
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1500);
}
