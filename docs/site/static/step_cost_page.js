// The field below the formula of docs/eight_gpus.md: numbers of the reader, a bar of one step, and
// the efficiency over the numbers of GPUs. step_cost.js computes. The address keeps the numbers.

const COST_MODELS = { "ResNet-50": 25.6, "BERT-large": 335, "GPT-2 small": 124, "1.3 billion": 1300 }; // millions
const COST_LINKS = {
  // GB/s of busbw; the most GPUs that it connects, and the efficiencies of published runs on it
  "NVLink, 8 H200": { busbw: 298, most: 8, published: [0.61, 0.99] },
  "nodes of 8 B200, 8 x 400 Gbit/s": { busbw: 143 },
  "network, 100 Gbit/s": { busbw: 12.5 },
  "PCIe through host memory, say": { busbw: 8.75, most: 8 },
  "Ethernet, 10 Gbit/s": { busbw: 1.25 },
};
const COST_FIELDS = {
  // [value at first, smallest, largest]
  parameters: [335, 0.001, 1e6],
  bytes: [4, 2, 4],
  busbw: [12.5, 0.001, 1e5],
  gpus: [8, 2, 1024],
  forward: [50, 0, 1e6],
  backward: [100, 0.001, 1e6],
  optimizer: [10, 0, 1e6],
};
const COST_NAMES = { parameters: "Millions of parameters", busbw: "GB/s of busbw", gpus: "GPUs" }; // others: as the field
const COST_DOUBLINGS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]; // GPUs

const costOptions = (names) => [...names, "my own"].map((name) => `<option>${name}</option>`).join("");
const costNumber = (name, label, unit) => {
  const [, least, most] = COST_FIELDS[name];
  const limits = `min="${least}" max="${most}" step="${name === "gpus" ? 1 : "any"}" required`;
  return `<input type="number" id="cost-${name}" ${limits} ${label ? `aria-label="${label}"` : ""}> ${unit}`;
};
const COST_FORM = `
  <p class="title" id="cost-title">The formula with your own numbers: a best case</p>
  <form aria-labelledby="cost-title">
    <p><label for="cost-model">Model</label>
      <select id="cost-model">${costOptions(Object.keys(COST_MODELS))}</select>
      <span>${costNumber("parameters", "Millions of parameters", "million parameters")}</span></p>
    <p><label for="cost-bytes">Gradients</label>
      <select id="cost-bytes"><option value="4">fp32, 4 bytes</option><option value="2">bf16, 2 bytes</option></select></p>
    <p><label for="cost-link">Slowest link</label>
      <select id="cost-link">${costOptions(Object.keys(COST_LINKS))}</select>
      <span>${costNumber("busbw", "GB/s of busbw", "GB/s of <code>busbw</code>")}</span></p>
    <p><label for="cost-gpus">GPUs</label>
      ${costNumber("gpus", "", "")}
      <input type="range" id="cost-slider" min="1" max="10" step="0.25" aria-label="GPUs, from 2 to 1,024"></p>
    <p class="times" role="group" aria-labelledby="cost-alone"><span class="name" id="cost-alone">On one GPU</span>
      <label>forward ${costNumber("forward", "", "ms")}</label>
      <label>backward ${costNumber("backward", "", "ms")}</label>
      <label>optimizer ${costNumber("optimizer", "", "ms")}</label></p>
    <p class="wrong" id="cost-wrong" role="status"></p>
  </form>
  <div class="says" role="status"><p></p><p></p></div>
  <div class="bar" role="img"></div>
  <p class="legend"></p>
  <div class="curve" role="img"></div>
  <p class="legend lines">
    <span><svg width="22" height="14" aria-hidden="true"><path class="weak" d="M0 7H22"/></svg> weak scaling: the same batch per GPU</span>
    <span><svg width="22" height="14" aria-hidden="true"><path class="strong" d="M0 7H22"/></svg> strong scaling: the batch of one GPU, split</span>
    <span class="only-published"><svg width="22" height="14" aria-hidden="true"><rect class="published" width="22" height="14"/></svg> published runs on NVLink, weak scaling</span>
  </p>
  <details><summary>Speedup and efficiency as a table</summary>
    <table><thead></thead><tbody></tbody></table></details>
  <p class="about">This is a best case from bytes and bandwidth. It assumes ranks that are equally fast, an all-reduce
    without latency, and half the batch in half the time. It is not measured here, so <a
    href="reading_timings.html#where-a-step-goes">measure your own</a>. Published runs lose more: a fuller model
    predicted 97 to 100 % for eleven of them, and <a
    href="at_scale.html#how-many-gpus-strong-and-weak-scaling">they reached 61 to 99 %</a>. NVLink's and B200's
    <code>busbw</code> was <a href="reading_timings.html#measure-the-links-with-nccl-tests">measured by others</a> at
    32 MiB, that of networks is their full line rate, and that of PCIe is the example above. <a
    href="reading_timings.html#measure-the-links-with-nccl-tests" class="whole">algbw is busbw x N / (2(N - 1))</a>. The first
    bucket has 1 MiB and the last 25 MiB, or the whole model if it is smaller.</p>`;

