GIVEN = "rank is yours to find"
ANSWER = '"rank": 1, "line": 45, "seq": 120'
RIGHT = {"as text": [(ANSWER, '"rank": "1", "line": "45", "seq": "120"')]}
WRONG = {
    "the line that waits": ([('"line": 45', '"line": 47')], "line is not 47"),
    "the last that all have": ([('"seq": 120', '"seq": 119')], "seq is not 119"),
}
