/* What happens in a recording, in words: a list of events.

   A page that is opened as a file cannot load modules: hooks.py joins these files into one script,
   in the order of PARTS. "export" marks what a later one of them uses. All words are
   in words.yml; hooks.py puts them before the scripts, as window.words, .pairs and .stories. */

// ---------------------------------------------------------------- helpers

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

export const html = maker("http://www.w3.org/1999/xhtml");
export const svg = maker("http://www.w3.org/2000/svg");
export const rect = (x, y, width, height, more) => svg("rect", { x, y, width, height, ...more });

const figure = (count) => count.toLocaleString("en-US");
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const range = (count) => [...Array(count).keys()];

const ENGLISH = 0;
/** The language of the page. A link from a Chinese page asks for Chinese in the address. */
export const CHINESE =
  document.documentElement.lang.startsWith("zh") || new URLSearchParams(location.search).get("lang") === "zh";
const LANGUAGE = CHINESE ? 1 : ENGLISH;

/** The words of a key, with values in the gaps that they have. */
function say(key, values, language = LANGUAGE) {
  return fill(window.words[key][language], values);
}

export function fill(text, values = {}) {
  return text.replaceAll(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** Microseconds as text, in the unit that suits a recording of this length. */
export function clock(microseconds, end, digits = 3) {
  const [divisor, unit] = end < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  return `${(microseconds / divisor).toFixed(digits)} ${unit}`;
}

/** May its times be shown? Ranks that share cores show an order, and no durations. Failures are
    about timeouts and waits of tenths of a second. */
export function timed({ kind, about, ranks }) {
  if (kind === "compare" || kind === "all_reduce") return false; // their steps are no times
  return kind === "failure" || parseInt(about.machine, 10) >= 2 * ranks.length;
}

export function titleOf({ kind, name, title, choices, computed }) {
  if (kind === "compare") return say(name);
  if (computed) return say("title-computed", { way: say(choices.way), ranks: choices.ranks });
  const values = { ...choices, title };
  for (const name of ["way", "case"]) if (name in values) values[name] = say(values[name]);
  return say(`title-${kind}`, values);
}

// ---------------------------------------------------------------- events

/* An event is {at, what, text, english, row}, and what its picture needs besides. Step k of a player
   is the state after the first k events. ORDER is for events of the same microsecond. */
const ORDER = { arrived: 0, received: 0, gradient: 1, left: 2, mark: 2, sent: 2, span: 3 };
const EVENTS = { all_reduce: allReduceEvents, failure: failureEvents };

export function eventsOf(recording) {
  const events = (EVENTS[recording.kind] ?? stepEvents)(recording);
  return events.sort((a, b) => a.at - b.at || ORDER[a.what] - ORDER[b.what]);
}

function event(at, what, key, values, more = {}) {
  return { at, what, text: say(key, values), english: say(key, values, ENGLISH), ...more };
}

function spanEvents({ rank, spans }) {
  return spans.map(({ what, from, text }) => {
    const note = text ? ` (${text})` : "";
    return event(from, "span", `span-${what}`, { rank, note }, { row: `${rank}` });
  });
}

function stepEvents({ ranks }) {
  return ranks.flatMap((of) => [
    ...spanEvents(of),
    event(of.spans.at(-1).to, "span", "finished", { rank: of.rank }, { row: `${of.rank}` }),
    ...of.buckets.flatMap((bucket) => bucketEvents(of, bucket)),
  ]);
}

function bucketEvents({ rank, marks }, { bucket, left, joined, arrived, bytes }) {
  const row = `${rank}/${bucket}`;
  const gradients = marks.filter((mark) => mark.bucket === bucket).sort((a, b) => a.at - b.at);
  const ready = gradients.map(({ at, parameter }, i) => {
    const values = { rank, bucket, parameter, ready: i + 1, all: gradients.length };
    return event(at, "gradient", "gradient", values, { row, label: say("bucket-ready", values) });
  });
  const values = { rank, bucket, bytes: figure(bytes) };
  const labels = [say("bucket-all-reduce", values), say("bucket-averaged", values)];
  const start = joined > left ? "left-waits" : "left";
  return [
    ...ready,
    event(left, "left", start, values, { row, label: labels[0] }),
    event(arrived, "arrived", "arrived", values, { row, label: labels[1] }),
  ];
}

/** In a ring one event is one round of all ranks; through one rank, messages come one by one. */
function allReduceEvents(recording) {
  const { messages, choices } = recording;
  const single = () => messages.map((one) => [one]);
  const turns = recording.rounds ?? (choices.way === "ring" ? roundsOf(recording) : single());
  const part = { ring: "round", tree: "level" }[choices.way] ?? "vector";
  return turns.flatMap((own, i) => {
    const [{ from, to, chunk, phase, contents, bytes }] = own;
    const same = turns.filter(([one]) => one.phase === phase);
    const adds = phase.startsWith("reduce");
    const values = { from, to, phase, chunk, round: same.indexOf(own) + 1, rounds: same.length };
    values.whose = range(contents.length).filter((rank) => contents[rank]).join(", ");
    values.bytes = figure(bytes);
    const each = part === "level" ? "level-part" : "round-part";
    values.each = own.map((one) => say(each, one)).join(", ");
    const [sent, received] = part !== "vector" ? [2 * i + 1, 2 * i + 2] : [own[0].sent, own[0].received];
    const shown = own.map((message) => ({ ...message, sent, received }));
    return [
      event(sent, "sent", `sends-${part}`, values, { messages: shown, adds }),
      event(received, "received", `${adds ? "adds" : "keeps"}-${part}`, values, { messages: shown, adds }),
    ];
  });
}

/** The messages of a ring, round by round: the nth that each rank sends. A rank that is ahead sends
    its next one before the others are done, so rounds are an order and no times. */
function roundsOf({ ranks, messages }) {
  const sentBy = ranks.map((_, rank) =>
    messages.filter(({ from }) => from === rank).sort((a, b) => a.sent - b.sent),
  );
  return sentBy[0].map((_, i) => sentBy.map((own) => own[i]));
}

function failureEvents({ ranks }) {
  const marks = ranks.flatMap(({ rank, marks }) =>
    marks.map(({ at, what, text }) =>
      event(at, "mark", `mark-${what}`, { rank, note: text }, { row: `${rank}` }),
    ),
  );
  marks.sort((a, b) => a.at - b.at).forEach((mark, i) => (mark.flag = i + 1));
  return [...ranks.flatMap(spanEvents), ...marks];
}

/** Seconds after which each event comes when the recording is played at speed 1.

    Steps and failures are played in proportion to their time. Messages of an all-reduce come in
    bursts that nobody could follow: there every event takes the same time. */
export function playTimes({ kind, end }, events) {
  if (kind !== "all_reduce") return events.map((event) => (16 * event.at) / end);
  return events.map((_, i) => (i + 1) * Math.min(0.6, 50 / events.length));
}

// ---------------------------------------------------------------- conclusions

/** One line: what to conclude from a recording. */
export function conclusion(recording) {
  const { kind, name, choices } = recording;
  const figures = figuresOf(recording);
  const { count, equal } = figures;
  const rounds = recording.rounds ? ` ${say("conclude-rounds", { rounds: recording.rounds.length })}` : "";
  const keys = {
    step: count > 1 ? "many" : "one",
    all_reduce: equal ? "equal" : "most",
    compare: name,
    failure: choices?.case,
  };
  return say(`conclude-${keys[kind]}`, figures) + rounds;
}

/** The figures in the words about a recording: counted in its events, so another one may differ. */
export function figuresOf(recording) {
  const { kind, ranks } = recording;
  if (kind === "compare") return recording.values;
  if (kind === "step") return bytesToAverage(ranks[0]);
  return kind === "all_reduce" ? bytesSent(recording) : { ...waits(recording), ...blamed(recording) };
}

/** The story of what is computed: what it costs, and then a frame for each round, as in words.yml. */
export function storyOf(recording) {
  const { name, ranks, rounds, choices } = recording;
  const figures = { ...figuresOf(recording), ranks: ranks.length, rounds: rounds.length };
  const frame = (step, key, values) => [name, step, ...[0, 1].map((language) => say(key, values, language))];
  const first = frame("", figures.equal ? "short-equal" : "short-most", figures);
  const have = [0]; // in a tree: the ranks that have the sum
  const others = rounds.map((messages, i) => {
    const [{ phase, from, to }] = messages;
    const inPhase = i - rounds.findIndex(([one]) => one.phase === phase) + 2;
    const holds = choices.way === "tree" ? Math.min(2 ** (i + 1), ranks.length) : inPhase;
    if (phase === "broadcast") have.push(...messages.map((one) => one.to));
    const values = {
      ...figures,
      round: i + 1,
      from,
      to,
      holds,
      senders: messages.map((one) => one.from).join(", "),
      have: have.toSorted((a, b) => a - b).join(", "),
    };
    return frame(`${2 * i + 2}`, `story-${choices.way}-${phase}`, values);
  });
  return [first, ...others];
}

/** Of the rank: how many buckets begin before the last gradient, how many bytes end after it. */
export function bytesToAverage({ marks, buckets }) {
  const last = Math.max(...marks.map(({ at }) => at));
  const bytesOf = (some) => figure(sum(some.map(({ bytes }) => bytes)));
  const hidden = buckets.filter(({ joined }) => joined < last).length;
  return {
    gradients: marks.length,
    first: buckets[0].parameters.length,
    count: buckets.length,
    hidden,
    late: bytesOf(buckets.filter(({ arrived }) => arrived > last)),
    bytes: bytesOf(buckets),
    least: bytesOf(buckets.slice(-1)),
  };
}

function bytesSent({ messages, ranks, elements }) {
  const sent = ranks.map((_, rank) =>
    sum(messages.filter(({ from }) => from === rank).map(({ bytes }) => bytes)),
  );
  const most = Math.max(...sent);
  const times = (bytes) => (bytes / 4 / elements).toFixed(2);
  const equal = sent.every((bytes) => bytes === most);
  const values = { equal, rank: sent.indexOf(most), all: times(sum(sent)) };
  return { ...values, most: figure(most), times: times(most) };
}

/** Seconds that the cause is late, and that the others wait for it. */
function waits(recording) {
  const { ranks } = recording;
  const cause = causeOf(recording);
  const lengths = (what, of) =>
    of.flatMap(({ spans }) =>
      spans.filter((span) => span.what === what).map(({ from, to }) => (to - from) / 1e6),
    );
  const [late = 0] = lengths("slow", ranks);
  const others = ranks.filter(({ rank }) => rank !== cause);
  const long = lengths("wait", others).filter((time) => time > 0.05);
  const values = { late, least: Math.min(...long), longest: Math.max(...long) };
  return Object.fromEntries(Object.entries(values).map(([name, s]) => [name, s.toFixed(1)]));
}

/** Which rank is the cause, which one reports an error first, and how many do. */
function blamed(recording) {
  const errors = errorsOf(recording);
  return { cause: causeOf(recording), first: errors[0]?.rank, errors: errors.length };
}

const COMPUTED_FROM = "05_multinode/from_scratch.py";

/** Below a player: why there are no times, and how the recording was made. */
export function aboutOf(recording) {
  const { about, of } = recording;
  if (recording.computed) return [say("about-computed"), html("code", {}, COMPUTED_FROM), "."];
  const why = of ? say(`widths-${of}`) : timed(recording) ? "" : say("no-times", about);
  return [`${why} ${say("about", about)}`, html("code", {}, about.command), "."];
}
