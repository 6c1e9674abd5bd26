"""As 24, by reduce-scatter and all-gather: what each rank holds and sends is bounded."""

from exercises import chain

PADDING = 1024  # bytes that rounding up may cost
BUCKET = chain.CAPS[0][0]
observe = chain.observe
figures = chain.figures


def judge(ranks):
    wrong = chain.judge(ranks)
    if wrong:
        return wrong
    count = len(ranks)
    sends = 2 * (count - 1) / count * chain.TOTAL + PADDING
    gradients = chain.TOTAL / count + BUCKET + PADDING
    holds = 4 * chain.TOTAL / count + PADDING
    for number, rank in enumerate(ranks):
        if rank["sent"] > sends:
            least = f"an all-reduce of each gradient sends {sends - PADDING:,.0f}"
            return f"rank {number} sends {rank['sent']:,.0f} bytes in a step; {least}"
        _, held = rank["gradient bytes"][-1]
        if held > gradients:
            return (
                f"rank {number} holds {held:,} bytes of gradients at the end of the backward pass; "
                f"its shard and one bucket have {gradients - PADDING:,.0f} bytes. Free a gradient "
                "when its bucket is sent, and wait for one call before you start the next one"
            )
        if rank["held"] > holds:
            return (
                f"rank {number} holds {rank['held']:,} bytes besides the parameters between two "
                f"steps; {holds - PADDING:,.0f} are enough for a rank that updates 1/{count}"
            )
    return None
