/* Guess first: in the recording of a failure the reader picks the rank that is the cause, on its lane.
   Until then the player shows what the other ranks see of each rank: does it wait, has it failed?
   What the cause does looks like computing, and the recording stops at the last error. */

/** The rank that dies, leaves or is slow, as it is recorded. */
export function causeOf({ ranks }) {
  const CAUSES = ["dies", "leaves", "slow"];
  const isCause = ({ marks, spans }) => [...marks, ...spans].some(({ what }) => CAUSES.includes(what));
  return ranks.find(isCause)?.rank;
}

/** The errors that the ranks print, the first one first. */
export function errorsOf({ ranks }) {
  const all = ranks.flatMap(({ rank, marks }) => marks.map((mark) => ({ rank, ...mark })));
  return all.filter(({ what }) => what === "error").sort((a, b) => a.at - b.at);
}

/** The time of the question: soon after the last error, or at the end if there is none. */
export function askedAt(recording) {
  const last = errorsOf(recording).at(-1);
  return last ? Math.min(recording.end, Math.round(1.05 * last.at)) : recording.end;
}

/** The recording until the question, with nothing in it that only the cause itself knows. */
export function seenByOthers(recording) {
  const end = askedAt(recording);
  const ranks = recording.ranks.map(({ rank, spans, marks }) => ({
    rank,
    spans: spansSeen(spans, end),
    marks: marks.filter(({ what }) => what === "error"),
  }));
  return { ...recording, ranks, end, veiled: true };
}

/** Who does not wait may compute, be late, or be gone; who has failed has failed. */
function spansSeen(spans, end) {
  const seen = [];
  for (const span of spans.filter(({ from }) => from < end)) {
    const before = seen.at(-1);
    const shown = ["wait", "error"].includes(span.what) ? span.what : "busy";
    const what = before?.what === "error" ? "error" : shown;
    const to = Math.min(span.to, end);
    if (before?.what === what) before.to = to;
    else seen.push(what === "busy" ? { what, from: span.from, to } : { ...span, what, to });
  }
  seen.at(-1).to = end;
  return seen;
}

export class Guess {
  constructor(player) {
    this.player = player;
    this.answers = new Map(); // by name of a recording: what the reader was told
  }

  /** Is the cause in this recording still to be guessed? */
  asks({ name, kind }) {
    return kind === "failure" && !this.answers.has(name);
  }

  /** What may be shown of a recording. */
  view(recording) {
    return this.asks(recording) ? seenByOthers(recording) : recording;
  }

  /** A recording was chosen. */
  begin() {
    const { name, recording, question, words, giveUp } = this.player;
    question.hidden = recording.kind !== "failure";
    words.textContent = recording.veiled ? say("which-rank") : (this.answers.get(name) ?? "");
    giveUp.hidden = !recording.veiled;
    this.update();
  }

  /** The present moment has changed. What is printed before the guess comes line by line. */
  update() {
    const { at, events, recording, notes, picks, question, conclusion, summary } = this.player;
    const printed = events.slice(0, at).filter(({ flag }) => flag).length;
    [...notes.children].forEach((note, i) => (note.hidden = recording.veiled && i >= printed));
    summary.hidden = conclusion.hidden && !(recording.veiled && printed);
    picks.hidden = !recording.veiled;
    for (const one of [question, picks]) one.classList.toggle("early", Boolean(recording.veiled) && at === 0);
  }

  /** Put a button over the name of each rank; the picture was drawn for another width. */
  layout() {
    const { picture, recording, picks } = this.player;
    picks.replaceChildren();
    if (!recording.veiled) return;
    for (const { rank } of recording.ranks) {
      const { top, height } = picture.nameOf(rank);
      const style = `top: ${top}px; height: ${height}px`;
      const attributes = { type: "button", style, click: () => this.answer(rank) };
      picks.append(html("button", attributes, say("rank", { rank })));
    }
  }

  /** The reader has chosen a rank, or has given up. After a wrong choice the others are left. */
  answer(rank) {
    const { whole, words, picks } = this.player;
    if (rank !== undefined && rank !== causeOf(whole)) {
      words.textContent = this.against(rank);
      picks.children[rank].classList.add("wrong");
      return;
    }
    this.tell(whole, rank);
    this.player.reveal();
  }

  /** What speaks against this rank, in what can be seen of it. */
  against(rank) {
    const { recording } = this.player;
    if (errorsOf(recording).some((error) => error.rank === rank)) return say("not-with-error", { rank });
    const waits = recording.ranks[rank].spans.filter(({ what }) => what === "wait");
    const wait = clock(sum(waits.map(({ from, to }) => to - from)), recording.end, 1);
    return say("not-with-wait", { rank, wait });
  }

  tell(recording, rank) {
    const cause = causeOf(recording);
    const key = rank === undefined ? "guess-none" : "guess-right";
    this.answers.set(recording.name, say(key, { cause }));
  }
}
