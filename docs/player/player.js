/* Plays recordings of real data-parallel runs: steps of DDP, all-reduces, failures.

   The <div class="player" data-recording="NAME"> of a page becomes a player. On a page that has one,
   this script loads player.css and recordings.js, which lie beside it. recordings.js sets
   window.recordings = {NAME: recording, ...}; the build of the site writes it from
   docs/player/recordings/. tools/record.py makes these, recording.schema.json describes them. */

const SCRIPT = document.currentScript.src;
const KINDS = { step: "one DDP step", all_reduce: "an all-reduce", failure: "a failure" };

const icon = (d) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${d}"/></svg>`;
const PLAY = icon("M3 1V15L15 8Z");
const PAUSE = icon("M3 1H6.5V15H3ZM9.5 1H13V15H9.5Z");
const BACK = icon("M2 1H4.5V15H2ZM14 1V15L5.5 8Z");
const FORWARD = icon("M11.5 1H14V15H11.5ZM2 1V15L10.5 8Z");
const SPEEDS = [0.25, 0.5, 1, 2, 4].map((times) => `<option value="${times}">${times} x</option>`);
const PARTS = `
  <label>recording <select class="menu"></select></label>
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
  /** root: the element to fill; library: window.recordings. */
  constructor(root, library) {
    Object.assign(this, { root, library, first: root.dataset.recording });
    if (!(this.first in library)) throw new Error(`There is no recording ${this.first}.`);
    root.innerHTML = PARTS;
    for (const part of root.querySelectorAll("[class]")) this[part.className] = part;
    this.menu.append(...this.groups());
    this.speed.value = 1;
    this.listen();
    this.show(this.first, 0);
    this.follow();
  }

  listen() {
    const on = (element, type, listener) => element.addEventListener(type, listener);
    on(this.back, "click", () => this.go(this.at - 1));
    on(this.play, "click", () => this.toggle());
    on(this.forward, "click", () => this.go(this.at + 1));
    on(this.scrub, "input", () => this.go(Number(this.scrub.value)));
    on(this.menu, "change", () => {
      location.hash = new URLSearchParams({ recording: this.menu.value, step: 0 });
    });
    on(this.steps, "toggle", () => this.fillList());
    on(this.root, "keydown", (event) => this.key(event));
    on(this.stage, "pointerdown", (event) => this.point(event));
    on(this.stage, "pointermove", (event) => event.buttons && this.point(event));
    addEventListener("hashchange", () => this.follow());
    new ResizeObserver(() => this.layout()).observe(this.stage);
  }

  // ---- recordings

  /** The menu: all recordings, those of a kind together. */
  groups() {
    const all = Object.values(this.library);
    return Object.entries(KINDS).map(([kind, label]) => {
      const options = all
        .filter((recording) => recording.kind === kind)
        .map(({ name, title }) => html("option", { value: name }, title));
      return html("optgroup", { label }, ...options);
    });
  }

  /** Show what the address says; without anything in it, the page's first recording. */
  follow() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (parts.has("recording")) {
      this.show(parts.get("recording"), parts.get("step") || 0);
      this.root.scrollIntoView();
    } else if (location.hash.length < 2) {
      this.show(this.first, 0);
    }
  }

  /** Show a recording at a step. If there is none of this name, the hint says so. */
  show(name, step) {
    this.pause();
    clearTimeout(this.writing);
    const recording = this.library[name];
    this.hint.textContent = recording ? "" : `There is no recording ${name}.`;
    if (!recording) return;
    const events = eventsOf(recording);
    Object.assign(this, { name, recording, events, times: playTimes(recording, events) });
    this.picture = new (recording.kind === "all_reduce" ? Circle : Lanes)(recording, events);
    this.menu.value = name;
    this.title.textContent = recording.title;
    this.legend.replaceChildren(...this.picture.legend());
    this.stage.replaceChildren(this.picture.svg);
    this.stage.setAttribute("aria-label", `${recording.title}. Arrow keys: one step, space: play`);
    this.summary.replaceChildren(...this.picture.summary());
    this.about.replaceChildren(...aboutOf(recording));
    this.scrub.max = events.length;
    this.list.replaceChildren();
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

  /** So that a link to this page, or a reload, shows this moment. */
  writeAddress() {
    clearTimeout(this.writing);
    const parts = new URLSearchParams({ recording: this.name, step: this.at });
    history.replaceState(null, "", `#${parts}`);
  }
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
  return [`${note} ${how}`, html("code", {}, command), "."];
}

// ---------------------------------------------------------------- the page

function start(root) {
  try {
    if (!window.recordings)
      throw new Error(
        "The recordings cannot be loaded: recordings.js is not beside player.js, or damaged.",
      );
    new Player(root, window.recordings);
  } catch (error) {
    root.replaceChildren(html("p", { class: "failed", role: "alert" }, error.message));
  }
}

function load() {
  const root = document.querySelector("div.player");
  if (!root) return;
  const beside = (name) => new URL(name, SCRIPT).href;
  const done = { load: () => start(root), error: () => start(root) };
  document.head.append(
    html("link", { rel: "stylesheet", href: beside("player.css") }),
    html("script", { src: beside("recordings.js"), ...done }),
  );
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", load);
else load();
