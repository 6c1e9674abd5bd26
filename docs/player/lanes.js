/* What a lane shows is told by a label, and where nothing is computed by a pattern, whose stripes
   have this angle. */
const PATTERNS = { exposed: 45, waits: 45, wait: 45, slow: 0, error: 90, gone: 135 };
const STEP = "data forward backward gradient waits all-reduce exposed optimizer";
const KEYS = `${STEP} busy send receive compute wait slow error gone`.split(" ");

/** The picture of a step, a failure or a comparison: a lane per rank and per bucket.

    All of it is drawn once; what comes after the present moment is behind a pale cover, or, if its
    reader is to guess, behind one through which nothing is seen. */
export class Lanes {
  constructor(recording, events) {
    Object.assign(this, { recording, events, end: recording.end, timed: timed(recording) });
    this.svg = svg("svg", { "aria-hidden": "true", class: "picture lanes" });
    this.rows = recording.ranks.flatMap((rank) => this.rowsOf(rank));
    this.gradients = events.filter((event) => event.what === "gradient");
    const times = new Set([0, ...events.map(({ at }) => at), this.end]);
    this.places = [...times].sort((a, b) => a - b).map((at, i) => [at, i]);
  }

  rowsOf({ rank, spans, buckets = [] }) {
    const first = {
      key: `${rank}`,
      rank,
      bars: spans.flatMap((span) => (span.what === "exposed" ? waitThenSend(span, buckets) : [span])),
      height: 26,
      label: say("rank", { rank }),
      begins: true,
    };
    const others = buckets.map(({ bucket, left, joined, arrived, parameters, bytes }) => ({
      bucket: { bytes: figure(bytes), parameters: parameters.join(", ") },
      key: `${rank}/${bucket}`,
      rank,
      height: 16,
      label: say("bucket", { bucket, all: parameters.length }),
      bars: [
        { what: "waits", from: left, to: joined },
        { what: "all-reduce", from: joined, to: arrived },
      ],
    }));
    return [first, ...others];
  }

  legend() {
    const bars = this.rows.flatMap((row) => row.bars).filter((bar) => bar.to > bar.from);
    const used = new Set(bars.map((bar) => bar.what));
    if (this.gradients.length) used.add("gradient");
    return KEYS.filter((what) => used.has(what)).map((what) => {
      const sample =
        what === "gradient"
          ? svg("path", { d: "M11 0V14", class: "tick" })
          : rect(0, 0, 22, 14, { rx: 2, style: this.fill(what) });
      const picture = svg("svg", { width: 22, height: 14, "aria-hidden": "true" }, sample);
      return html("span", {}, picture, ` ${say(`key-${what}`)}`);
    });
  }

