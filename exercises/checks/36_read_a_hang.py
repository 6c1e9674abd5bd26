"""The answer names the rank, the line and the collective."""

WORLD_SIZES = (1,)
HINTS = (
    "Put the three stacks side by side: which rank waits in another collective?",
    "Compare what each rank has started under the same number: the first difference is the cause, "
    "and all other ranks only wait. A condition that was true on one rank alone led it there.",
    "`if accuracy > best` looks at the accuracy of one shard. The number is that of the first row "
    "of the flight record in which the ranks have different names.",
)
RIGHT = {"rank": 1, "line": 45, "seq": 120}


def observe(mine):
    return {"answer": mine.answer}


def judge(ranks):
    answer = ranks[0]["answer"]
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        return f"answer is to be a dict with {', '.join(RIGHT)}"
    for name, right in RIGHT.items():
        if answer[name] is None:
            return f"{name} is yours to find"
        if answer[name] != right:
            return f"{name} is not {answer[name]!r}: {WHY[name]}"
    return None


WHY = {
    "rank": "who waits in a collective that no other rank has started?",
    "line": "the line that decides, not the one that waits; it was true on this rank alone",
    "seq": "up to there all ranks have started the same calls, under the same numbers",
}
