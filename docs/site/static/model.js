// A model of one data-parallel step: sliders, a picture of the step, and its efficiency. The formulas
// are those of benchmarks/scaling.py (ring, overlapped); tests/test_site.py compares the two.
"use strict";

const ten = (x) => Number((10 ** (x / 10)).toPrecision(2));
const SLIDERS = {  // name: labels, unit, first, least and largest position, the value of a position
  n: [["Ranks", "rank 数"], "", 3, 1, 12, (x) => 2 ** x],
  megabytes: [["Gradients", "梯度"], "MB", 20, -10, 37, ten],
  forward: [["Forward", "前向传播"], "ms", 12, -10, 30, ten],
  backward: [["Backward", "反向传播"], "ms", 15, -10, 30, ten],
  buckets: [["Buckets", "桶数"], "", 4, 1, 40, Number],
};
const LINKS = [  // names, latency in ms, bytes per ms: as in benchmarks/at_scale.py
  [["NVLink (235 GB/s, 3.4 µs)", "NVLink（235 GB/s，3.4 µs）"], 3.4e-3, 235e6],
  [["network, 100 Gb/s (9.6 µs)", "网络，100 Gb/s（9.6 µs）"], 9.6e-3, 12.5e6],
  [["network, 10 Gb/s (9.6 µs)", "网络，10 Gb/s（9.6 µs）"], 9.6e-3, 1.25e6],
  [["two CPU cores (1.06 GB/s, 768 µs)", "两个 CPU 核（1.06 GB/s，768 µs）"], 0.768, 1.06e6],
];
const WORDS = {
  link: ["Link", "连接"],
  computing: ["computing", "计算"],
  forward: ["forward", "前向传播"],
  backward: ["backward", "反向传播"],
  exposed: ["waiting (exposed)", "等待（未被重叠）"],
  "all-reduce": ["all-reduce", "all-reduce"],
  result: [
    "A step takes {step} ms: {computing} ms of computing, then {exposed} ms of exposed communication. " +
      "All all-reduces together take {sum} ms. {n} ranks do the work of {work} (efficiency {percent} %).",
    "一步用时 {step} ms：计算 {computing} ms，然后是未被重叠的通信 {exposed} ms。" +
      "所有 all-reduce 共 {sum} ms。{n} 个 rank 相当于 {work} 个（效率 {percent} %）。",
  ],
};
const inLanguage = (words) => words[Number(document.documentElement.lang.startsWith("zh"))];
const shown = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2));

/** Milliseconds of a ring all-reduce of `bytes` over n ranks; alpha in ms, beta in bytes per ms. */
function ring(n, bytes, alpha, beta) {
  return 2 * (n - 1) * alpha + (2 * (n - 1) * bytes) / n / beta;
}

/** The [start, end] of each bucket's all-reduce: it starts when the bucket is full and the all-reduce
    before it is done. */
function overlapped(full, averaging) {
  let end = 0;
  return full.map((ready, i) => {
    const start = Math.max(end, ready);
    end = start + averaging[i];
    return [start, end];
  });
}

/** What a step is like in which backward fills equal buckets in equal times. */
function describe({ n, bytes, buckets, forward, backward, alpha, beta }) {
  const one = ring(n, bytes / buckets, alpha, beta);
  const parts = Array.from({ length: buckets }, (_, i) => (i + 1) / buckets);
  const full = parts.map((part) => forward + backward * part);
  const bars = overlapped(full, parts.map(() => one));
  const [step, computing] = [bars.at(-1)[1], forward + backward];
  const times = { step, computing, exposed: step - computing, sum: buckets * one };
  const values = { n, percent: ((100 * computing) / step).toFixed(0) };
  for (const [name, ms] of Object.entries(times)) values[name] = shown(ms);
  values.work = shown((n * computing) / step);
  const words = inLanguage(WORDS.result).replaceAll(/\{(\w+)\}/g, (_, name) => values[name]);
  return { bars, step, computing, words };
}

function draw(svg, setting) {
  const { bars, step, computing, words } = describe(setting);
  const box = (kind, [start, end], y) => {
    const [x, width] = [start, Math.max(end - start, 0)].map((ms) => (100 * ms) / step);
    return `<rect class="${kind}" x="${x}%" width="${Math.max(width, 0.1)}%" y="${y}" height="26"/>`;
  };
  svg.innerHTML = `
    <text y="12">${inLanguage(WORDS.computing)}</text>
    ${box("forward", [0, setting.forward], 18)} ${box("backward", [setting.forward, computing], 18)}
    ${box("exposed", [computing, step], 18)} <text y="66">all-reduce</text>
    ${bars.map((bar) => box("all-reduce", bar, 72)).join("")} <text y="122">0 ms</text>
    <text x="100%" y="122" text-anchor="end">${shown(step)} ms</text>`;
  svg.setAttribute("aria-label", words);
  return words;
}

/** A labelled slider -> [element, function that returns its value]. */
function slider([names, unit, value, min, max, valueOf], changed) {
  const row = document.createElement("label");
  row.innerHTML = `<span>${inLanguage(names)}</span><input type="range"><output></output>`;
  const [, input, output] = row.children;
  Object.assign(input, { min, max, value });
  const show = () => {
    output.value = `${valueOf(input.value)} ${unit}`.trim();
    input.setAttribute("aria-valuetext", output.value);
  };
  input.addEventListener("input", () => (show(), changed()));
  show();
  return [row, () => valueOf(input.value)];
}

function build(place) {
  const keys = ["forward", "backward", "exposed", "all-reduce"];
  const options = LINKS.map(([names]) => `<option>${inLanguage(names)}</option>`);
  place.innerHTML = `
    <form><label><span>${inLanguage(WORDS.link)}</span><select>${options.join("")}</select></label></form>
    <svg height="128" role="img"></svg>
    <p class="key">${keys.map((key) => `<span class="${key}">${inLanguage(WORDS[key])}</span>`).join("")}</p>
    <p aria-live="polite"></p>`;
  const [form, svg, , said] = place.children;
  const select = form.querySelector("select");
  const update = () => {
    const setting = Object.fromEntries(sliders.map(([name, [, value]]) => [name, value()]));
    const [, alpha, beta] = LINKS[select.selectedIndex];
    said.textContent = draw(svg, { ...setting, bytes: 1e6 * setting.megabytes, alpha, beta });
  };
  const sliders = Object.entries(SLIDERS).map(([name, of]) => [name, slider(of, update)]);
  form.prepend(...sliders.map(([, [row]]) => row));
  select.selectedIndex = 1;
  select.addEventListener("change", update);
  update();
}

for (const place of document.querySelectorAll(".model")) build(place);
