/* Plays recordings of real data-parallel runs: steps of DDP, all-reduces, failures.

   The <div class="player" data-recording="NAME"> of a page becomes a player. On a page that has one,
   this script loads player.css and recordings.js, which lie near it. recordings.js sets
   window.recordings = {NAME: recording, ...}; the build of the site writes it from
   docs/player/recordings/. benchmarks/record.py makes these, recording.schema.json describes them. */

const SCRIPT = document.currentScript.src;
const KINDS = ["step", "all_reduce", "compare", "failure"];

const icon = (d) => `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${d}"/></svg>`;
const PLAY = icon("M3 1V15L15 8Z");
const PAUSE = icon("M3 1H6.5V15H3ZM9.5 1H13V15H9.5Z");
const BACK = icon("M2 1H4.5V15H2ZM14 1V15L5.5 8Z");
const FORWARD = icon("M11.5 1H14V15H11.5ZM2 1V15L10.5 8Z");
const button = (name, content, key = name) =>
  `<button type="button" data-part="${name}" class="${name}" title="${say(key)}">${content}</button>`;
const parts = () => `
  <label data-part="choice">${say("recording")} <select data-part="menu" class="menu"></select></label>
  <p data-part="edit" class="edit" hidden></p>
  <div data-part="caption" class="caption">
    <p data-part="tale" class="tale" aria-live="polite"></p>
    <p class="turn">
      ${button("previous", say("previous"))} <span data-part="place" class="place"></span>
      ${button("next", say("next"))}
    </p>
  </div>
  <p data-part="question" class="question" hidden>
    <span data-part="words" aria-live="polite"></span> ${button("giveUp", say("give-up"), "give-up")}
  </p>
  <p data-part="axis" class="axis"></p>
  <div class="around">
    <div data-part="stage" class="stage" role="img"></div>
    <div data-part="picks" class="picks" role="group" aria-label="${say("which-rank")}"></div>
    <div data-part="tip" class="tip" aria-hidden="true" hidden></div>
  </div>
  <p data-part="legend" class="legend"></p>
  <div class="deck">
    <p data-part="status" class="status" aria-live="polite"></p>
    <div class="controls">
      ${button("back", BACK)} ${button("play", PLAY)} ${button("forward", FORWARD, "forward-step")}
      <input type="range" data-part="scrub" min="0" value="0" aria-label="${say("slider")}">
    </div>
  </div>
  <div data-part="summary" class="summary">
    <p data-part="conclusion" class="conclusion"></p>
    <ol data-part="notes" class="notes"></ol>
  </div>
  <details data-part="steps" class="steps"><summary>${say("all-steps")}</summary>
    <table>
      <thead>
        <tr><th scope="col">${say("slider")}</th><th scope="col">${say("column-what")}</th></tr>
      </thead>
      <tbody data-part="list"></tbody>
    </table>
  </details>
  <details class="more"><summary>${say("about-recording")}</summary>
    <p data-part="about" class="about"></p>
  </details>`;
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

class Player {
  /** root: the element to fill; library: window.recordings. */
  constructor(root, library) {
    Object.assign(this, { root, library, first: root.dataset.recording });
    if (!(this.first in library)) throw new Error(say("missing", { name: this.first }));
    root.innerHTML = parts();
    if (CHINESE) root.lang = "zh-CN"; // the page around it may be English
    for (const part of root.querySelectorAll("[data-part]")) this[part.dataset.part] = part;
    this.menu.append(...this.groups());
    this.seen = new Set(); // the names of recordings that the reader has seen to the end
    this.guess = new Guess(this);
    this.editing = new Edit(this);
    this.listen();
    this.follow();
    this.hideWhatCovers();
    if ("moves" in root.dataset && !CALM.matches) this.playWhenSeen();
  }

