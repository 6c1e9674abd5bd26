GIVEN = "rank is yours to find"
LINE = '{"rank": 1, "line": 45, "seq": 120}  # it decides by its own accuracy'
RIGHT = {"in another order": [(LINE, "dict(seq=120, line=45, rank=1)")]}
WRONG = {
    "the rank that waits at the end": (
        [(LINE, '{"rank": 0, "line": 45, "seq": 120}')],
        "rank is not 0",
    ),
    "the line that waits": ([(LINE, '{"rank": 1, "line": 47, "seq": 120}')], "line is not 47"),
    "the last that all have": (
        [(LINE, '{"rank": 1, "line": 45, "seq": 119}')],
        "seq is not 119",
    ),
}
