/* What happens in a recording, in words: a list of events.

   A page that is opened as a file cannot load modules: hooks.py joins words.js, compare.js, lanes.js,
   circle.js and player.js into one script. "export" marks what a later one of them uses. All words are
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
const LANGUAGE = document.documentElement.lang.startsWith("zh") ? 1 : ENGLISH;

/** The words of a key. A value that depends on the language is a function of it. */
function say(key, values = {}, language = LANGUAGE) {
  const put = (_, name) => {
    const value = values[name] ?? "";
    return typeof value === "function" ? value(language) : value;
  };
  return window.words[key][language].replaceAll(/\{(\w+)\}/g, put);
}

/** Microseconds as text, in the unit that suits a recording of this length. */
export function clock(microseconds, end, digits = 3) {
  const [divisor, unit] = end < 1e6 ? [1e3, "ms"] : [1e6, "s"];
  return `${(microseconds / divisor).toFixed(digits)} ${unit}`;
}

/** May its times be shown? Ranks that share cores show an order, and no durations. Failures are
    about timeouts and waits of tenths of a second. */
export function timed({ kind, about, ranks }) {
  if (kind === "compare") return false; // its axis is no time
  return kind === "failure" || parseInt(about.machine, 10) >= 2 * ranks.length;
}

/** [1, 0, 1, 1] -> "ranks 0, 2 and 3": whose vectors are in a chunk. */
function whose(contents) {
  const ranks = range(contents.length).filter((rank) => contents[rank]);
  const [first, last] = [ranks.slice(0, -1).join(", "), ranks.at(-1)];
  return (language) => {
    if (ranks.length === contents.length) return say("everyone", {}, language);
    return first ? say("some", { first, last }, language) : `rank ${last}`;
  };
}

export function titleOf({ kind, name, title, choices }) {
  if (kind === "compare") return say(name);
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

function allReduceEvents({ messages, chunks }) {
  return messages.flatMap((message) => {
    const { from, to, chunk, phase, contents, sent, received } = message;
    const same = messages.filter((one) => one.phase === phase && one.from === from);
    const round = same.filter((one) => one.sent <= sent).length;
    const part = (language) => say(chunks.length > 1 ? "chunk" : "vector", { chunk }, language);
    const adds = phase.startsWith("reduce");
    const values = { from, to, phase, part, round, rounds: same.length, whose: whose(contents) };
    values.bytes = figure(message.bytes);
    const then = adds ? "received-adds" : "received-keeps";
    return [
      event(sent, "sent", "sends", values, { message, adds }),
      event(received, "received", then, values, { message, adds }),
    ];
  });
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
  const { kind, ranks, choices } = recording;
  if (kind === "step") {
    const [{ spans, buckets }] = ranks;
    const last = spans.find((span) => span.what === "backward").to;
    const hidden = buckets.filter(({ joined }) => joined < last).length;
    return say(hidden ? "conclude-many" : "conclude-one", { count: buckets.length, hidden });
  }
  if (kind === "all_reduce") return bytesSent(recording);
  if (kind === "compare") return say(`conclude-${recording.name}`, recording.values);
  const lengths = (what, of) =>
    of.flatMap(({ spans }) =>
      spans.filter((span) => span.what === what).map(({ from, to }) => (to - from) / 1e6),
    );
  const late = lengths("slow", ranks);
  const waits = lengths("wait", ranks.slice(2).concat(ranks[0])).filter((time) => time > 0.05);
  const [least, longest] = [Math.min(...waits), Math.max(...waits)];
  const values = { late: late[0], least, longest };
  for (const name in values) values[name] = values[name]?.toFixed(1);
  return say(`conclude-${choices.case}`, values);
}

function bytesSent({ messages, ranks, elements }) {
  const vector = 4 * elements;
  const sent = ranks.map((_, rank) =>
    sum(messages.filter(({ from }) => from === rank).map(({ bytes }) => bytes)),
  );
  const most = Math.max(...sent);
  const times = (bytes) => (bytes / vector).toFixed(2);
  const values = { rank: sent.indexOf(most), most: figure(most), times: times(most) };
  const equal = sent.every((bytes) => bytes === most);
  return say(equal ? "conclude-equal" : "conclude-most", { ...values, all: times(sum(sent)) });
}

/** Below a player: why there are no times, and how the recording was made. */
export function aboutOf(recording) {
  const { about, of } = recording;
  const why = of ? say(`widths-${of}`) : timed(recording) ? "" : say("no-times", about);
  return [`${why} ${say("about", about)}`, html("code", {}, about.command), "."];
}