  listen() {
    const on = (element, type, listener) => element.addEventListener(type, listener);
    on(this.back, "click", () => this.go(this.at - 1));
    on(this.play, "click", () => this.toggle());
    on(this.forward, "click", () => this.go(this.at + 1));
    on(this.previous, "click", () => this.turn(-1));
    on(this.next, "click", () => this.turn(1));
    on(this.giveUp, "click", () => this.guess.answer());
    on(this.scrub, "input", () => this.go(Number(this.scrub.value)));
    on(this.menu, "change", () => {
      location.hash = new URLSearchParams({ recording: this.menu.value, step: 0 });
    });
    addEventListener("hashchange", () => this.follow());
    new ResizeObserver(() => this.layout()).observe(this.stage);
    new Pointing(this);
  }

  /** On a page of other things: nobody sees a film that plays below the screen. */
  playWhenSeen() {
    const observer = new IntersectionObserver(
      ([{ isIntersecting }]) => {
        if (!isIntersecting) return;
        observer.disconnect();
        if (this.at === 0) this.playTo(this.events.length); // else the reader has begun by hand
      },
      { threshold: 0.8 },
    );
    observer.observe(this.stage);
  }

  /** The theme's "Back to top" would lie on the picture (player.css). */
  hideWhatCovers() {
    const page = document.documentElement;
    const toggle = ([{ isIntersecting }]) => page.classList.toggle("player-in-view", isIntersecting);
    new IntersectionObserver(toggle).observe(this.root);
  }

  // ---- recordings

  /** The menu: all recordings, those of a kind together. */
  groups() {
    const all = Object.values(this.library);
    return KINDS.map((kind) => {
      const own = all.filter((one) => one.kind === kind && !one.computed);
      const options = own.map((one) => html("option", { value: one.name }, titleOf(one)));
      return html("optgroup", { label: say(kind) }, ...options);
    });
  }

