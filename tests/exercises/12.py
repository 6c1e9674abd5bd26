GIVEN = "rank is yours to find"
LINE = 'answer = {"rank": 1, "line": 45, "seq": 120}  # it decides by its own accuracy\n'
RIGHT = {"in another order": [(LINE, "answer = dict(seq=120, line=45, rank=1)\n")]}
WRONG = {
    "the rank that waits at the end": (
        [(LINE, 'answer = {"rank": 0, "line": 45, "seq": 120}')],
        "rank is not 0",
    ),
    "the line that waits": (
        [(LINE, 'answer = {"rank": 1, "line": 47, "seq": 120}')],
        "line is not 47",
    ),
    "the last that all have": (
        [(LINE, 'answer = {"rank": 1, "line": 45, "seq": 119}')],
        "seq is not 119",
    ),
}
