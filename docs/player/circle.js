const SQUARE = 18; // pixels
const SMALL_SQUARE = 13; // with more than four ranks
const NARROW = 560; // pixels: a phone

/** The picture of an all-reduce: what each rank holds, and their messages. */
export class Circle {
  constructor(recording, events) {
    Object.assign(this, { recording, events, chunks: recording.chunks.length });
    this.svg = svg("svg", { "aria-hidden": "true", class: "picture circle" });
    this.ranks = range(recording.ranks.length);
    this.many = this.ranks.length > 4;
  }

  legend() {
    return [say(this.chunks > 1 ? "circle-chunks" : "circle-vector", { last: this.chunks - 1 })];
  }

  layout(pixels) {
    const label = this.chunks > 1 ? 20 : 0;
    const narrow = this.many && pixels < NARROW;
    this.square = this.many ? SMALL_SQUARE : SQUARE;
    this.small = narrow && this.chunks === 1; // a tree or a star: three boxes stand side by side
    if (this.small) this.square = Math.min(11, Math.floor((pixels / 3 - 18) / this.ranks.length));
    this.brief = narrow && this.chunks > 1; // no room for more than the name of a chunk at its arrow
    const least = this.small ? Math.min(106, pixels / 3 - 6) : this.many ? 128 : 146;
    const width = Math.max(least, this.ranks.length * this.square + label + 12);
    this.pixels = pixels;
    this.box = { width, height: this.chunks * (this.square + 4) + 44, label };
    this.place(pixels);
    const pairs = new Set(this.recording.messages.map(({ from, to }) => `${from}-${to}`));
    this.arrows = Object.fromEntries(
      [...pairs].map((pair) => [pair, this.arrow(...pair.split("-"))]),
    );
    this.boxes = this.ranks.map((rank) => this.rankBox(rank));
    const arrows = Object.values(this.arrows);
    this.svg.replaceChildren(
      ...[...arrows, ...this.boxes].map((one) => one.group),
      ...arrows.map((arrow) => arrow.pill),
    );
    this.step = null;
  }

  /** Where the boxes stand. Four ranks need less room than others. */
  place(pixels) {
    const { way } = this.recording.choices;
    const narrow = pixels < NARROW;
    if (way === "tree" && (this.many || !narrow)) this.placeAsTree(pixels);
    else if (this.ranks.length === 4) this.placeFour(pixels);
    else if (this.small) this.placeAsStar(pixels);
    else if (narrow) this.placeInColumns(pixels);
    else if (way === "ring" && this.many) this.placeInRows(pixels);
    else this.placeRound(pixels);
  }

  /** On an ellipse, rank 0 at its top; two ranks stand next to one another. */
  placeRound(pixels) {
    this.tight = false;
    const { width, height } = this.box;
    const count = this.ranks.length;
    const turn = (2 * Math.PI) / count;
    const across = Math.min(320, (pixels - width) / 2 - 4);
    const first = count === 2 ? Math.PI : -Math.PI / 2;
    const along = this.ranks.map((rank) => [Math.cos(first + rank * turn), Math.sin(first + rank * turn)]);
    // As low as it can be: neighbours that overlap in one direction must be apart in the other.
    let high = height;
    const touch = ([x, y], [u, v]) =>
      Math.abs(x - u) * across < width + 24 && Math.abs(y - v) * high < height + 24;
    const crowded = () => along.some((one, i) => along.slice(0, i).some((other) => touch(one, other)));
    while (count > 2 && crowded()) high += 4;
    const above = Math.min(...along.map(([, y]) => y * high)) - height / 2 - 26;
    this.centres = along.map(([x, y]) => ({ x: pixels / 2 + x * across, y: y * high - above }));
    this.endBelow();
  }

  /** Rank 0 at the top, and each rank below the one to which it sends. */
  placeAsTree(pixels) {
    this.tight = false;
    const depthOf = (rank) => [...rank.toString(2)].filter((bit) => bit === "1").length;
    const levels = this.ranks.map(depthOf);
    this.centres = this.ranks.map((rank) => {
      const level = this.ranks.filter((other) => levels[other] === levels[rank]);
      const place = (level.indexOf(rank) + 0.5) / level.length;
      const y = this.box.height / 2 + 4 + levels[rank] * (this.box.height + 64);
      return { x: pixels * place, y };
    });
    this.endBelow();
  }

  /** On a phone: rank 0 at the left, and all others, with which it exchanges messages, at the right. */
  placeAsStar(pixels) {
    this.tight = false;
    const { width, height } = this.box;
    const middle = height / 2 + 4;
    const below = (rank) => (rank - 1) * (height + 10);
    this.centres = this.ranks.map((rank) =>
      rank
        ? { x: pixels - width / 2 - 2, y: middle + below(rank) }
        : { x: width / 2 + 2, y: middle + below(this.ranks.length) / 2 - (height + 10) / 2 },
    );
    this.endBelow();
  }

