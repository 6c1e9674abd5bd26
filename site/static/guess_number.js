// In a notebook: a field for the reader's own number, above each answer that is a number. The answer
// is folded until the reader's number is there, and then the field says how far off it was.
// notebooks/lesson/showing.py writes the answers ("guessed").

const ANSWER = /^\s*(-?[\d,.]*\d)\s*(.*?)\./;
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;

document.addEventListener("DOMContentLoaded", () => {
  for (const details of document.querySelectorAll(".bd-article details")) {
    const answer = readAnswer(details);
    if (!answer) continue;
    details.before(guessForm(details, answer));
  }
});

/** What an answer says: {question, answer, unit}, or null for another folded text. */
function readAnswer(details) {
  const paragraph = details.querySelector("p");
  const number = paragraph?.querySelector("strong");
  const question = number?.previousSibling?.textContent ?? "";
  if (!question.trim().endsWith(":")) return null;
  const found = ANSWER.exec(paragraph.textContent.slice(question.length));
  if (!found) return null;
  const [, answer, unit] = found;
  return { question: question.trim(), answer: toNumber(answer), unit };
}

function toNumber(text) {
  return Number(text.replaceAll(",", ""));
}

function guessForm(details, { question, answer, unit }) {
  const form = document.createElement("form");
  form.className = "own-number";
  form.noValidate = true;
  form.innerHTML = `
    <label class="own-question"></label>
    <input inputmode="decimal" autocomplete="off">
    <span class="own-unit"></span>
    <button type="submit">Compare</button>
    <output></output>`;
  const label = form.querySelector("label");
  const input = form.querySelector("input");
  const output = form.querySelector("output");
  label.htmlFor = `own-number-${document.querySelectorAll(".own-number").length}`;
  input.id = label.htmlFor;
  label.textContent = `Your number. ${question}`;
  form.querySelector(".own-unit").textContent = unit;
  const say = (words, isBad) => {
    output.textContent = words;
    input.setAttribute("aria-invalid", isBad);
  };
  input.addEventListener("input", () => say("", false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = input.value.trim();
    if (!NUMBER.test(typed)) return say("Type a number, with a point for decimals and without commas.", true);
    // What has a unit here is a share or a size.
    if (unit && Number(typed) < 0) return say("Type a number that is not negative.", true);
    const yours = `Your number is ${farOff(Number(typed), answer)}`;
    say(`The answer: ${`${shortNumber(answer)} ${unit}`.trim()}. ${yours}.`, false);
    details.open = true;
  });
  return form;
}

/** How far a guess is from the answer, in words. The answer has three digits, so a guess that is
    the same with three digits is right. */
function farOff(guess, answer) {
  if (isRounded(guess, answer)) return "right";
  const side = guess > answer ? "too large" : "too small";
  if (guess <= 0 || answer <= 0) return `${side} by ${shortNumber(Math.abs(guess - answer))}`;
  const factor = Math.max(guess / answer, answer / guess);
  if (factor < 1.995) return `${shortNumber(100 * Math.abs(guess / answer - 1))} % ${side}`;
  return `${shortNumber(factor)} times ${side}`;
}

/** Would showing.py write the answer for this number? From 100 on it writes whole numbers. */
function isRounded(guess, answer) {
  if (guess === answer || answer === 0) return guess === answer;
  const digits = Math.abs(answer) >= 100 ? 0 : 2 - Math.floor(Math.log10(Math.abs(answer)));
  return Math.abs(guess - answer) <= 0.5 * 10 ** -digits * (1 + 1e-9);
}

function shortNumber(number) {
  return Number(number.toPrecision(3)).toLocaleString("en-US");
}
