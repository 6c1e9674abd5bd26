GIVEN = "what totals returns"
WRONG = {
    "in the order of a set": ([("sorted(counts)", "set(counts)")], "what totals returns"),
    "sorted by the numbers": (
        [("sorted(counts)", "sorted(counts, key=counts.get)")],
        "what totals returns",
    ),
}