class CostPage {
  constructor(root) {
    root.innerHTML = COST_FORM;
    this.root = root;
    const find = (css) => root.querySelector(css);
    this.fields = Object.fromEntries(Object.keys(COST_FIELDS).map((name) => [name, find(`#cost-${name}`)]));
    [this.model, this.link, this.slider] = ["model", "link", "slider"].map((name) => find(`#cost-${name}`));
    [this.says, this.more] = root.querySelectorAll(".says p");
    [this.bar, this.curve, this.key, this.known] = [".bar", ".curve", ".legend", ".only-published"].map(find);
    this.wrong = find(".wrong");
    [this.head, this.rows] = ["thead", "tbody"].map(find);
    this.readAddress();
    this.show();
    for (const type of ["input", "change"]) // a program may set a menu with the second one only
      root.addEventListener(type, (event) => this.changed(event.target));
    find("form").addEventListener("submit", (event) => event.preventDefault()); // Enter
    new ResizeObserver(() => this.draw()).observe(this.bar);
  }

  /** The numbers in the address, and those that the page begins with. */
  readAddress() {
    const given = new URLSearchParams(location.search);
    for (const [name, [first]] of Object.entries(COST_FIELDS)) {
      const field = this.fields[name];
      field.value = given.get(name) ?? first;
      if (!field.value || !field.validity.valid) field.value = first;
    }
  }

  changed(field) {
    const { parameters, busbw, gpus } = this.fields;
    if (field === this.model) parameters.value = COST_MODELS[field.value] ?? parameters.value;
    if (field === this.link) busbw.value = COST_LINKS[field.value]?.busbw ?? busbw.value;
    if (field === this.slider) gpus.value = Math.round(2 ** field.value);
    this.show(field);
    if (!this.wrong.textContent) this.writeAddress();
  }

  /** So that a link to this page, or a reload, shows these numbers. */
  writeAddress() {
    const address = new URL(location.href);
    for (const [name, field] of Object.entries(this.fields)) address.searchParams.set(name, field.value);
    address.hash = "step-cost";
    history.replaceState(null, "", address);
  }

  /** What the fields say, in seconds and bytes; null if one of them says nothing that can be. */
  read() {
    const fields = Object.entries(this.fields);
    for (const [, field] of fields) field.setAttribute("aria-invalid", !field.validity.valid);
    if (fields.some(([, field]) => !field.validity.valid)) return null;
    const given = Object.fromEntries(fields.map(([name, field]) => [name, Number(field.value)]));
    return {
      gradients: given.parameters * 1e6 * given.bytes,
      busbw: given.busbw * 1e9,
      ranks: given.gpus,
      forward: given.forward / 1e3,
      backward: given.backward / 1e3,
      optimizer: given.optimizer / 1e3,
    };
  }

  /** Below the first field without a number that can be, over what is there, so that nothing moves. */
  tellWhatIsWrong() {
    const names = Object.keys(this.fields);
    for (const name of names) this.fields[name].removeAttribute("aria-describedby");
    const name = names.find((one) => !this.fields[one].validity.valid);
    this.root.classList.toggle("is-earlier", Boolean(name));
    if (!name) {
      this.wrong.textContent = "";
      return;
    }
    const [field, [, least, most]] = [this.fields[name], COST_FIELDS[name]];
    const number = name === "gpus" ? "a whole number, " : "";
    this.wrong.textContent = `${COST_NAMES[name] ?? name}: ${number}${least} to ${most.toLocaleString("en-US")}`;
    field.setAttribute("aria-describedby", "cost-wrong");
    const [own, form] = [field, field.form].map((one) => one.getBoundingClientRect());
    const left = Math.min(own.left - form.left, form.width - this.wrong.offsetWidth);
    Object.assign(this.wrong.style, { top: `${own.bottom - form.top + 1}px`, left: `${Math.max(0, left)}px` });
  }

