// What a step of data-parallel training costs, with ideal ranks: step_cost() and speedup() of
// benchmarks/scaling.py, which say what is assumed. tests/test_step_cost.py compares both.
// Bytes, bytes per second, and seconds.

const StepCost = (() => {
  const FIRST_BUCKET = 2 ** 20; // DDP's defaults
  const BUCKET = 25 * 2 ** 20;

  /** -> {allReduces, hidden, exposed, step} */
  function stepCost({ gradients, busbw, ranks, forward, backward, optimizer }) {
    if (!(Number.isInteger(ranks) && ranks >= 1)) throw new RangeError(`ranks: ${ranks}`);
    for (const one of [gradients, busbw, backward])
      if (!(one > 0 && one < Infinity)) throw new RangeError(`above 0 and finite, not ${one}`);
    for (const one of [forward, optimizer])
      if (!(one >= 0 && one < Infinity)) throw new RangeError(`0 or more and finite, not ${one}`);
    const perByte = (2 * (ranks - 1)) / ranks / busbw; // 1 / algbw
    const allReduces = gradients * perByte;
    const last = Math.min(BUCKET, gradients) * perByte;
    const afterTheFirst = backward * (1 - Math.min(FIRST_BUCKET, gradients) / gradients);
    const exposed = Math.max(last, allReduces - afterTheFirst);
    const step = forward + backward + optimizer + exposed;
    return { allReduces, hidden: allReduces - exposed, exposed, step };
  }

  /** How many times as many samples per second as one GPU. Strong scaling splits the batch of one. */
  function speedup(setting, strong = false) {
    const { ranks, forward, backward, optimizer } = setting;
    const parts = strong ? ranks : 1;
    const { step } = stepCost({ ...setting, forward: forward / parts, backward: backward / parts });
    return (((forward + backward + optimizer) / step) * ranks) / parts;
  }

  return { stepCost, speedup };
})();

if (typeof module !== "undefined") module.exports = StepCost;
