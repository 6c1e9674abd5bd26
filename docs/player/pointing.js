/* The picture of a player takes clicks and drags, and says what lies under the pointer. */

const DRAG_STEP = 24; // pixels of a drag for each step, where the picture has no axis

/** Listens on the picture of a player. */
export class Pointing {
  constructor(player) {
    Object.assign(this, { player, stage: player.stage, tip: player.tip });
    const on = (type, listener) => this.stage.addEventListener(type, (event) => listener(event));
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", () => (this.start = null));
    on("pointerleave", () => (this.tip.hidden = true));
  }

  /** The place of the pointer in the picture. */
  place(event) {
    const { left, top } = this.stage.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  press(event) {
    if (event.button) return;
    const { x } = this.place(event);
    this.start = { x, step: this.player.at, moved: false };
    this.stage.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { x, y } = this.place(event);
    this.explain(x, y);
    if (!this.start) return;
    if (Math.abs(x - this.start.x) > 4) this.start.moved = true;
    if (this.start.moved) this.player.go(this.stepAt(x));
  }

  release(event) {
    if (!this.start) return;
    const { x } = this.place(event);
    const { moved } = this.start;
    if (this.player.picture.timeAt) this.player.go(this.stepAt(x));
    else if (!moved) this.player.go(this.player.at + (x < this.stage.clientWidth / 3 ? -1 : 1));
    this.start = null;
  }

  /** On an axis: how many events are left of the pointer. Without one: as far as it was dragged. */
  stepAt(x) {
    const { events, picture } = this.player;
    if (picture.timeAt) {
      const time = picture.timeAt(x);
      return events.filter((event) => event.at <= time).length;
    }
    return Math.max(0, this.start.step + Math.trunc((x - this.start.x) / DRAG_STEP));
  }

  /** What the bar or the gradient under the pointer is. */
  explain(x, y) {
    const text = this.player.picture.describe?.(x, y) ?? "";
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const room = this.stage.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(x - 20, room))}px`;
    this.tip.style.top = `${y + 18}px`;
  }
}