  show(moved) {
    const setting = this.read();
    this.tellWhatIsWrong();
    if (!setting) return; // the last result stays
    this.setting = setting;
    const { parameters, busbw, gpus } = this.fields;
    const own = (names, is) => Object.keys(names).find((name) => is(names[name])) ?? "my own";
    if (moved !== this.model) this.model.value = own(COST_MODELS, (number) => number === Number(parameters.value));
    if (moved !== this.link) this.link.value = own(COST_LINKS, (one) => one.busbw === Number(busbw.value));
    if (moved !== this.slider) this.slider.value = Math.log2(gpus.value);
    this.slider.setAttribute("aria-valuetext", `${gpus.value} GPUs`);
    const { most = Infinity, published } = COST_LINKS[this.link.value] ?? {};
    Object.assign(this, { most, published });
    this.known.hidden = !published;
    [this.says.textContent, this.more.textContent] = this.sentences();
    this.table();
    this.draw();
  }

  sentences() {
    const { ranks, forward, backward, optimizer } = this.setting;
    const { allReduces, hidden, exposed, step } = StepCost.stepCost(this.setting);
    const alone = forward + backward + optimizer;
    const times = StepCost.speedup(this.setting);
    const result =
      `A step of ${ranks} GPUs takes ${costTime(step)}, and a step of one GPU ${costTime(alone)}. In the best case they are ` +
      `${costShort(times)} times as fast as one GPU, which is an efficiency of ${costShare(times / ranks)}.`;
    const far = `This link connects at most ${this.most} GPUs. For ${ranks} GPUs choose the network between their nodes.`;
    return [
      ranks > this.most ? far : result,
      `T is ${costTime(allReduces)}. Backward hides ${costTime(hidden)} of it, and ${costTime(exposed)} is exposed.`,
    ];
  }

  efficiencies() {
    const counts = COST_DOUBLINGS.filter((ranks) => ranks <= this.most);
    return counts.map((ranks) => {
      const at = { ...this.setting, ranks };
      return [ranks, StepCost.speedup(at), StepCost.speedup(at, true)];
    });
  }

  table() {
    const row = (tag, cells) => `<tr>${cells.map((cell) => `<${tag}>${cell}</${tag.split(" ")[0]}>`).join("")}</tr>`;
    this.head.innerHTML = row('th scope="col"', ["GPUs", "weak: speedup (efficiency)", "strong: speedup (efficiency)"]);
    const rows = this.efficiencies().map(([ranks, ...both]) => {
      const cells = both.map((times) => `${costShort(times)} (${costShare(times / ranks)})`);
      return row("td", [ranks.toLocaleString("en-US"), ...cells]);
    });
    this.rows.innerHTML = rows.join("");
  }

  draw() {
    const width = Math.floor(this.bar.clientWidth);
    if (!width || !this.setting) return;
    this.bar.innerHTML = this.barPicture(width);
    this.bar.ariaLabel = `The step as a bar. ${this.says.textContent} ${this.more.textContent}`;
    this.curve.innerHTML = this.curvePicture(Math.min(width, 640));
    const ends = this.efficiencies();
    const [last, weak, strong] = ends.at(-1);
    this.curve.ariaLabel =
      `Efficiency over 2 to ${last} GPUs. Weak scaling falls from ${costShare(ends[0][1] / 2)} to ` +
      `${costShare(weak / last)}, strong scaling from ${costShare(ends[0][2] / 2)} to ${costShare(strong / last)}.`;
  }

