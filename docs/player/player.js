/* Plays recordings of real data-parallel runs: steps of DDP, all-reduces, failures.

   Each <div class="player" data-recording="NAME"> of a page becomes a player. On a page that has one,
   this script loads player.css and recordings.js, which lie beside it. recordings.js sets
   window.recordings = {"index.json": [...], "NAME.json": {...}, ...}; the build of the site writes it
   from docs/player/recordings/. tools/record.py makes the recordings and describes their format.

   In this order: helpers; checking a recording; its events, in words; the picture with a lane per
   rank; the picture of an all-reduce; the player around a picture; the page. */

"use strict";

(() => {
  const SCRIPT = document.currentScript.src;

  // ---------------------------------------------------------------------------------- helpers

  /** A function (tag, attributes, ...children) -> element. A function as attribute is a listener. */
  function maker(namespace) {
    return (tag, attributes = {}, ...children) => {
      const element = document.createElementNS(namespace, tag);
      for (const [name, value] of Object.entries(attributes)) {
        if (typeof value === "function") element.addEventListener(name, value);
        else if (value !== false) element.setAttribute(name, value);
      }
      element.append(...children);
      return element;
    };
  }

  const html = maker("http://www.w3.org/1999/xhtml");
  const svg = maker("http://www.w3.org/2000/svg");

  const figure = (count) => count.toLocaleString("en-US");
  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  const percent = (part, whole) => `${Math.round((100 * part) / (whole || 1))}\u00a0%`;
  const range = (count) => [...Array(count).keys()];

  /** Microseconds as text, in the unit that suits a recording of this length. */
  function clock(microseconds, end, digits = 3) {
    const [divisor, unit] = end < 1e6 ? [1e3, "ms"] : [1e6, "s"];
    return `${(microseconds / divisor).toFixed(digits)} ${unit}`;
  }

  /** [1, 0, 1, 1] -> "ranks 0, 2 and 3": whose vectors are in a chunk. */
  function whose(contents) {
    if (contents.every((times) => times)) return "all ranks";
    const ranks = range(contents.length).filter((rank) => contents[rank]);
    if (ranks.length === 1) return `rank ${ranks[0]}`;
    return `ranks ${ranks.slice(0, -1).join(", ")} and ${ranks.at(-1)}`;
  }

  // ---------------------------------------------------------------------------------- a recording

  /** Throws an Error that says what is wrong, if the player could not show this recording. */
  function check(recording) {
    const need = (right, what) => {
      if (!right) throw new Error(what);
    };
    const { format, kind, end, ranks, messages = [] } = recording;
    const inside = (...times) => times.every((at) => at >= 0 && at <= end);
    need(format === 1, `its format is ${format}, this player knows 1`);
    need(kind in EVENTS, `its kind is ${kind}`);
    need(end > 0, "end is not a number of microseconds");
    need(ranks?.length, "it has no ranks");
    for (const { rank, spans, marks, buckets = [] } of ranks) {
      need(
        spans.every((span) => inside(span.from, span.to)),
        `a span of rank ${rank} has no time`,
      );
      need(
        marks.every((mark) => inside(mark.at)),
        `a mark of rank ${rank} has no time`,
      );
      for (const { bucket, left, joined, arrived } of buckets) {
        need(inside(left, joined, arrived), `bucket ${bucket} of rank ${rank} has no time`);
        need(
          left <= joined && joined <= arrived,
          `bucket ${bucket} of rank ${rank} arrives before it leaves`,
        );
      }
    }
    for (const { from, to, sent, received, contents } of messages) {
      need(
        from in ranks && to in ranks && contents.length === ranks.length,
        "a message is of no rank",
      );
      need(inside(sent, received) && sent <= received, "a message is received before it is sent");
    }
  }

  // ---------------------------------------------------------------------------------- events, in words

  /* An event is {at, what, text, row}, and what its picture needs besides. Step k of a player is the
     state after the first k events. ORDER is for events of the same microsecond. */
  const ORDER = { arrived: 0, received: 0, gradient: 1, left: 2, mark: 2, sent: 2, span: 3 };
  const EVENTS = { step: stepEvents, all_reduce: allReduceEvents, failure: failureEvents };

  const SPANS = {
    data: ": data, the rank takes its part of the batch",
    forward: ": forward begins",
    backward: ": backward begins",
    exposed: ": all gradients are computed; from here on backward only waits for buckets (exposed)",
    optimizer: ": the optimizer begins",
    compute: " computes",
    wait: " waits for the other ranks",
    slow: " is slow",
    error: " has failed",
    gone: " no longer takes part",
  };
  const MARKS = { dies: "dies", leaves: "leaves", error: "gets an error", exit: "ends" };

  function eventsOf(recording) {
    const events = EVENTS[recording.kind](recording);
    return events.sort((a, b) => a.at - b.at || ORDER[a.what] - ORDER[b.what]);
  }

  function spanEvents({ rank, spans }) {
    return spans.map(({ what, from, text }) => ({
      at: from,
      what: "span",
      row: `${rank}`,
      text: `rank ${rank}${SPANS[what] || ` ${what}`}${text ? ` (${text})` : ""}`,
    }));
  }

  function stepEvents({ ranks, end }) {
    return ranks.flatMap((of) => {
      const text = `rank ${of.rank}: the step is finished`;
      const last = { at: of.spans.at(-1).to, what: "span", row: `${of.rank}`, text };
      return [
        ...spanEvents(of),
        last,
        ...of.buckets.flatMap((bucket) => bucketEvents(of, bucket, end)),
      ];
    });
  }

  function bucketEvents({ rank, marks }, { bucket, left, joined, arrived, bytes }, end) {
    const [name, row] = [`bucket ${bucket}`, `${rank}/${bucket}`];
    const wait = clock(joined - left, end);
    const others = joined > left ? `, and waits ${wait} for the last rank` : "; no rank is missing";
    const travel = clock(arrived - left, end);
    const gradients = marks.filter((mark) => mark.bucket === bucket).sort((a, b) => a.at - b.at);
    const ready = gradients.map(({ at, parameter }, i) => {
      const count = `${i + 1} of ${gradients.length}`;
      const text = `the gradient of ${parameter} is ready; ${name} now has ${count}`;
      return { at, what: "gradient", row, label: `${name}: ${count} ready`, text };
    });
    const starts = {
      at: left,
      what: "left",
      row,
      label: `${name}: all-reduce`,
      text: `${name} is full (${figure(bytes)} bytes); its all-reduce starts${others}`,
    };
    const done = {
      at: arrived,
      what: "arrived",
      row,
      label: `${name}: averaged`,
      text: `${name} is averaged, ${travel} after its all-reduce started`,
    };
    const events = [...ready, starts, done];
    return events.map((event) => ({ ...event, text: `rank ${rank}: ${event.text}` }));
  }

  function allReduceEvents({ messages, chunks }) {
    return messages.flatMap((message) => {
      const { from, to, chunk, phase, contents, sent, received, bytes } = message;
      const what = chunks.length > 1 ? `chunk ${chunk}` : "the vector";
      const adds = phase.startsWith("reduce");
      const inIt = `${figure(bytes)} bytes with the sum of ${whose(contents)}`;
      const then = adds ? "adds it to its own" : "keeps it";
      return [
        {
          message,
          adds,
          at: sent,
          what: "sent",
          text: `${phase}: rank ${from} sends ${what} to rank ${to}, ${inIt}`,
        },
        {
          message,
          adds,
          at: received,
          what: "received",
          text: `${phase}: rank ${to} has received ${what} from rank ${from} and ${then}`,
        },
      ];
    });
  }

  function failureEvents({ ranks }) {
    const marks = ranks.flatMap(({ rank, marks }) =>
      marks.map(({ at, what, text }) => ({
        at,
        what: "mark",
        row: `${rank}`,
        text: `rank ${rank} ${MARKS[what] || what}: ${text}`,
      })),
    );
    marks.sort((a, b) => a.at - b.at).forEach((mark, i) => (mark.flag = i + 1));
    return [...ranks.flatMap(spanEvents), ...marks];
  }

  // ---------------------------------------------------------------------------------- lanes

  /* What a lane shows is told by a label, and where nothing is computed by a pattern, whose stripes
     have this angle. */
  const PATTERNS = { exposed: 45, waits: 45, wait: 45, slow: 0, error: 90, gone: 135 };
  const LEGEND = {
    data: "data",
    forward: "forward",
    backward: "backward",
    gradient: "a gradient is ready",
    waits: "bucket waits for the last rank",
    "all-reduce": "all-reduce of a bucket",
    exposed: "exposed: only waits for buckets",
    optimizer: "optimizer",
    compute: "computes",
    wait: "waits",
    slow: "is slow",
    error: "has failed",
    gone: "no longer takes part",
  };

  /** The picture of a step or a failure: time goes to the right, a lane per rank and per bucket.

      Everything is drawn once, faint; what has happened is drawn again on top of it, cut off at the
      present moment. */
  class Lanes {
    constructor(recording, events, id) {
      Object.assign(this, { recording, events, id, end: recording.end });
      this.svg = svg("svg", { "aria-hidden": "true", class: "picture lanes" });
      this.rows = recording.ranks.flatMap((rank) => this.rowsOf(rank));
    }

    rowsOf({ rank, spans, buckets = [] }) {
      const first = {
        key: `${rank}`,
        rank,
        bars: spans,
        height: 26,
        label: `rank ${rank}`,
        begins: true,
      };
      const others = buckets.map(({ bucket, left, joined, arrived, parameters }) => ({
        key: `${rank}/${bucket}`,
        rank,
        height: 16,
        label: `bucket ${bucket}: 0 of ${parameters.length} ready`,
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
      if (this.recording.kind === "step") used.add("gradient");
      const parts = Object.keys(LEGEND)
        .filter((what) => used.has(what))
        .map((what) => {
          const sample =
            what === "gradient"
              ? svg("path", { d: "M11 0V14", class: "tick" })
              : svg("rect", { width: 22, height: 14, rx: 2, style: this.fill(what) });
          return html(
            "span",
            {},
            svg("svg", { width: 22, height: 14, "aria-hidden": "true" }, sample),
            ` ${LEGEND[what]}`,
          );
        });
      return parts;
    }

    fill(what) {
      return `fill: ${what in PATTERNS ? `url(#${this.id}-${what})` : `var(--${what})`}`;
    }

    patterns() {
      return Object.entries(PATTERNS).map(([what, angle]) => {
        const size = { width: 7, height: 7 };
        const place = { patternUnits: "userSpaceOnUse", patternTransform: `rotate(${angle})` };
        return svg(
          "pattern",
          { id: `${this.id}-${what}`, ...size, ...place },
          svg("rect", { ...size, style: `fill: var(--${what})` }),
          svg("rect", { width: 2.5, height: 7, style: `fill: var(--${what}-stripe)` }),
        );
      });
    }

    x(at) {
      return this.left + (at / this.end) * this.width;
    }

    /** Draw everything anew, for a picture of this many pixels. */
    layout(pixels) {
      const narrow = pixels < 560; // then labels stand above the lanes
      this.left = narrow ? 2 : this.recording.kind === "step" ? 156 : 84;
      this.width = pixels - this.left - 8;
      this.height = 4;
      const labels = this.rows.flatMap((row, i) => this.label(row, i, narrow));
      const scene = () => [
        ...this.rows.flatMap((row) => row.bars.flatMap((bar) => this.bar(row, bar))),
        ...this.ticks(),
      ];
      this.later = this.above();
      this.past = svg("rect", { height: this.height });
      this.now = svg("path", { class: "now" });
      this.ring = svg("circle", { r: 8, class: "ring" });
      this.svg.replaceChildren(
        svg("defs", {}, ...this.patterns(), svg("clipPath", { id: `${this.id}-past` }, this.past)),
        this.axis(),
        svg("g", { class: "future" }, ...scene()),
        svg("g", { "clip-path": `url(#${this.id}-past)` }, ...scene()),
        ...labels,
        this.now,
        ...this.later.flatMap((one) => one.nodes),
        this.ring,
      );
      this.svg.setAttribute("height", this.height + 26);
    }

    /** Gives a row its place below the one before, and its label. */
    label(row, i, narrow) {
      if (row.begins) this.height += (i ? 6 : 0) + (narrow ? 8 : 16);
      const above = this.recording.kind === "failure" ? 26 : 5; // there flags stand between
      if (narrow) this.height += above + 13;
      row.y = this.height;
      this.height += row.height + 4;
      const y = row.y + (narrow ? -above : row.height / 2 + 4);
      row.words = svg(
        "text",
        { x: row.begins ? 18 : 2, y, class: row.begins ? "rank" : "quiet" },
        row.label,
      );
      return row.begins ? [chip(2, y - 10, row.rank), row.words] : [row.words];
    }

    bar(row, { what, from, to }) {
      if (to <= from) return [];
      const [x, width] = [this.x(from), Math.max(1.5, this.x(to) - this.x(from))];
      const box = svg("rect", {
        x,
        y: row.y,
        width,
        height: row.height,
        rx: 2,
        style: this.fill(what),
      });
      const words = row.begins ? [`${what} ${clock(to - from, this.end, 2)}`, what] : [what];
      const word = words.find((text) => 6.5 * text.length + 8 < width);
      if (!word || what === "exposed" || what === "waits") return [box];
      const place = {
        x: x + width / 2,
        y: row.y + row.height / 2 + 4,
        style: `fill: var(--on-${what}); stroke: var(--${what})`,
      };
      return [
        box,
        svg("text", { ...place, class: `inside ${what in PATTERNS ? "striped" : ""}` }, word),
      ];
    }

    /** What stands above the lanes, faint until its time: [{at, nodes}, ...]. */
    above() {
      return [...this.exposed(), ...this.flags()];
    }

    /** How long each rank was exposed: above the lane this figure finds room in any picture. */
    exposed() {
      const bars = this.rows.flatMap((row) => row.bars.map((bar) => ({ ...bar, y: row.y - 5 })));
      return bars
        .filter((bar) => bar.what === "exposed")
        .map(({ from, to, y }) => {
          const x = Math.min(this.left + this.width, Math.max(this.x(to), this.x(from) + 60));
          const text = `exposed ${clock(to - from, this.end, 2)}`;
          return { at: from, nodes: [svg("text", { x, y, class: "end" }, text)] };
        });
    }

    /** A numbered flag for each message, death or exit. */
    flags() {
      const ends = {};
      const marks = this.events.filter((event) => event.flag);
      return marks.map(({ row: key, at, flag }) => {
        const { y, height } = this.row(key);
        const place = Math.min(this.x(at), this.left + this.width - 9);
        const x = Math.max(ends[key] ?? 0, place); // beside the flag before
        ends[key] = x + 20;
        const style = "fill: var(--paper)";
        const nodes = [
          svg("path", { d: `M${x} ${y - 4}L${this.x(at)} ${y}v${height}`, class: "tick" }),
          svg("circle", { cx: x, cy: y - 11, r: 8.5, class: "flag" }),
          svg("text", { x, y: y - 7, class: "inside", style }, flag),
        ];
        return { at, nodes };
      });
    }

    /** A line for each gradient, in the row of its bucket. */
    ticks() {
      const gradients = this.events.filter((event) => event.what === "gradient");
      return gradients.map(({ row, at }) => {
        const { y, height } = this.row(row);
        return svg("path", { d: `M${this.x(at)} ${y - 1}v${height + 2}`, class: "tick" });
      });
    }

    row(key) {
      return this.rows.find((row) => row.key === key);
    }

    axis() {
      const rough = (this.end / this.width) * 90; // a number every 90 pixels or so
      const power = 10 ** Math.floor(Math.log10(rough));
      const every = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
      const digits = Math.max(0, (this.end < 1e6 ? 3 : 6) - Math.floor(Math.log10(every)));
      return svg(
        "g",
        { class: "axis" },
        ...range(Math.floor(this.end / every) + 1).flatMap((i) => {
          const x = this.x(i * every);
          const anchor = i === 0 ? "start" : x > this.left + this.width - 24 ? "end" : "middle";
          return [
            svg("path", { d: `M${x} 0V${this.height + 4}` }),
            svg(
              "text",
              { x, y: this.height + 18, "text-anchor": anchor },
              clock(i * every, this.end, digits),
            ),
          ];
        }),
      );
    }

    draw(step, now) {
      const labels = Object.fromEntries(this.rows.map((row) => [row.key, row.label]));
      for (const event of this.events.slice(0, step))
        if (event.label) labels[event.row] = event.label;
      for (const row of this.rows) row.words.textContent = labels[row.key];
      for (const { at, nodes } of this.later) {
        for (const node of nodes) node.classList.toggle("future", step === 0 || now < at);
      }
      this.past.setAttribute("width", step ? this.x(now) + 1.2 : 0);
      this.now.setAttribute("d", `M${this.x(now)} 0V${this.height + 4}`);
      const event = this.events[step - 1];
      this.ring.setAttribute("visibility", event ? "visible" : "hidden");
      if (!event) return;
      const row = this.row(event.row);
      this.ring.setAttribute("cx", this.x(event.at));
      this.ring.setAttribute("cy", row.y + row.height / 2);
    }

    /** The moment that belongs to a place in the picture, in microseconds. */
    moment(pixels) {
      return ((pixels - this.left) / this.width) * this.end;
    }

    /** What to conclude, below the picture. other(sign) -> a button to a recording with another cap. */
    summary(other, withOneBucket) {
      if (this.recording.kind === "step") return stepSummary(this.recording, other, withOneBucket);
      const items = this.events
        .filter((event) => event.flag)
        .map(({ at, text }) => html("li", {}, `${clock(at, this.end)}, ${text}`));
      return [html("ol", { class: "notes" }, ...items)];
    }
  }

  const chip = (x, y, rank) =>
    svg("rect", {
      x,
      y,
      width: 11,
      height: 11,
      rx: 2,
      class: "chip",
      style: `fill: var(--rank-${rank})`,
    });

  /** What is exposed, what is overlapped, and both with one bucket, if that was recorded too. */
  function stepSummary({ ranks, end, choices }, other, withOneBucket) {
    const cap = `bucket_cap_mb=${choices.bucket_cap_mb}`;
    const { buckets, marks } = ranks[0];
    const several = buckets.length > 1;
    const why = several
      ? `${cap} makes ${buckets.length} buckets. A bucket that is full before the last gradient can be
        all-reduced while backward computes, once all ranks have it. What is not finished by the last
        gradient is exposed. `
      : `all ${marks.length} gradients (${figure(buckets[0].bytes)} bytes) fit into one bucket
        (${cap}). It is full only with the last gradient, when nothing is left to compute, so the
        rank just waits for its all-reduce. A smaller cap makes several buckets. `;
    const lines = ranks.map((own, i) => {
      const whole = own.spans.at(-1).to - own.spans[0].from;
      const share = percent(exposed(own), whole);
      const text = ` of ${clock(whole, end, 2)} (${share}), overlap ${percent(...overlap(own))}`;
      const before = withOneBucket && exposed(withOneBucket.ranks[i]);
      return html(
        "li",
        {},
        html("b", {}, `rank ${own.rank}: exposed ${clock(exposed(own), end, 2)}`),
        before ? `${text}; with one bucket exposed ${clock(before, end, 2)}` : text,
      );
    });
    const longer = withOneBucket && sum(ranks.map(exposed)) > sum(withOneBucket.ranks.map(exposed));
    const cost = longer
      ? `In these two steps one bucket was exposed for less time: each all-reduce has a latency, and these
         ranks compute on the cores that also communicate. `
      : "";
    const meaning = `Overlap is the part of the all-reduces' time (green) that lies before the rank's
      last gradient. Waiting for the last rank (striped) is not counted.`;
    const hiding = ranks.filter((own) => overlap(own)[0] > 0).map((own) => own.rank);
    const all = hiding.length === ranks.length;
    const head = !hiding.length ? "No overlap" : all ? "Overlap" : `Overlap on rank ${hiding.join(", ")}`;
    return [
      html("p", {}, html("b", {}, `${head}: `), why, other(several ? 1 : -1)),
      html("ul", {}, ...lines),
      html("p", { class: "legend" }, cost + meaning),
    ];
  }

  const exposed = ({ spans }) => {
    const { from, to } = spans.find((span) => span.what === "exposed");
    return to - from;
  };

  /** Microseconds of a rank's all-reduces that lie before its last gradient, and of all of them. */
  function overlap({ spans, buckets }) {
    const last = spans.find((span) => span.what === "backward").to;
    const hidden = buckets.map(({ joined, arrived }) => Math.min(arrived, last) - joined);
    return [
      sum(hidden.map((time) => Math.max(0, time))),
      sum(buckets.map(({ joined, arrived }) => arrived - joined)),
    ];
  }

  // ---------------------------------------------------------------------------------- all-reduce

  /** The picture of an all-reduce: ranks on a circle, or in two columns where there is little room. */
  class Circle {
    constructor(recording, events) {
      Object.assign(this, { recording, events, chunks: recording.chunks.length });
      this.svg = svg("svg", { "aria-hidden": "true", class: "picture circle" });
      this.ranks = range(recording.ranks.length);
    }

    legend() {
      const row =
        this.chunks > 1 ? `a chunk of the vector (c0 to c${this.chunks - 1})` : "the vector";
      return [
        `Each row of squares is ${row} on a rank; a square with number r: rank r's values are in its sum.
        A row with a thick frame is finished.`,
      ];
    }

    layout(pixels) {
      this.size = { 2: 22, 3: 20, 4: 18, 5: 16, 6: 14 }[this.ranks.length] || 12; // of a square
      const label = this.chunks > 1 ? 20 : 0;
      const width = Math.max(146, this.ranks.length * this.size + label + 12);
      this.box = { width, height: this.chunks * (this.size + 4) + 44, label };
      this.columns = !this.placeOnCircle(pixels);
      if (this.columns) this.placeInColumns(pixels);
      const ys = this.centres.map((centre) => centre.y);
      const margin = this.box.height / 2 + (this.ranks.length === 2 ? 28 : 4); // beside low boxes: words
      this.centres.forEach((centre) => (centre.y += margin - Math.min(...ys)));
      const pairs = new Set(this.recording.messages.map(({ from, to }) => `${from}-${to}`));
      this.arrows = Object.fromEntries(
        [...pairs].map((pair) => [pair, this.arrow(...pair.split("-"), pixels)]),
      );
      this.boxes = this.ranks.map((rank) => this.rankBox(rank));
      const arrows = Object.values(this.arrows);
      this.svg.replaceChildren(
        ...[...arrows, ...this.boxes].map((one) => one.group),
        ...arrows.map((arrow) => arrow.pill),
      );
      this.svg.setAttribute("height", Math.max(...ys) - Math.min(...ys) + 2 * margin);
      this.step = null;
    }

    /** Centres on the smallest circle on which the boxes stay apart -> is there room for one? */
    placeOnCircle(pixels) {
      const count = this.ranks.length;
      const [across, down] = [
        this.box.width + (count < 7 ? 110 : 74),
        this.box.height + (count < 7 ? 76 : 56),
      ];
      const apart = (a, b) =>
        a === b || Math.abs(a.x - b.x) >= across || Math.abs(a.y - b.y) >= down;
      const corners = (part) => Math.sign(part) * Math.abs(part) ** 0.3; // with corners it is lower
      for (let radius = 60; pixels >= 560 && radius < 320; radius += 4) {
        const [rx, ry] = [
          Math.min(1.3 * radius, (pixels - this.box.width - 4) / 2),
          count === 2 ? 0 : radius,
        ];
        this.centres = this.ranks.map((rank) => {
          const angle = 2 * Math.PI * (rank / count - (count === 2 ? 0.5 : 0.25));
          return {
            x: pixels / 2 + rx * corners(Math.cos(angle)),
            y: ry * corners(Math.sin(angle)),
          };
        });
        if (this.centres.every((a) => this.centres.every((b) => apart(a, b)))) return true;
      }
      return false;
    }

    /** Rank 0 at the top left, then down on the right and up on the left: a ring as well. */
    placeInColumns(pixels) {
      const count = this.ranks.length;
      const margin = this.box.width / 2 + 2;
      this.centres = this.ranks.map((rank) => {
        const right = rank >= 1 && rank <= count / 2;
        const row = right ? rank - 1 : (count - rank) % count;
        return { x: right ? pixels - margin : margin, y: row * (this.box.height + 56) };
      });
    }

    rankBox(rank) {
      const { width, height, label } = this.box;
      const [left, top] = [this.centres[rank].x - width / 2, this.centres[rank].y - height / 2];
      const sent = svg("text", { x: left + width / 2, y: top + height - 7, class: "quiet middle" });
      const doing = svg("text", { x: left + width - 8, y: top + 17, class: "quiet end" });
      const across = left + (width + label - this.ranks.length * this.size) / 2;
      const rows = range(this.chunks).map((chunk) =>
        this.chunkRow(chunk, across, top + 25 + chunk * (this.size + 4)),
      );
      const group = svg(
        "g",
        {},
        svg("rect", { x: left, y: top, width, height, rx: 6, class: "box" }),
        chip(left + 8, top + 7, rank),
        svg("text", { x: left + 24, y: top + 17, class: "rank" }, `rank ${rank}`),
        doing,
        ...rows.map((row) => row.group),
        sent,
      );
      return { group, rows, sent, doing };
    }

    chunkRow(chunk, x, y) {
      const size = this.size;
      const slots = this.ranks.map((of) =>
        svg(
          "g",
          { class: "slot", style: `--fill: var(--rank-${of}); --text: var(--on-rank-${of})` },
          svg("rect", { x: x + of * size + 1, y: y + 1, width: size - 2, height: size - 2, rx: 2 }),
          svg(
            "text",
            { x: x + (of + 0.5) * size, y: y + 0.76 * size, "font-size": 0.76 * size },
            of,
          ),
        ),
      );
      const frame = svg("rect", {
        x: x - 1,
        y: y - 1,
        width: slots.length * size + 2,
        height: size + 2,
        rx: 3,
        class: "frame",
      });
      const name =
        this.chunks > 1
          ? [svg("text", { x: x - 5, y: y + 0.74 * size, class: "quiet end" }, `c${chunk}`)]
          : [];
      return { frame, slots, group: svg("g", {}, ...name, frame, ...slots) };
    }

    /** The way from one rank's box to another's, as points, and what is drawn on it. */
    arrow(from, to, pixels) {
      const [a, b] = [this.centres[from], this.centres[to]];
      const [halfWidth, halfHeight] = [this.box.width / 2 + 4, this.box.height / 2 + 4];
      const outside = (point) =>
        [a, b].every(
          (box) => Math.abs(point.x - box.x) > halfWidth || Math.abs(point.y - box.y) > halfHeight,
        );
      const bend = this.bend(a, b, pixels);
      const points = range(121)
        .map((i) => {
          const t = i / 120;
          const at = (axis) =>
            (1 - t) ** 2 * a[axis] + 2 * t * (1 - t) * bend[axis] + t ** 2 * b[axis];
          return { x: at("x"), y: at("y") };
        })
        .filter(outside);
      const [end, before, middle] = [
        points.at(-1),
        points.at(-4),
        points[Math.round(points.length * 0.45)],
      ];
      const short = Math.hypot(end.x - points[0].x, end.y - points[0].y) < 110; // words would hide it
      const aside =
        short && Math.abs(b.x - a.x) > Math.abs(b.y - a.y) ? 26 * Math.sign(b.x - a.x) : 0;
      const turn = (Math.atan2(end.y - before.y, end.x - before.x) * 180) / Math.PI;
      const d = `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
      const group = svg(
        "g",
        { class: "arrow" },
        svg("path", { d, class: "line" }),
        svg("path", {
          d: "M0 0L-10 -5V5Z",
          class: "head",
          transform: `translate(${end.x} ${end.y}) rotate(${turn})`,
        }),
      );
      const words = [svg("text", { y: -3 }), svg("text", { y: 11 })];
      const dot = svg("circle", { r: 5 });
      const pill = svg(
        "g",
        { class: "pill" },
        dot,
        svg(
          "g",
          { transform: `translate(${middle.x} ${middle.y + aside})` },
          svg("rect", { x: -36, y: -16, width: 72, height: 31, rx: 8 }),
          ...words,
        ),
      );
      return { points, words, pill, dot, group };
    }

    /** The point towards which the way bends: to its right, so that there and back do not coincide. */
    bend(a, b, pixels) {
      const [x, y] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
      const between = Math.abs(a.y - b.y) > this.box.height + 60; // boxes are between
      if (this.columns && a.x === b.x && between) return { x: 1.1 * pixels - 1.2 * a.x, y };
      const part = (this.ranks.length === 2 ? 44 : 24) / Math.hypot(b.x - a.x, b.y - a.y);
      return { x: x - (b.y - a.y) * part, y: y + (b.x - a.x) * part };
    }

    /** After so many events: contents[rank][chunk][of], bytes sent by each rank, messages under way. */
    state(step) {
      const own = (rank) => this.ranks.map((of) => (of === rank ? 1 : 0));
      const contents = this.ranks.map((rank) => range(this.chunks).map(() => own(rank)));
      const sent = this.ranks.map(() => 0);
      const flying = new Map();
      for (const { what, message, adds } of this.events.slice(0, step)) {
        const pair = `${message.from}-${message.to}`;
        if (what === "sent") {
          sent[message.from] += message.bytes;
          flying.set(pair, message);
        } else {
          flying.delete(pair);
          const before = contents[message.to][message.chunk];
          contents[message.to][message.chunk] = message.contents.map(
            (times, of) => times + (adds ? before[of] : 0),
          );
        }
      }
      return { contents, sent, flying };
    }

    draw(step, now) {
      if (step !== this.step) this.drawStep(step);
      for (const [pair, { sent, received }] of this.flying) {
        const { points, dot } = this.arrows[pair];
        const part = Math.min(1, (now - sent) / (received - sent || 1));
        const { x, y } = points[Math.round(part * (points.length - 1))];
        dot.setAttribute("cx", x);
        dot.setAttribute("cy", y);
      }
    }

    drawStep(step) {
      const { contents, sent, flying } = this.state(step);
      Object.assign(this, { step, flying });
      const { at = 0, what, message } = this.events[step - 1] || {};
      const arrived = what === "received" ? message : {};
      for (const [rank, box] of this.boxes.entries()) {
        const span = this.recording.ranks[rank].spans.find(({ from, to }) => from <= at && at < to);
        box.doing.textContent = span ? `${span.what}s` : "";
        box.sent.textContent = `sent ${figure(sent[rank])} bytes`;
        for (const [chunk, { frame, slots }] of box.rows.entries()) {
          const held = contents[rank][chunk];
          slots.forEach((slot, of) => slot.classList.toggle("on", held[of] > 0));
          frame.classList.toggle(
            "whole",
            held.every((times) => times > 0),
          );
          frame.classList.toggle("changed", arrived.to === rank && arrived.chunk === chunk);
        }
      }
      for (const [pair, { group, pill, words }] of Object.entries(this.arrows)) {
        const message = flying.get(pair);
        for (const one of [group, pill]) one.classList.toggle("flying", Boolean(message));
        group.classList.toggle("arrived", pair === `${arrived.from}-${arrived.to}`);
        if (!message) continue;
        words[0].textContent = this.chunks > 1 ? `chunk ${message.chunk}` : "vector";
        words[1].textContent = `${figure(message.bytes)} B`;
      }
    }

    summary() {
      const { sent } = this.state(this.events.length);
      const { way, ranks } = this.recording.choices;
      const vector = 4 * this.recording.elements;
      const times = (bytes) => `${(bytes / vector).toFixed(2)} times the vector`;
      const most = Math.max(...sent);
      const who = sent.every((bytes) => bytes === most)
        ? "every rank sends"
        : `rank ${sent.indexOf(most)} sends most:`;
      const rule = way === "ring" ? ", which is 2(N - 1)/N for N ranks" : "";
      return [
        html(
          "p",
          {},
          html("b", {}, `${way}, ${ranks} ranks: `),
          `the vector has ${figure(vector)} bytes; ${who} ${figure(most)} bytes, ${times(most)}${rule}.
          All ranks together send ${times(sum(sent))}.`,
        ),
      ];
    }
  }

  // ---------------------------------------------------------------------------------- the player

  const KINDS = { step: "one DDP step", all_reduce: "an all-reduce", failure: "a failure" };
  const WORDS = {
    bucket_cap_mb: (value) => `${value} MiB${value === 25 ? " (default)" : ""}`,
    channels: (value) => `${value} x${value === 1 ? " (the ConvNet)" : ""}`,
  };
  const word = (key, value) => (WORDS[key] ? WORDS[key](value) : `${value}`);

  const icon = (d) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${d}"/></svg>`;
  const PLAY = icon("M3 1V15L15 8Z");
  const PAUSE = icon("M3 1H6.5V15H3ZM9.5 1H13V15H9.5Z");
  const BACK = icon("M2 1H4.5V15H2ZM14 1V15L5.5 8Z");
  const FORWARD = icon("M11.5 1H14V15H11.5ZM2 1V15L10.5 8Z");
  const SPEEDS = [0.25, 0.5, 1, 2, 4].map(
    (times) => `<option value="${times}">${times} x</option>`,
  );
  const PARTS = `
    <div class="choices"></div>
    <p class="title"></p>
    <p class="hint" role="status"></p>
    <p class="legend"></p>
    <div class="stage" tabindex="0" role="group"></div>
    <div class="deck">
      <p class="status" aria-live="polite"></p>
      <div class="controls">
        <button type="button" class="back" title="One step back (left arrow)">${BACK}</button>
        <button type="button" class="play" title="Play (space)">${PLAY}</button>
        <button type="button" class="forward" title="One step forward (right arrow)">
          ${FORWARD}
        </button>
        <input type="range" class="scrub" min="0" value="0" aria-label="step">
        <label>speed <select class="speed">${SPEEDS.join("")}</select></label>
        <button type="button" class="copy">Copy link</button>
      </div>
    </div>
    <div class="summary"></div>
    <details class="steps"><summary>All steps as text</summary>
      <table>
        <thead>
          <tr><th scope="col">step</th><th scope="col">time</th><th scope="col">what happens</th></tr>
        </thead>
        <tbody class="list"></tbody>
      </table>
    </details>
    <p class="about"></p>`;
  const CALM = matchMedia("(prefers-reduced-motion: reduce)");

  class Player {
    /** root: the element to fill; number: 1 for the first of the page; library: window.recordings. */
    constructor(root, number, library) {
      Object.assign(this, { root, number, library, id: `player-${number}` });
      this.index = library["index.json"].map((entry) => ({
        ...entry,
        name: entry.file.replace(/\.json$/, ""),
      }));
      this.first = root.dataset.recording || this.index[0].name;
      this.load(this.first); // throws, before anything is replaced, if there is no such recording
      root.innerHTML = PARTS;
      for (const part of root.querySelectorAll("[class]")) this[part.className] = part;
      this.speed.value = 1;
      this.listen();
      this.show(this.first, 0);
    }

    listen() {
      const on = (element, type, listener) => element.addEventListener(type, listener);
      on(this.back, "click", () => this.go(this.at - 1));
      on(this.play, "click", () => this.toggle());
      on(this.forward, "click", () => this.go(this.at + 1));
      on(this.scrub, "input", () => this.go(Number(this.scrub.value)));
      on(this.copy, "click", () => this.copyLink());
      on(this.steps, "toggle", () => this.fillList());
      on(this.root, "keydown", (event) => this.key(event));
      on(this.stage, "pointerdown", (event) => this.point(event));
      on(this.stage, "pointermove", (event) => event.buttons && this.point(event));
      new ResizeObserver(() => this.layout()).observe(this.stage);
    }

    // ---- recordings

    /** The recording with this name, checked, and its events. Throws an Error with one line. */
    load(name) {
      const recording = this.library[`${name}.json`];
      if (!recording) throw new Error(`There is no recording ${name}.`);
      try {
        check(recording);
        return { recording, events: eventsOf(recording) };
      } catch (error) {
        throw new Error(`The recording ${name} is damaged: ${error.message}.`);
      }
    }

    /** Show a recording at a step, and a hint. If it cannot be shown, the hint says why. */
    show(name, step, hint = "") {
      this.pause();
      try {
        Object.assign(this, this.load(name), { name });
      } catch (error) {
        this.hint.textContent = error.message;
        return;
      }
      const { recording, events } = this;
      this.times = playTimes(recording, events);
      this.picture = new (recording.kind === "all_reduce" ? Circle : Lanes)(
        recording,
        events,
        this.id,
      );
      this.title.textContent = recording.title;
      this.hint.textContent = hint;
      this.legend.replaceChildren(...this.picture.legend());
      this.stage.replaceChildren(this.picture.svg);
      this.stage.setAttribute(
        "aria-label",
        `${recording.title}. Arrow keys: one step, space: play`,
      );
      this.summary.replaceChildren(
        ...this.picture.summary((sign) => this.otherCap(sign), this.withOneBucket()),
      );
      this.about.replaceChildren(...aboutOf(recording));
      this.scrub.max = events.length;
      this.list.replaceChildren();
      this.fillChoices();
      this.pixels = 0;
      this.moveTo(this.find(step));
      this.layout();
      this.fillList();
    }

    /** A step may be a number, or words of its text: then a link survives a new recording. */
    find(step) {
      const number = Number(step);
      if (Number.isNaN(number))
        return this.events.findIndex((event) => event.text.includes(step)) + 1;
      return Math.min(Math.max(0, Math.trunc(number)), this.events.length);
    }

    /** A menu for the kind of recording, and one for each of its choices, of the values there are. */
    fillChoices() {
      const { kind, choices } = this.recording;
      const menu = (name, values, chosen, words, change) => {
        const options = values.map((value, i) =>
          html("option", { value: i, selected: value === chosen && "" }, words(value)),
        );
        const select = html(
          "select",
          { name, change: () => change(values[select.value]) },
          ...options,
        );
        return html("label", {}, `${name} `, select);
      };
      const kinds = [...new Set(this.index.map((entry) => entry.kind))];
      const menus = [
        menu(
          "show",
          kinds,
          kind,
          (value) => KINDS[value],
          (value) => this.choose(value, {}),
        ),
      ];
      for (const [key, chosen] of Object.entries(choices)) {
        const values = [
          ...new Set(
            this.index.filter((entry) => entry.kind === kind).map((entry) => entry.choices[key]),
          ),
        ];
        if (typeof chosen === "number") values.sort((a, b) => a - b);
        menus.push(
          menu(
            key,
            values,
            chosen,
            (value) => word(key, value),
            (value) => this.choose(kind, { [key]: value }),
          ),
        );
      }
      const focused = this.choices.contains(document.activeElement) && document.activeElement.name;
      this.choices.replaceChildren(...menus);
      if (focused) this.choices.querySelector(`[name=${focused}]`)?.focus();
    }

    /** The reader has changed a menu: show what was chosen; or the nearest there is, with a hint. */
    choose(kind, changes) {
      const wanted = { ...this.recording.choices, ...changes };
      const entries = this.index.filter((entry) => entry.kind === kind);
      const { name, choices } = nearest(entries, wanted, Object.keys(changes));
      const missed = Object.keys(changes).length
        ? Object.keys(choices).filter((key) => choices[key] !== wanted[key])
        : [];
      const words = (all) => missed.map((key) => `${key} ${word(key, all[key])}`).join(", ");
      const hint = `There is no such recording: instead of ${words(wanted)} this is ${words(choices)}.`;
      this.switchTo(name, missed.length ? hint : "");
    }

    /** The recording of the same ranks and net with one bucket, unless it is this one. */
    withOneBucket() {
      const { kind, choices, name } = this.recording;
      const same = (other) => ["ranks", "channels"].every((key) => other[key] === choices[key]);
      return this.index
        .filter((entry) => entry.kind === kind && entry.name !== name && same(entry.choices))
        .map((entry) => this.library[entry.file])
        .find((recording) => recording.ranks[0].buckets?.length === 1);
    }

    /** A button to the most similar recording with a smaller cap (-1) or a larger one (1). */
    otherCap(sign) {
      const { kind, choices } = this.recording;
      const entries = this.index.filter(
        (entry) =>
          entry.kind === kind && sign * (entry.choices.bucket_cap_mb - choices.bucket_cap_mb) > 0,
      );
      if (!entries.length) return "";
      const { name, choices: found } = nearest(entries, { ...choices, bucket_cap_mb: undefined });
      const changed = Object.keys(found)
        .filter((key) => found[key] !== choices[key])
        .map((key) => `${key}=${found[key]}`);
      return html(
        "button",
        { type: "button", class: "try", click: () => this.tryOther(name) },
        `Show ${changed.join(", ")}`,
      );
    }

    /** As switchTo, and the focus stays on the button, which has been made anew. */
    tryOther(name) {
      this.switchTo(name);
      (this.summary.querySelector(".try") ?? this.stage).focus({ preventScroll: true });
    }

    /** Another recording, as an entry of its own in the browser's history. The end stays the end. */
    switchTo(name, hint) {
      this.show(name, this.at === this.events.length ? Infinity : 0, hint);
      this.writeAddress("pushState");
    }

    // ---- steps and time

    /** Show the state after so many events. */
    go(step) {
      this.pause();
      this.moveTo(this.find(step));
      this.draw();
      clearTimeout(this.writing); // browsers allow only so many changes of the address per second
      this.writing = setTimeout(() => this.writeAddress(), 200);
    }

    moveTo(step) {
      this.at = step;
      this.playTime = step ? this.times[step - 1] : 0;
      this.tell();
    }

    tell() {
      const { at, events, recording } = this;
      const event = events[at - 1] || { at: 0, text: "the beginning" };
      const when = clock(event.at, recording.end);
      this.status.textContent = `step ${at} of ${events.length}, ${when}: ${event.text}`;
      this.scrub.value = at;
      this.scrub.setAttribute("aria-valuetext", this.status.textContent);
      this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
      this.list.children[at - 1]?.setAttribute("aria-current", "step");
      const reached = events.slice(0, at).filter((one) => one.flag).length;
      this.summary
        .querySelectorAll(".notes li")
        .forEach((item, i) => item.classList.toggle("future", i >= reached));
    }

    /** The picture at the present moment, which is between two events while the recording plays. */
    draw() {
      if (!this.pixels) return;
      const { at, events, times, playTime } = this;
      const [from, to] = [events[at - 1]?.at ?? 0, events[at]?.at ?? this.recording.end];
      const [start, stop] = [times[at - 1] ?? 0, times[at] ?? Infinity];
      this.picture.draw(at, from + (to - from) * ((playTime - start) / (stop - start || 1)));
    }

    layout() {
      const pixels = Math.floor(this.stage.clientWidth);
      if (!pixels || pixels === this.pixels) return;
      this.pixels = pixels;
      this.picture.layout(pixels);
      this.draw();
    }

    toggle() {
      if (this.playing) {
        this.pause();
        this.writeAddress();
        return;
      }
      if (this.at === this.events.length) this.moveTo(0);
      this.setPlaying(true);
      this.before = performance.now();
      requestAnimationFrame((now) => this.frame(now));
    }

    frame(now) {
      if (!this.playing) return;
      this.playTime += (Number(this.speed.value) * Math.max(0, now - this.before)) / 1000;
      this.before = now;
      const step = this.times.filter((time) => time <= this.playTime).length;
      const moved = step !== this.at;
      this.at = step;
      if (moved) this.tell();
      if (moved || !CALM.matches) this.draw();
      if (step === this.events.length) this.toggle();
      else requestAnimationFrame((next) => this.frame(next));
    }

    pause() {
      if (!this.playing) return;
      this.setPlaying(false);
      this.moveTo(this.at);
      this.draw();
    }

    setPlaying(playing) {
      this.playing = playing;
      this.status.setAttribute("aria-live", playing ? "off" : "polite"); // not a sentence per moment
      this.play.innerHTML = playing ? PAUSE : PLAY;
      this.play.title = `${playing ? "Pause" : "Play"} (space)`;
    }

    // ---- the reader's hands

    key(event) {
      const { key, target } = event;
      const keys = {
        ArrowLeft: this.at - 1,
        ArrowRight: this.at + 1,
        Home: 0,
        End: this.events.length,
      };
      if (
        event.ctrlKey ||
        event.altKey ||
        event.metaKey ||
        target.matches("select") ||
        !(key in keys || key === " ")
      )
        return;
      event.stopPropagation(); // themes turn pages with the arrow keys
      if (key === " " && target.closest("button, summary, a")) return;
      event.preventDefault();
      if (key === " ") this.toggle();
      else this.go(keys[key]);
    }

    /** A press on the lanes goes to that moment. */
    point(event) {
      if (!this.picture.moment || event.button > 0) return;
      const moment = this.picture.moment(event.clientX - this.stage.getBoundingClientRect().left);
      this.go(this.events.filter((one) => one.at <= moment).length);
    }

    /** The list of all steps, once it is opened. */
    fillList() {
      if (!this.steps.open || this.list.children.length) return;
      this.list.append(
        ...this.events.map(({ at, text }, i) => {
          const button = html(
            "button",
            { type: "button", "aria-label": `go to step ${i + 1}`, click: () => this.go(i + 1) },
            i + 1,
          );
          return html(
            "tr",
            {},
            html("td", {}, button),
            html("td", {}, clock(at, this.recording.end)),
            html("td", {}, text),
          );
        }),
      );
      this.tell();
    }

    // ---- the address

    /** pushState for another recording, so that the back button finds this one; else replaceState. */
    writeAddress(how = "replaceState") {
      clearTimeout(this.writing);
      this.moved = true;
      const which = this.number > 1 ? { player: this.number } : {};
      history[how](
        null,
        "",
        `#${new URLSearchParams({ ...which, recording: this.name, step: this.at })}`,
      );
    }

    restore(name, step) {
      clearTimeout(this.writing);
      this.moved = true;
      this.show(name, step);
    }

    async copyLink() {
      this.pause();
      this.writeAddress();
      try {
        await navigator.clipboard.writeText(location.href);
        this.copy.textContent = "Copied";
      } catch {
        this.copy.textContent = "It is in the address bar";
      }
      setTimeout(() => (this.copy.textContent = "Copy link"), 3000);
    }
  }

  /** Of entries of the index the one that differs in the fewest of the wanted choices, and least. */
  function nearest(entries, wanted, fixed = []) {
    const distance = ({ choices }) =>
      sum(
        Object.keys(choices).map((key) => {
          if (wanted[key] === undefined || choices[key] === wanted[key]) return 0;
          const apart = typeof wanted[key] === "number" ? Math.abs(wanted[key] - choices[key]) : 0;
          return (fixed.includes(key) ? 1e6 : 1e3) + apart;
        }),
      );
    return entries.reduce((best, entry) => (distance(entry) < distance(best) ? entry : best));
  }

  /** Seconds after which each event comes when the recording is played at speed 1.

      Steps and failures are played in proportion to their time. Messages of an all-reduce come in
      bursts that nobody could follow: there every event takes the same time. */
  function playTimes({ kind, end }, events) {
    if (kind !== "all_reduce") return events.map((event) => (16 * event.at) / end);
    return events.map((_, i) => (i + 1) * Math.min(0.6, 50 / events.length));
  }

  function aboutOf({ about: { note = "", torch, backend, machine, date, command } }) {
    const how = `Recorded with torch ${torch}, ${backend}, on ${machine}, ${date}: `;
    return [
      `${note} ${how}`,
      html("code", {}, command),
      ".",
    ];
  }

  // ---------------------------------------------------------------------------------- the page

  /** Show what the address says: in this player (else the first) this recording at this step. */
  function follow(players) {
    const parts = new URLSearchParams(location.hash.slice(1));
    const player = players.find((one) => one.number === Number(parts.get("player") || 1));
    if (player && parts.has("recording")) {
      player.restore(parts.get("recording"), parts.get("step") || 0);
      player.root.scrollIntoView();
    } else if (location.hash.length < 2) {
      for (const one of players.filter((one) => one.moved)) one.restore(one.first, 0);
    }
  }

  function start(roots) {
    const players = [];
    for (const [i, root] of roots.entries()) {
      try {
        if (!window.recordings?.["index.json"])
          throw new Error(
            "The recordings cannot be loaded: recordings.js is not beside player.js, or damaged.",
          );
        players.push(new Player(root, i + 1, window.recordings));
      } catch (error) {
        root.replaceChildren(html("p", { class: "failed", role: "alert" }, error.message));
      }
    }
    addEventListener("hashchange", () => follow(players));
    follow(players);
  }

  function load() {
    const roots = [...document.querySelectorAll("div.player")];
    if (!roots.length) return;
    const beside = (name) => new URL(name, SCRIPT).href;
    document.head.append(html("link", { rel: "stylesheet", href: beside("player.css") }));
    document.head.append(
      html("script", {
        src: beside("recordings.js"),
        load: () => start(roots),
        error: () => start(roots),
      }),
    );
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", load);
  else load();
})();
