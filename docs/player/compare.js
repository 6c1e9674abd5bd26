/* Two recordings over one another: the same work before and after one change, on one axis.

   Ranks that share cores show an order and no durations, so the axis is none of time. In a step each
   gradient is equally wide, and what comes after the last one as wide as its bytes; in an all-reduce
   each message is as wide as its bytes. What comes before what is as recorded. */

const AFTER = 8; // all bytes of the gradients are as wide as so many gradients
const TIMES = ["from", "to", "at", "left", "joined", "arrived"];

/** A recording for Lanes, with the ranks of both, and places on that axis instead of times. */
export function compared(name, recordings) {
  const [{ kind, about }] = recordings;
  const [a, b] = recordings.map(kind === "step" ? stepInOrder : messagesInOrder);
  const ranks = [...a.ranks, ...b.ranks];
  const end = Math.max(...ranks.map(({ spans }) => spans.at(-1).to));
  const values = { a: a.bytes, b: b.bytes };
  return { name, kind: "compare", of: kind, about, ranks, end, values };
}

/** Rank 0 of a step: data, forward, each gradient and the optimizer are equally wide. */
function stepInOrder({ ranks: [first], choices }) {
  const { spans, marks, buckets } = first;
  const gradients = marks.map(({ at }) => at).sort((a, b) => a - b);
  const places = [...spans.slice(0, 3).map(({ from }) => from), ...gradients].map((at, i) => [at, i]);
  const bytesOf = (some) => sum(some.map(({ bytes }) => bytes));
  const late = buckets.filter(({ arrived }) => arrived > gradients.at(-1));
  late.sort((a, b) => a.arrived - b.arrived); // a bucket may overtake the one before
  for (const { joined, arrived, bytes } of late) {
    const [before, place] = places.at(-1);
    const width = (AFTER * bytes) / bytesOf(buckets);
    places.push([Math.max(before, joined), place], [arrived, place + width]);
  }
  const averaged = places.at(-1)[1];
  places.push([spans[4].from, averaged], [spans[4].to, averaged + 1]);
  const move = (key, value) => (TIMES.includes(key) ? between(places, value) : value);
  const rank = `0 (cap ${choices.bucket_cap_mb})`;
  const ranks = [{ ...JSON.parse(JSON.stringify(first), move), rank }];
  return { ranks, bytes: bytesToAverage(first).late };
}

/** The place of a time: [[time, place], ...] has those of some times. */
export function between(places, time) {
  const i = Math.min(places.length - 2, places.findLastIndex(([at]) => at <= time));
  const [[from, start], [to, stop]] = places.slice(i, i + 2);
  return start + ((time - from) / (to - from || 1)) * (stop - start);
}

/** A rank sends one message after the other, and receives one after the other. */
function messagesInOrder({ ranks, messages, elements, choices }) {
  const placed = [];
  for (const message of [...messages].sort((a, b) => a.received - b.received)) {
    const { from: sender, to: receiver, sent, bytes } = message;
    const before = placed.filter(
      ({ message: { from, to, received } }) =>
        from === sender || to === receiver || (to === sender && received <= sent),
    );
    const from = Math.max(0, ...before.map((one) => one.to));
    placed.push({ message, from, to: from + bytes });
  }
  const end = Math.max(...placed.map(({ to }) => to));
  const way = say(choices.way);
  const lanes = ranks.map(({ rank }) => [`${rank} (${way})`, sendsAndReceives(rank, placed)]);
  return {
    ranks: lanes.map(([rank, spans]) => ({ rank, spans, buckets: [] })),
    bytes: (end / 4 / elements).toFixed(2),
  };
}

/** What a rank sends; what it receives while it sends nothing; and when it does neither. */
function sendsAndReceives(rank, placed) {
  const sends = placed.filter(({ message }) => message.from === rank);
  const alone = ({ message, from }) =>
    message.to === rank && sends.every((send) => send.from !== from);
  const own = [...sends, ...placed.filter(alone)].sort((a, b) => a.from - b.from);
  return own.flatMap(({ message, from, to }, i) => {
    const what = message.from === rank ? "send" : "receive";
    const text = say(`note-${what}`, { ...message, bytes: figure(message.bytes) });
    const word = what === "send" ? `→ ${message.to}` : `← ${message.from}`;
    const before = own[i - 1]?.to ?? 0;
    const wait = before < from ? [{ what: "wait", from: before, to: from }] : [];
    return [...wait, { what, from, to, text, word }];
  });
}
