/* All-reduces that nobody recorded: the messages of 05_multinode/from_scratch.py, computed for 2 to 8
   ranks. tests/test_computed.py compares each message with what the Python code sends.

   Time is counted in rounds. What happens at once in these recordings can happen at once on ranks
   that are equally fast. */

const COMPUTED_RANKS = [2, 3, 4, 5, 6, 7, 8];
const ELEMENTS = 84000; // of float32; divisible by all these numbers of ranks
const ROUND = 1000; // of the unit of time, which nobody sees
const WAYS = { ring: ringRounds, tree: treeRounds, naive: naiveRounds };

export const computedName = (way, ranks) => `computed-${way}-ranks-${ranks}`;

/** {name: recording} of all ways and numbers of ranks. */
export function computedAllReduces() {
  const all = Object.keys(WAYS).flatMap((way) => COMPUTED_RANKS.map((n) => computed(way, n)));
  return Object.fromEntries(all.map((recording) => [recording.name, recording]));
}

function computed(way, count) {
  const pieces = way === "ring" ? count : 1;
  const size = ELEMENTS / pieces;
  const held = range(count).map((rank) => range(pieces).map(() => onlyOwn(rank, count)));
  const rounds = WAYS[way](count).map((round, i) => {
    const messages = round.map((one) => ({
      ...one,
      bytes: 4 * size,
      contents: [...held[one.from][one.chunk]],
      sent: ROUND * i,
      received: ROUND * (i + 1),
    }));
    for (const message of messages) receive(held, message);
    return messages;
  });
  return {
    name: computedName(way, count),
    kind: "all_reduce",
    computed: true,
    choices: { way, ranks: count },
    elements: ELEMENTS,
    chunks: range(pieces).map((i) => [i * size, (i + 1) * size]),
    ranks: range(count).map((rank) => ({ rank, spans: [] })),
    messages: rounds.flat(),
    rounds,
    end: ROUND * rounds.length,
  };
}

function onlyOwn(rank, count) {
  return range(count).map((of) => (of === rank ? 1 : 0));
}

/** The receiver adds the chunk to its own, or keeps it. */
function receive(held, { to, chunk, contents, phase }) {
  const before = held[to][chunk];
  const adds = phase.startsWith("reduce");
  held[to][chunk] = contents.map((times, of) => times + (adds ? before[of] : 0));
}

/** schedule(): in each round every rank sends one chunk to its right neighbour. */
function ringRounds(count) {
  const phases = [
    ["reduce-scatter", 0],
    ["all-gather", 1],
  ];
  return phases.flatMap(([phase, ahead]) =>
    range(count - 1).map((i) =>
      range(count).map((rank) => ({
        phase,
        from: rank,
        to: (rank + 1) % count,
        chunk: (rank + ahead - i + 2 * count) % count,
      })),
    ),
  );
}

/** naive(): rank 0 receives one vector after the other, and then sends the sum to one after the other. */
function naiveRounds(count) {
  const others = range(count).slice(1);
  const up = others.map((rank) => [{ phase: "reduce", from: rank, to: 0, chunk: 0 }]);
  const down = others.map((rank) => [{ phase: "broadcast", from: 0, to: rank, chunk: 0 }]);
  return [...up, ...down];
}

/** tree(): at distance 1, 2, 4, ... the right one of two ranks sends, and back in the other order. */
function treeRounds(count) {
  const distances = [1, 2, 4].filter((distance) => distance < count);
  const pairs = (distance) => range(count).filter((rank) => rank % (2 * distance) === distance);
  const up = distances.map((distance) =>
    pairs(distance).map((rank) => ({ phase: "reduce", from: rank, to: rank - distance, chunk: 0 })),
  );
  const down = distances.toReversed().map((distance) =>
    pairs(distance).map((rank) => ({ phase: "broadcast", from: rank - distance, to: rank, chunk: 0 })),
  );
  return [...up, ...down];
}