  fill(what) {
    return `fill: ${what in PATTERNS ? `url(#player-${what})` : `var(--${what})`}`;
  }

  patterns() {
    return Object.entries(PATTERNS).map(([what, angle]) => {
      const size = { width: 7, height: 7, patternUnits: "userSpaceOnUse" };
      const look = { id: `player-${what}`, patternTransform: `rotate(${angle})` };
      const paper = rect(0, 0, 7, 7, { style: `fill: var(--${what})` });
      const stripe = rect(0, 0, 2.5, 7, { style: `fill: var(--${what}-stripe)` });
      return svg("pattern", { ...size, ...look }, paper, stripe);
    });
  }

  /** Where the times of a step are not those of its ranks, each event is equally far from the next. */
  x(at) {
    const order = this.recording.kind === "step" && !this.timed;
    const part = order ? between(this.places, at) / (this.places.length - 1) : at / this.end;
    return this.left + part * this.width;
  }

  /** Draw everything again, for a picture of this many pixels. */
  layout(pixels) {
    const narrow = pixels < 560; // then labels stand above the lanes
    const flags = this.recording.kind === "failure"; // they stand there, too
    this.left = narrow ? 2 : flags ? 84 : 156;
    this.width = pixels - this.left - 10; // so much room the mark of the present moment needs
    this.height = 4;
    const labels = this.rows.flatMap((row, i) => this.label(row, i, narrow, flags));
    const cover = this.recording.veiled ? "cover veil" : "cover";
    this.cover = rect(0, 0, 0, this.height, { class: cover });
    this.flagged = this.flags();
    this.now = svg("path", { class: "now" });
    this.ring = svg("circle", { r: 8, class: "ring" });
    this.svg.replaceChildren(
      svg("defs", {}, ...this.patterns()),
      ...this.rows.flatMap((row) => row.bars.flatMap((bar) => this.bar(row, bar))),
      ...this.ticks(),
      this.cover,
      ...this.flagged.map(({ group }) => group),
      ...labels,
      this.now,
      this.ring,
    );
    this.svg.setAttribute("height", this.height + 8);
  }

  /** Gives a row its place below the one before, and its label. */
  label(row, i, narrow, flags) {
    const gap = i && (parseInt(row.rank, 10) ? 6 : 18); // above the second of two recordings
    this.fingers = narrow && flags; // its name becomes a button, for which there is room
    if (row.begins) this.height += gap + (this.fingers ? 16 : narrow ? 8 : flags ? 16 : 0);
    const meets = flags && this.events.some(({ flag, at }) => flag && this.x(at) < 64);
    const above = meets ? 26 : flags ? 12 : 5; // a flag near the left edge stands below the label
    if (narrow) this.height += above + 13;
    row.y = this.height;
    this.height += row.height + 4;
    const y = row.y + (narrow ? -above : row.height / 2 + 4);
    const place = { x: 2, y, class: row.begins ? "rank" : "quiet" };
    row.words = svg("text", place, row.label);
    return [row.words];
  }

  bar(row, { what, from, to, word }) {
    if (to <= from) return [];
    const [x, width] = [this.x(from), Math.max(1.5, this.x(to) - this.x(from))];
    const box = rect(x, row.y, width, row.height, { rx: 2, style: this.fill(what) });
    const name = word ?? say(`bar-${what}`);
    const words = row.begins && this.timed ? [`${name} ${clock(to - from, this.end, 2)}`] : [];
    const fits = (text) => (LANGUAGE ? 12 : 6.5) * text.length + 8 < width;
    const inside = [...words, name].find(fits);
    if (!inside) return [box];
    // No stripes behind the words: a striped word looks struck out.
    const plain = (LANGUAGE ? 12 : 7) * inside.length + 6;
    const style = `fill: var(--${what})`;
    const ground = rect(x + (width - plain) / 2, row.y, plain, row.height, { style });
    const below = what in PATTERNS && plain < width ? [ground] : [];
    const look = {
      class: `inside ${what in PATTERNS ? "striped" : ""}`,
      style: `fill: var(--on-${what}); stroke: var(--${what})`,
    };
    const place = { x: x + width / 2, y: row.y + row.height / 2 + 4 };
    return [box, ...below, svg("text", { ...place, ...look }, inside)];
  }

  /** A numbered flag for each message, death or exit. */
  flags() {
    const ends = {}; // by row: where the flags behind this one begin
    const marks = this.events.filter((event) => event.flag);
    return marks.toReversed().map((event) => {
      const { row: key, at, flag } = event;
      const { y, height } = this.row(key);
      const x = Math.min(this.x(at), (ends[key] ?? this.left + this.width + 11) - 20);
      ends[key] = x;
      const style = "fill: var(--paper)";
      const group = svg(
        "g",
        {},
        svg("path", { d: `M${x} ${y - 4}L${this.x(at)} ${y}v${height}`, class: "tick" }),
        svg("circle", { cx: x, cy: y - 11, r: 8.5, class: "flag" }),
        svg("text", { x, y: y - 7, class: "inside", style }, flag),
      );
      return { event, group };
    });
  }

  /** A line for each gradient, in the row of its bucket. */
  ticks() {
    return this.gradients.map(({ row, at }) => {
      const { y, height } = this.row(row);
      return svg("path", { d: `M${this.x(at)} ${y - 1}v${height + 2}`, class: "tick" });
    });
  }

  row(key) {
    return this.rows.find((row) => row.key === key);
  }

  /** The time at a place of the picture: the inverse of x(). */
  timeAt(x) {
    const [first, last] = [this.x(0), this.x(this.end)];
    if (x >= last) return this.end;
    if (x <= first) return -1;
    let [from, to] = [0, this.end];
    while (to - from > 0.5) {
      const middle = (from + to) / 2;
      if (this.x(middle) <= x) from = middle;
      else to = middle;
    }
    return from;
  }

  /** What is under the pointer: a gradient, or a bar with its bucket. */
  describe(x, y) {
    const row = this.rows.find((one) => y >= one.y && y <= one.y + one.height);
    if (!row || (this.recording.veiled && x > this.x(this.present))) return "";
    const isNear = (event) => event.row === row.key && Math.abs(this.x(event.at) - x) < 3;
    const gradient = this.gradients.find(isNear);
    if (gradient) return gradient.text;
    const bar = row.bars.find(({ from, to }) => from < to && this.x(from) <= x && x <= this.x(to));
    if (!bar) return "";
    const time = this.timed ? `, ${clock(bar.to - bar.from, this.end)}` : "";
    const note = bar.text ? ` (${bar.text})` : "";
    const bucket = row.bucket ? `; ${say("tip-bucket", row.bucket)}` : "";
    return `${row.label}: ${say(`key-${bar.what}`)}${note}${time}${bucket}`;
  }

  /** Where the name of a rank stands. */
  nameOf(rank) {
    const row = this.rows.find((one) => one.begins && one.rank === rank);
    const y = Number(row.words.getAttribute("y"));
    return this.fingers ? { top: y - 35, height: 44 } : { top: y - 17, height: 26 };
  }

  /** What the horizontal direction means, above the picture. */
  axis() {
    const { of = this.timed ? "time" : "order" } = this.recording;
    return say(`axis-${of}`, { end: clock(this.end, this.end, 1) });
  }

  draw(step, now) {
    const past = this.events.slice(0, step).filter(({ label }) => label);
    for (const { key, label, words } of this.rows)
      words.textContent = past.findLast(({ row }) => row === key)?.label ?? label;
    const isPast = new Set(this.events.slice(0, step));
    for (const { event, group } of this.flagged) {
      const later = !isPast.has(event);
      group.setAttribute("visibility", later && this.recording.veiled ? "hidden" : "visible");
      group.setAttribute("opacity", later && (step || now) ? 0.4 : 1); // at rest all are seen
    }
    const covers = step || now || this.recording.veiled; // at rest: in colour
    this.cover.setAttribute("visibility", covers ? "visible" : "hidden");
    this.present = now;
    this.cover.setAttribute("x", this.x(now) + 1);
    this.cover.setAttribute("width", this.left + this.width + 8 - this.x(now));
    this.now.setAttribute("d", this.line(this.x(now)));
    const event = this.events[step - 1];
    this.ring.setAttribute("visibility", event ? "visible" : "hidden");
    if (!event) return;
    const row = this.row(event.row);
    this.ring.setAttribute("cx", this.x(event.at));
    this.ring.setAttribute("cy", row.y + row.height / 2);
  }

  /** The present moment: a line, which does not cross labels that stand above the lanes. */
  line(x) {
    if (this.left > 2) return `M${x} 0V${this.height + 4}`;
    return this.rows.map(({ y, height }) => `M${x} ${y - 2}v${height + 4}`).join("");
  }

  /** What the flags mean, below the picture. */
  notes() {
    const marks = this.events.filter((event) => event.flag);
    return marks.map(({ at, text }) => html("li", {}, `${clock(at, this.end)}, ${text}`));
  }
}

/** What is exposed is waiting for a slower rank, and then for the all-reduces themselves. */
function waitThenSend({ from, to }, buckets) {
  const joined = Math.max(...buckets.map((bucket) => bucket.joined));
  const sends = Math.min(to, Math.max(from, joined));
  return [
    { what: "waits", from, to: sends },
    { what: "exposed", from: sends, to },
  ];
}