  /** Where an arrow begins and ends: in the middle of the boxes, but in a star at their sides. */
  endsOf(from, to) {
    const ends = [this.centres[from], this.centres[to]];
    if (!this.small || this.recording.choices.way === "tree") return ends;
    const [left, right] = ends.map(({ x }) => x).sort((a, b) => a - b);
    const [begin, end] = [left + this.box.width / 2, right - this.box.width / 2];
    return ends.map(({ x, y }) => ({ x: x === left ? begin : end, y }));
  }

  /** A ring of many: to the right in the upper row and back in the lower one, so it is not high. */
  placeInRows(pixels) {
    this.tight = true;
    const { width, height } = this.box;
    const columns = Math.ceil(this.ranks.length / 2);
    const [left, room] = [width / 2 + 2, pixels - width - 4];
    this.centres = this.ranks.map((rank) => {
      const below = rank >= columns;
      const part = below
        ? (this.ranks.length - 1 - rank) / (this.ranks.length - columns - 1)
        : rank / (columns - 1);
      return { x: left + part * room, y: height / 2 + 4 + (below ? height + 84 : 0) };
    });
    this.endBelow();
  }

  /** On a phone: down the right column and up the left one. */
  placeInColumns(pixels) {
    this.tight = true;
    const { width, height } = this.box;
    const half = Math.ceil(this.ranks.length / 2);
    const aside = (pixels - width) / 2 - 2;
    this.centres = this.ranks.map((rank) => {
      const row = rank < half ? rank : this.ranks.length - 1 - rank;
      const x = pixels / 2 + (rank < half ? aside : -aside);
      return { x, y: height / 2 + 4 + row * (height + 44) };
    });
    this.endBelow();
  }

  endBelow() {
    const lowest = Math.max(...this.centres.map(({ y }) => y));
    this.svg.setAttribute("height", lowest + this.box.height / 2 + 26);
  }

  /** Two columns. A ring goes round them; in the naive way nothing has to cross. */
  placeFour(pixels) {
    const aside = Math.min(240, (pixels - this.box.width) / 2 - 2);
    const margin = this.box.height / 2 + 4;
    this.tight = 2 * aside - this.box.width < 90; // a phone: no room for words between two boxes
    const below = this.box.height + (this.tight ? 112 : 90);
    const order = this.recording.choices.way === "ring" ? [0, 1, 3, 2] : [0, 1, 2, 3];
    this.centres = this.ranks.map((rank) => ({
      x: pixels / 2 + (order[rank] % 2 ? aside : -aside),
      y: margin + Math.floor(order[rank] / 2) * below,
    }));
    this.svg.setAttribute("height", 2 * margin + below);
  }

  rankBox(rank) {
    const { width, height, label } = this.box;
    const [left, top] = [this.centres[rank].x - width / 2, this.centres[rank].y - height / 2];
    const size = width < 100 ? 10 : 12;
    const place = { x: left + width / 2, y: top + height - 7, "font-size": size };
    const sent = svg("text", { ...place, class: "quiet middle" });
    const across = left + (width + label - this.ranks.length * this.square) / 2;
    const rows = range(this.chunks).map((chunk) =>
      this.chunkRow(chunk, across, top + 25 + chunk * (this.square + 4)),
    );
    const group = svg(
      "g",
      {},
      rect(left, top, width, height, { rx: 6, class: "box" }),
      rect(left + 8, top + 7, 11, 11, { rx: 2, class: "chip", style: `fill: var(--rank-${rank})` }),
      svg("text", { x: left + 24, y: top + 17, class: "rank" }, say("rank", { rank })),
      ...rows.map((row) => row.group),
      sent,
    );
    return { group, rows, sent };
  }

  chunkRow(chunk, x, y) {
    const slots = this.ranks.map((of) => {
      const style = `--fill: var(--rank-${of}); --text: var(--on-rank-${of})`;
      const square = rect(x + of * this.square + 1, y + 1, this.square - 2, this.square - 2, { rx: 2 });
      const size = 0.76 * this.square;
      const place = { x: x + (of + 0.5) * this.square, y: y + size, "font-size": size };
      return svg("g", { class: "slot", style }, square, svg("text", place, of));
    });
    const width = slots.length * this.square + 2;
    const frame = rect(x - 1, y - 1, width, this.square + 2, { rx: 3, class: "frame" });
    const place = { x: x - 5, y: y + 0.74 * this.square, class: "quiet end" };
    const name = svg("text", place, this.chunks > 1 ? `c${chunk}` : "");
    return { frame, slots, group: svg("g", {}, name, frame, ...slots) };
  }

