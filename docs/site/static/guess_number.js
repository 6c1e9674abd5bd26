// In a notebook: a field for the reader's own number, above each folded answer that has a measured
// one. It opens the answer and says how far off the number was. Without this script the answer can
// be unfolded as it is. notebooks/lesson/showing.py writes the answers ("guessed").

const ANSWER = /^(.*?)\s*measured\s+(-?[\d,.]*\d)\s*(.*?)\.\s+The authors guessed\s+(-?[\d,.]*\d)/s;

document.addEventListener("DOMContentLoaded", () => {
  for (const details of document.querySelectorAll(".bd-article details")) {
    const answer = readAnswer(details);
    if (answer) details.before(guessForm(details, answer));
  }
});

/** What an answer says: {question, measured, unit, authors}, or null for another folded text. */
function readAnswer(details) {
  const text = details.querySelector("p")?.textContent ?? "";
  const found = ANSWER.exec(text.trim());
  if (!found) return null;
  const [, question, measured, unit, authors] = found;
  return { question, measured: toNumber(measured), unit, authors: toNumber(authors) };
}

function toNumber(text) {
  return Number(text.replaceAll(",", ""));
}

function guessForm(details, answer) {
  const form = document.createElement("form");
  form.className = "own-number";
  form.innerHTML = `
    <label class="own-question"></label>
    <input type="number" step="any" required>
    <span class="own-unit"></span>
    <button type="submit">Compare</button>
    <output></output>`;
  const label = form.querySelector("label");
  label.htmlFor = `own-number-${document.querySelectorAll(".own-number").length}`;
  form.querySelector("input").id = label.htmlFor;
  form.querySelector(".own-question").textContent = `Your number. ${answer.question}`;
  form.querySelector(".own-unit").textContent = answer.unit;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const own = form.querySelector("input").valueAsNumber;
    const measured = `${shortNumber(answer.measured)} ${answer.unit}`.trim();
    form.querySelector("output").textContent =
      `Measured: ${measured}. Your number is ${farOff(own, answer.measured)}; ` +
      `that of the authors is ${farOff(answer.authors, answer.measured)}.`;
    details.open = true;
  });
  return form;
}

/** How far a guess is from what was measured, in words. */
function farOff(guess, measured) {
  if (guess === measured) return "right";
  const side = guess > measured ? "too large" : "too small";
  if (guess <= 0 || measured <= 0) return `${side} by ${shortNumber(Math.abs(guess - measured))}`;
  const factor = Math.max(guess / measured, measured / guess);
  if (factor < 1.995) return `${shortNumber(100 * Math.abs(guess / measured - 1))} % ${side}`;
  return `${shortNumber(factor)} times ${side}`;
}

function shortNumber(number) {
  return Number(number.toPrecision(3)).toLocaleString("en-US");
}
