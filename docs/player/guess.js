/* Guess first: in the recording of a failure the reader picks the rank that is the cause, on its lane.
   The conclusion and the notes are hidden until then, or until the recording has come to its end. */

/** The rank that dies, leaves or is slow, as it is recorded. */
export function causeOf({ ranks }) {
  const CAUSES = ["dies", "leaves", "slow"];
  const isCause = ({ marks, spans }) => [...marks, ...spans].some(({ what }) => CAUSES.includes(what));
  return ranks.find(isCause)?.rank;
}

export class Guess {
  constructor(player) {
    this.player = player;
    this.open = new Set(); // the names of recordings whose conclusion was seen
  }

  /** A recording was chosen. */
  begin() {
    const { recording, question } = this.player;
    this.asks = recording.kind === "failure";
    question.hidden = !this.asks;
    question.textContent = this.asks ? say("which-rank") : "";
    this.update();
  }

  /** The present moment has changed. */
  update() {
    const { name, at, events, summary } = this.player;
    if (at === events.length) this.open.add(name);
    summary.hidden = this.asks && !this.open.has(name);
    if (this.picks) this.picks.hidden = !this.asks || this.open.has(name);
  }

  /** Put a button over the name of each rank; the picture was drawn for another width. */
  layout() {
    const { picture, recording, picks } = this.player;
    this.picks = picks;
    picks.replaceChildren();
    this.update();
    if (!this.asks) return;
    for (const { rank } of recording.ranks) {
      const { top, height } = picture.nameOf(rank);
      const style = `top: ${top}px; height: ${height}px`;
      const attributes = { type: "button", style, click: () => this.answer(rank) };
      picks.append(html("button", attributes, say("rank", { rank })));
    }
  }

  answer(rank) {
    const { name, recording, question } = this.player;
    const cause = causeOf(recording);
    question.textContent = say(rank === cause ? "guess-right" : "guess-wrong", { rank, cause });
    this.open.add(name);
    this.update();
  }
}
