/* Above an all-reduce: another number of ranks, or another way. What is chosen here is computed. */

export class Edit {
  constructor(player) {
    this.player = player;
    const option = (value, text) => html("option", { value }, text);
    this.ranks = html("select", { "aria-label": say("edit-ranks") });
    this.ranks.append(...COMPUTED_RANKS.map((count) => option(count, count)));
    this.way = html("select", { "aria-label": say("edit-way") });
    this.way.append(...Object.keys(WAYS).map((way) => option(way, say(way))));
    for (const field of [this.ranks, this.way]) field.addEventListener("change", () => this.choose());
    const { edit } = player;
    edit.append(html("label", {}, `${say("edit-ranks")} `, this.ranks));
    edit.append(html("label", {}, `${say("edit-way")} `, this.way), html("span", { class: "source" }));
  }

  /** A recording was chosen. */
  begin() {
    const { recording, edit } = this.player;
    edit.hidden = recording.kind !== "all_reduce";
    if (edit.hidden) return;
    this.ranks.value = recording.choices.ranks;
    this.way.value = recording.choices.way;
    edit.querySelector(".source").textContent = say(recording.computed ? "is-computed" : "is-recorded");
  }

  choose() {
    const recording = computedName(this.way.value, this.ranks.value);
    location.hash = new URLSearchParams({ recording, step: 0 });
  }
}