  /** A step of all ranks: what a GPU does, and below it the all-reduces. */
  barPicture(width) {
    const { forward, backward } = this.setting;
    const { allReduces, exposed, step } = StepCost.stepCost(this.setting);
    const x = (time) => (time / step) * (width - 1);
    const computed = forward + backward;
    const bars = [
      ["forward", 0, forward, 18],
      ["backward", forward, computed, 18],
      ["exposed", computed, computed + exposed, 18],
      ["optimizer", computed + exposed, step, 18],
      ["all-reduce", computed + exposed - allReduces, computed + exposed, 66],
    ];
    const boxes = bars.map(([what, from, to, y]) => {
      const [left, wide] = [x(from), to > from ? Math.max(1.5, x(to) - x(from)) : 0];
      const fill = what === "exposed" ? "url(#cost-exposed)" : `var(--${what})`;
      const box = `<rect x="${left}" y="${y}" width="${wide}" height="26" rx="2" style="fill: ${fill}"/>`;
      const name = what === "all-reduce" ? "all-reduces" : what;
      const words = [`${name} ${costTime(to - from)}`, costTime(to - from)].find((text) => 7 * text.length + 8 < wide);
      const look = `style="fill: var(--on-${what}); stroke: var(--${what})"`;
      const place = `x="${left + wide / 2}" y="${y + 17}"`;
      const striped = what === "exposed" ? " striped" : "";
      if (!words) return box;
      // No stripes behind the words: a striped word looks struck out.
      const plain = 7 * words.length + 6;
      const ground = `<rect x="${left + (wide - plain) / 2}" y="${y}" width="${plain}" height="26" style="fill: var(--${what})"/>`;
      return `${box}${striped && ground}<text class="inside${striped}" ${place} ${look}>${words}</text>`;
    });
    this.key.innerHTML = bars
      .map(([what, from, to]) => {
        const fill = what === "exposed" ? "url(#cost-exposed)" : `var(--${what})`;
        const name = what === "all-reduce" ? "all-reduces, T" : what;
        return `<span><svg width="22" height="14" aria-hidden="true"><rect width="22" height="14" rx="2" style="fill: ${fill}"/></svg> ${name} ${costTime(to - from)}</span>`;
      })
      .join(" ");
    return `<svg class="picture" height="96" aria-hidden="true">
      <defs><pattern id="cost-exposed" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
        <rect width="7" height="7" style="fill: var(--exposed)"/>
        <rect width="2.5" height="7" style="fill: var(--exposed-stripe)"/></pattern></defs>
      <text x="0" y="12" class="quiet">each of ${this.setting.ranks} GPUs</text>
      <text x="${width}" y="12" class="quiet end">${costTime(step)}</text>
      <text x="0" y="60" class="quiet">communication at the same time</text>
      ${boxes.join("")}</svg>`;
  }

  curvePicture(width) {
    const [left, right, top, bottom] = [44, 12, 22, 152];
    const most = Math.min(this.most, 1024);
    const x = (ranks) => left + (Math.log2(ranks / 2) / Math.log2(most / 2)) * (width - left - right);
    const y = (share) => bottom - share * (bottom - top);
    const rows = this.efficiencies();
    const line = (name, place) => {
      const points = rows.map((row) => `${x(row[0])} ${y(row[place] / row[0])}`);
      const dots = points.map((point) => `<path class="${name} dot" d="M${point}h0"/>`);
      return `<path class="${name}" d="M${points.join("L")}"/>${dots.join("")}`;
    };
    const levels = [0, 0.5, 1].map(
      (share) =>
        `<path class="grid" d="M${left} ${y(share)}H${width - right}"/>
         <text class="quiet end" x="${left - 6}" y="${y(share) + 4}">${100 * share} %</text>`,
    );
    const counts = rows.map(([ranks], i) =>
      width < 400 && rows.length > 5 && i % 2 === 0
        ? ""
        : `<text class="quiet middle" x="${x(ranks) - (ranks === 1024 ? 4 : 0)}" y="${bottom + 17}">${ranks}</text>`,
    );
    const [least, best] = this.published ?? [];
    const size = best && `width="${width - left - right}" height="${y(least) - y(best)}"`;
    const { ranks } = this.setting;
    return `<svg class="picture" style="width: ${width}px" height="190" aria-hidden="true">
      ${best ? `<rect class="published" x="${left}" y="${y(best)}" ${size}/>` : ""}
      ${levels.join("")}${counts.join("")}
      <text class="quiet end" x="${width - right}" y="${bottom + 34}">GPUs</text>
      <text x="0" y="12" class="quiet">efficiency</text>
      <path class="now" d="${ranks > most ? "" : `M${x(ranks)} ${top}V${bottom}`}"/>
      ${line("strong", 2)}${line("weak", 1)}</svg>`;
  }
}

/** Seconds as text */
function costTime(seconds) {
  return `${costShort(1e3 * seconds)} ms`;
}

/** With three digits, and all digits before the point */
function costShort(number) {
  const rounded = number >= 100 ? Math.round(number) : Number(number.toPrecision(3));
  return rounded.toLocaleString("en-US", { maximumSignificantDigits: 21 });
}

/** In per cent: 0.5, 65, 99.9 */
function costShare(part) {
  const digits = part < 0.0995 || part >= 0.995 ? 1 : 0;
  return `${(100 * part).toFixed(digits)} %`;
}

for (const root of document.querySelectorAll(".step-cost")) new CostPage(root);
