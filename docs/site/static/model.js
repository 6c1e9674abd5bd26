// A model of one data-parallel step: sliders, a picture of the step, and its efficiency. The formulas
// are those of benchmarks/scaling.py (ring, overlapped); tests/test_site.py compares the two.
"use strict";

/** Milliseconds of a ring all-reduce of `bytes` over n ranks; alpha in ms, beta in bytes per ms. */
function ring(n, bytes, alpha, beta) {
  return 2 * (n - 1) * alpha + (2 * (n - 1) * bytes) / n / beta;
}

/** The [start, end] of each bucket's all-reduce. Backward fills equal buckets in equal times, and
    an all-reduce starts when its bucket is full and the one before is done. */
function allReduces({ n, bytes, buckets, forward, backward, alpha, beta }) {
  const bars = [];
  for (let bucket = 1, end = 0; bucket <= buckets; bucket++) {
    const start = Math.max(end, forward + (backward * bucket) / buckets);
    end = start + ring(n, bytes / buckets, alpha, beta);
    bars.push([start, end]);
  }
  return bars;
}

const LINKS = {  // latency in ms, bytes per ms: as in benchmarks/at_scale.py
  "NVLink (235 GB/s, 3.4 µs)": [3.4e-3, 235e6],
  "network, 100 Gb/s (9.6 µs)": [9.6e-3, 12.5e6],
  "network, 10 Gb/s (9.6 µs)": [9.6e-3, 1.25e6],
  "gloo on two CPU cores (1.06 GB/s, 768 µs)": [0.768, 1.06e6],
};
const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));
const decades = [1, 1.5, 2, 3, 5, 7];
const upTo = (limit) =>
  [0.1, 1, 10, 100, 1000].flatMap((ten) => decades.map((one) => one * ten)).filter((x) => x <= limit);
const SLIDERS = {  // name: label, unit, values, index at the start
  n: ["Ranks", "", powers(0, 12), 3],
  megabytes: ["Gradients", "MB", upTo(5000), 18],
  forward: ["Forward", "ms", upTo(1000), 13],
  backward: ["Backward", "ms", upTo(1000), 15],
  buckets: ["Buckets", "", [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 40], 3],
};
const shown = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

/** Everything that the page says about a step. */
function describe(setting) {
  const bars = allReduces(setting);
  const computing = setting.forward + setting.backward;
  const step = bars.at(-1)[1];
  const sum = bars.reduce((total, [start, end]) => total + end - start, 0);
  const efficiency = computing / step;
  const words =
    `A step takes ${shown(step)} ms: ${shown(computing)} ms of computing, and ` +
    `${shown(step - computing)} ms of exposed communication. The all-reduces take ${shown(sum)} ms ` +
    `in all. The efficiency is ${(100 * efficiency).toFixed(0)} %, so ${setting.n} rank(s) do the ` +
    `work of ${shown(setting.n * efficiency)}.`;
  return { bars, step, computing, efficiency, words };
}

function draw(svg, setting) {
  const { bars, step, computing, words } = describe(setting);
  const x = (ms) => (600 * ms) / step;
  const box = (kind, start, end, top) =>
    `<rect class="${kind}" x="${x(start)}" width="${Math.max(x(end - start), 0.5)}" y="${top}" height="26"/>`;
  const text = (at, top, said) => `<text x="${at}" y="${top}">${said}</text>`;
  const parts = [
    text(0, 12, "computing"), box("forward", 0, setting.forward, 18),
    box("backward", setting.forward, computing, 18),
    text(0, 66, "all-reduce"), ...bars.map(([start, end]) => box("all-reduce", start, end, 72)),
    box("exposed", computing, step, 18), text(0, 122, "0 ms"),
    `<text x="600" y="122" text-anchor="end">${shown(step)} ms</text>`,
  ];
  svg.innerHTML = parts.join("");
  svg.setAttribute("aria-label", words);
  return words;
}

/** A labelled slider over a list of values -> [element, function that returns the value]. */
function slider(name, changed) {
  const [label, unit, values, start] = SLIDERS[name];
  const row = document.createElement("label");
  row.innerHTML = `<span>${label}</span><input type="range" min="0"><output></output>`;
  const [, input, output] = row.children;
  Object.assign(input, { max: values.length - 1, value: start, name });
  const show = () => {
    output.value = `${Number(values[input.value].toPrecision(3))} ${unit}`;
    input.setAttribute("aria-valuetext", output.value);
  };
  input.addEventListener("input", () => (show(), changed()));
  show();
  return [row, () => values[input.value]];
}

function build(place) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 600 128");
  svg.setAttribute("role", "img");
  const words = document.createElement("p");
  words.setAttribute("aria-live", "polite");
  const readers = {};
  const update = () => {
    const setting = Object.fromEntries(Object.entries(readers).map(([name, read]) => [name, read()]));
    const [alpha, beta] = LINKS[select.value];
    words.textContent = draw(svg, { ...setting, bytes: 1e6 * setting.megabytes, alpha, beta });
  };
  const form = document.createElement("form");
  for (const name of Object.keys(SLIDERS)) {
    const [row, read] = slider(name, update);
    readers[name] = read;
    form.append(row);
  }
  const link = document.createElement("label");
  link.innerHTML = "<span>Link</span><select></select>";
  const select = link.querySelector("select");
  for (const name of Object.keys(LINKS)) select.add(new Option(name));
  select.selectedIndex = 1;
  select.addEventListener("change", update);
  form.append(link);
  const key = document.createElement("p");
  key.className = "key";
  key.innerHTML = ["forward", "backward", "exposed", "all-reduce"]
    .map((kind) => `<span class="${kind}">${kind === "exposed" ? "waiting (exposed)" : kind}</span>`)
    .join("");
  place.replaceChildren(form, svg, key, words);
  update();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".model")) build(place);
});