  /** The way from one rank's box to another's, as points, and what is drawn on it. */
  arrow(from, to) {
    const [a, b] = this.endsOf(from, to);
    const [dx, dy] = [b.x - a.x, b.y - a.y];
    const inStar = a !== this.centres[from];
    const part = (inStar ? 5 : 20) / Math.hypot(dx, dy);
    const aside = { x: -dy * part, y: dx * part }; // to its right: there and back do not coincide
    const [wide, high] = [this.box.width / 2 + 4, this.box.height / 2 + 4];
    const free = ({ x, y }) =>
      [this.centres[from], this.centres[to]].every((box) => Math.abs(x - box.x) > wide || Math.abs(y - box.y) > high);
    const way = range(121).map((i) => ({
      x: a.x + aside.x + (dx * i) / 120,
      y: a.y + aside.y + (dy * i) / 120,
    }));
    const points = way.some(free) ? way.filter(free) : way.slice(55, 66);
    const at = (part) => points[Math.round(part * (points.length - 1))];
    const [start, middle, end] = [0, 0.5, 1].map(at);
    const line = svg("path", { d: `M${start.x} ${start.y}L${end.x} ${end.y}`, class: "line" });
    const turn = `rotate(${(Math.atan2(dy, dx) * 180) / Math.PI})`;
    const transform = `translate(${end.x} ${end.y}) ${turn}`;
    const head = svg("path", { d: "M0 0L-10 -5V5Z", class: "head", transform });
    const group = svg("g", { class: "arrow" }, line, head);
    const words = [svg("text", { y: -3 }), svg("text", { y: 11 })];
    const dot = svg("circle", { r: 5 });
    const inside = (high + 14) * (a.y > high ? -1 : 1); // below the upper boxes, above the lower
    const shift = this.tight && !dy ? inside - aside.y : aside.y;
    const nextTo = this.tight && !dx ? middle.x : middle.x + aside.x; // no room for more
    const across = Math.min(Math.max(38, nextTo), this.pixels - 38); // not beyond the edge
    const [x, y] = this.brief ? this.labelAt(middle, dx, dy) : [across, middle.y + shift];
    const place = { transform: `translate(${x} ${y})` };
    const ground = this.brief ? [-14, -15, 28, 17] : [-36, -16, 72, 31];
    const label = svg("g", place, rect(...ground, { rx: 8 }), ...words);
    return { points, words, pill: svg("g", { class: "pill" }, dot, label), dot, group };
  }

  /** The place of a short label: above an arrow to the side, next to another one. */
  labelAt({ x, y }, dx, dy) {
    return Math.abs(dx) > Math.abs(dy) ? [x, y - 12] : [x + (x < this.pixels / 2 ? 24 : -24), y + 6];
  }

  /** After so many events: contents[rank][chunk][of], bytes sent by each rank, messages under way. */
  state(step) {
    const own = (rank) => this.ranks.map((of) => (of === rank ? 1 : 0));
    const contents = this.ranks.map((rank) => range(this.chunks).map(() => own(rank)));
    const sent = this.ranks.map(() => 0);
    const flying = new Map();
    const moves = this.events
      .slice(0, step)
      .flatMap(({ what, messages, adds }) => messages.map((message) => ({ what, message, adds })));
    for (const { what, message, adds } of moves) {
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
    const { what, messages } = this.events[step - 1] || {};
    const arrived = what === "received" ? messages : [];
    for (const [rank, box] of this.boxes.entries()) {
      box.sent.textContent = say(this.small ? "sent-short" : "sent", { bytes: figure(sent[rank]) });
      for (const [chunk, { frame, slots }] of box.rows.entries()) {
        const held = contents[rank][chunk];
        slots.forEach((slot, of) => slot.classList.toggle("on", held[of] > 0));
        const whole = held.every((times) => times > 0);
        frame.classList.toggle("whole", whole);
        const changed = arrived.some((one) => one.to === rank && one.chunk === chunk);
        frame.classList.toggle("changed", changed);
      }
    }
    for (const [pair, { group, pill, words }] of Object.entries(this.arrows)) {
      const message = flying.get(pair);
      for (const one of [group, pill]) one.classList.toggle("flying", Boolean(message));
      const came = arrived.some(({ from, to }) => pair === `${from}-${to}`);
      group.classList.toggle("arrived", came);
      if (!message) continue;
      const name = say(this.chunks > 1 ? "chunk" : "vector", message);
      words[0].textContent = this.brief ? `c${message.chunk}` : name;
      words[1].textContent = this.brief ? "" : `${figure(message.bytes)} B`;
    }
  }
}
