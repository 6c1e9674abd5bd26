GIVEN = "made 12 calls in a step, where 3 are enough"
LAST = "        self.reduce()  # the last bucket\n"
IF = "        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:\n"
APPEND = "        self.bucket.append(parameter)\n"
REDUCE = "            self.reduce()\n"
RIGHT = {
    "a call is started by the gradient that fills its bucket": [
        (
            IF + REDUCE + APPEND,
            APPEND
            + "        if sum(p.nbytes for p in self.bucket) > self.cap_bytes // 2 "
            + "and len(self.bucket) == 4:\n"
            + REDUCE,
        ),
        (LAST, ""),
    ]
}
WRONG = {
    "one call for all": ([(IF, "        if not parameter.nbytes:\n")], "began after the whole"),
    "closed when it is too full": (
        [("[*self.bucket, parameter]", "self.bucket")],
        "gave a call",
    ),
    "the last bucket is forgotten": ([(LAST, "")], "failed in line"),
}
