"""The answer names the rank, the line and the collective."""

WORLD_SIZES = (1,)
RIGHT = {"rank": 1, "line": 45, "seq": 120}


def observe(mine):
    return {"answer": mine.answer}


def judge(ranks):
    answer = ranks[0]["answer"]
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        return f"answer must be a dict with {', '.join(RIGHT)}"
    for name, right in RIGHT.items():
        if answer[name] is None:
            return f"{name} is yours to find"
        if str(answer[name]) != str(right):  # "1" as text is as good
            return f"{name} is not {answer[name]!r}: {WHY[name]}"
    return None


WHY = {
    "rank": "which rank waits in a collective that no other rank has started?",
    "line": "it is the line with the condition, not the line that waits",
    "seq": "look for the first number under which the ranks have started different calls",
}