  /** Show what the address says; without anything in it, the page's first recording. */
  follow() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const name = parts.get("recording");
    if (Object.hasOwn(this.library, name)) {
      const { kind } = this.library[name];
      if (parts.has("answer") && kind === "failure") this.guess.tell(this.library[name]);
      this.show(name, parts.get("step") || 0);
      const { top, bottom } = this.stage.getBoundingClientRect();
      if (top < 0 || bottom > innerHeight) this.root.scrollIntoView();
    } else if (location.hash.length < 2 || !this.name) {
      const frames = Object.values(window.stories).flat(); // amid a story it opens at its own frame
      this.show(this.first, frames.find(([name]) => name === this.first)?.[1] || 0);
    }
  }

  show(name, step) {
    this.pause();
    clearTimeout(this.writing);
    const whole = this.library[name];
    const recording = this.guess.view(whole);
    const events = eventsOf(recording);
    Object.assign(this, { name, whole, recording, events, times: playTimes(recording, events) });
    this.turned = null; // the frame to which Previous or Next has led
    const has = (story) => story.some((frame) => frame[0] === name);
    this.story = recording.computed
      ? storyOf(recording)
      : (Object.values(window.stories).find(has) ?? []);
    this.root.dataset.kind = recording.kind; // for player.css
    this.root.toggleAttribute("data-computed", Boolean(recording.computed));
    this.picture = new (recording.kind === "all_reduce" ? Circle : Lanes)(recording, events);
    this.showInMenu(recording);
    this.legend.replaceChildren(...this.picture.legend());
    this.stage.replaceChildren(this.picture.svg);
    this.stage.setAttribute("aria-label", say("stage", { title: titleOf(recording) }));
    this.conclusion.textContent = recording.veiled ? "" : conclusion(whole);
    this.axis.textContent = this.picture.axis?.() ?? "";
    this.axis.hidden = !this.axis.textContent;
    this.notes.replaceChildren(...(this.picture.notes?.() ?? []));
    this.about.replaceChildren(...aboutOf(recording));
    this.scrub.max = events.length;
    this.list.replaceChildren(...events.map((event, i) => this.row(event, i)));
    this.pixels = 0;
    this.guess.begin();
    this.editing.begin();
    this.moveTo(this.find(step));
    this.layout();
  }

  /** The reader has guessed: the whole recording, at the frame that tells the cause. */
  reveal() {
    const telling = this.asking() + 1;
    this.show(this.name, 0);
    this.go(this.find(this.story[telling][1]), telling);
    this.next.focus({ preventScroll: true }); // what was clicked is gone
  }

  /** Of what is computed, the menu has only what is shown. */
  showInMenu({ name, kind, computed, choices }) {
    this.menu.querySelector("[data-computed]")?.remove();
    if (computed) {
      const attributes = { value: name, "data-computed": "" };
      const option = html("option", attributes, titleOf({ kind, computed, choices }));
      this.menu.children[KINDS.indexOf(kind)].append(option);
    }
    this.menu.value = name;
  }

  /** A step may be a number, or words of its text: then a link survives a new recording. */
  find(step) {
    if (step === "end") return this.events.length;
    if (step === "question") return this.stepAt(askedAt(this.whole));
    const number = Number(step);
    if (Number.isNaN(number))
      return this.events.findIndex((event) => event.english.includes(step)) + 1;
    return Math.min(Math.max(0, Math.trunc(number)), this.events.length);
  }

  /** How many events are not after this time. */
  stepAt(time) {
    return this.events.filter(({ at }) => at <= time).length;
  }

  // ---- steps and time

  /** Show the state after so many events; which frame of the story is it, if the reader turned to it? */
  go(step, turned = null) {
    this.pause();
    this.turned = turned;
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
    const { at, events } = this;
    const text = events[at - 1]?.text ?? say("beginning");
    const count = say("status", { at, count: events.length });
    this.when = html("span", { class: "when" });
    this.status.replaceChildren(count, this.when, (LANGUAGE ? "：" : ": ") + text);
    this.scrub.value = at;
    this.scrub.setAttribute("aria-valuetext", this.status.textContent);
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.list.children[at - 1]?.setAttribute("aria-current", "step");
    if (at === events.length && !this.recording.veiled) this.seen.add(this.name);
    this.conclusion.hidden = !this.seen.has(this.name) && !this.guess.answers.has(this.name);
    this.narrate();
    this.guess.update();
  }

  // ---- the story: what there is to see, frame by frame, through several recordings

  /** [the frame, has the recording come to it]; before its first frame there is nothing to say. */
  frameNow() {
    if (this.turned !== null) return [this.turned, true];
    const own = ([name]) => name === this.name;
    const now = this.story.findLastIndex(
      (frame, i) =>
        i <= this.lastFrame() && own(frame) && (frame[1] === "" || this.find(frame[1]) <= this.at),
    );
    return now < 0 ? [this.story.findIndex(own), false] : [now, true];
  }

  /** The frame that asks for the cause. */
  asking() {
    return this.story.findIndex(([, words]) => words === "question");
  }

  /** Before the guess, the story goes to the question. */
  lastFrame() {
    return this.recording.veiled ? this.asking() : this.story.length - 1;
  }

  narrate() {
    const { veiled } = this.recording;
    const [now, reached] = this.frameNow();
    this.caption.hidden = now < 0;
    if (this.caption.hidden) return;
    const words = reached ? this.story[now][2 + LANGUAGE] : "";
    const text = fill(words, figuresOf(this.whole));
    if (text !== this.tale.textContent) this.tale.textContent = text;
    const number = say("frame", { number: now + 1, count: this.story.length });
    const held = veiled && now === this.lastFrame();
    this.place.textContent = number + (held ? say("guess-first") : "");
    this.previous.disabled = now === 0;
    this.next.disabled = reached && now === this.lastFrame();
  }

  /** To the next frame the picture moves, to the one before it jumps. Its text is there at once. If
      the picture still moves, it first comes to where it was to come: each click is one frame. */
  turn(by) {
    const [now, reached] = this.frameNow();
    let to = by > 0 && !reached ? now : now + by;
    if (to === this.asking() && !this.recording.veiled) to += by; // it is answered
    const [name, words] = this.story[to];
    if (this.playing) this.go(this.until, this.turned);
    if (name !== this.name) this.show(name, words || 0);
    const step = this.find(words || 0);
    if (by < 0 || CALM.matches || step <= this.at) {
      this.go(step, to);
      return;
    }
    this.turned = to;
    this.narrate();
    this.playTo(step);
  }

  /** The picture at the present moment, which is between two events while the recording plays. */
  draw() {
    if (!this.pixels) return;
    const { at, events, times, playTime } = this;
    const [from, to] = [events[at - 1]?.at ?? 0, events[at]?.at ?? this.recording.end];
    const [start, stop] = [times[at - 1] ?? 0, times[at] ?? Infinity];
    const now = from + (to - from) * ((playTime - start) / (stop - start || 1));
    this.picture.draw(at, now);
    if (timed(this.recording)) this.when.textContent = `, ${clock(now, this.recording.end)}`;
  }

  layout() {
    const pixels = Math.floor(this.stage.clientWidth);
    if (!pixels || pixels === this.pixels) return;
    this.pixels = pixels;
    this.picture.layout(pixels);
    const high = pixels < 560 || this.picture.svg.getAttribute("height") > 0.5 * innerHeight;
    this.root.classList.toggle("high", high); // then the controls stay in view
    this.guess.layout();
    this.draw();
  }

  toggle() {
    this.turned = null;
    if (this.playing) {
      this.pause();
      this.writeAddress();
      return;
    }
    if (this.at === this.events.length) this.moveTo(0);
    this.playTo(this.events.length);
  }

  /** Play until a step. A way longer than two seconds to a frame goes faster. */
  playTo(step) {
    this.until = step;
    const way = this.times[step - 1] - this.playTime;
    this.pace = this.turned === null ? 1 : Math.max(1, way / 2);
    this.setPlaying(true);
    this.before = performance.now();
    requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    if (!this.playing) return;
    this.playTime += (this.pace * Math.max(0, now - this.before)) / 1000;
    this.before = now;
    const reached = this.times.filter((time) => time <= this.playTime).length;
    const step = Math.min(this.until, reached);
    const moved = step !== this.at;
    this.at = step;
    if (moved) this.tell();
    if (moved || !CALM.matches) this.draw();
    if (step === this.until) this.go(step, this.turned);
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
    this.play.title = say(playing ? "pause" : "play");
  }

  /** All steps as text. */
  row({ at, text }, i) {
    const label = say("go-to", { number: i + 1 });
    const attributes = { type: "button", "aria-label": label, click: () => this.go(i + 1) };
    const when = timed(this.recording) ? `${clock(at, this.recording.end)}: ` : "";
    const number = html("td", {}, html("button", attributes, i + 1));
    return html("tr", {}, number, html("td", {}, when + text));
  }

  /** So that a link to this page, or a reload, shows this moment. */
  writeAddress() {
    clearTimeout(this.writing);
    if ("small" in this.root.dataset) return; // one of the things on its page
    const parts = new URLSearchParams({ recording: this.name, step: this.at });
    if (this.guess.answers.has(this.name)) parts.set("answer", "shown");
    history.replaceState(null, "", `#${parts}`);
  }
}

// ---------------------------------------------------------------- the page

function start(root) {
  try {
    const { recordings, pairs } = window;
    if (!recordings) throw new Error(say("not-loaded"));
    for (const [name, both] of Object.entries(pairs))
      recordings[name] = compared(name, both.map((one) => recordings[one]));
    new Player(root, { ...recordings, ...computedAllReduces() });
  } catch (error) {
    root.replaceChildren(html("p", { class: "failed", role: "alert" }, error.message));
  }
}

function load() {
  const root = document.querySelector("div.player");
  if (!root) return;
  const near = (name) => new URL(name, SCRIPT).href;
  const done = { load: () => start(root), error: () => start(root) };
  document.head.append(
    html("link", { rel: "stylesheet", href: near("player.css") }),
    html("script", { src: near("recordings.js"), ...done }),
  );
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", load);
else load();
