"""The answer names the rank, the line and the collective."""

WORLD_SIZES = (1,)
RIGHT = {
    "rank": (1, "which rank waits in a collective that no other rank has started?"),
    "line": (45, "it is the line with the condition, not the line that waits"),
    "seq": (120, "look for the first number under which the ranks have started different calls"),
}


def observe(mine):
    return {"answer": mine.answer}


def judge(ranks):
    answer = ranks[0]["answer"]
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        return f"answer must be a dict with {', '.join(RIGHT)}"
    for name, (right, why) in RIGHT.items():
        if answer[name] is None:
            return f"{name} is yours to find"
        if str(answer[name]).strip() not in (f"{right}", f"{right}.0"):  # "1" as text is as good
            return f"{name} is not {answer[name]!r}: {why}"
    return None
