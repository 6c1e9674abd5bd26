/* What happens in a recording, in words: a list of events.

   hooks.py joins words.js, lanes.js, circle.js and player.js into one script: a page that is opened as a
   file cannot load modules. */

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

// ---------------------------------------------------------------- events

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
