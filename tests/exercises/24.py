GIVEN = "made 12 calls in a step, where 3 are enough"
LAST = "        self.reduce()  # the last bucket\n"
IF = "        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:\n"
RIGHT = {
    "each gradient becomes a view of its bucket": [
        ("            p.grad.copy_(part.view_as(p))\n", "            p.grad = part.view_as(p)\n")
    ]
}
WRONG = {
    "one call for all": ([(IF, "        if not parameter.nbytes:\n")], "began after the whole"),
    "closed when it is too full": (
        [("[*self.bucket, parameter]", "self.bucket")],
        "gave a call",
    ),
    "four tensors, whatever cap_bytes is": (
        [(IF, "        if len(self.bucket) == 4:\n")],
        "gave a call 4,352 bytes; cap_bytes is 2,276",
    ),
    "the last bucket is forgotten": ([(LAST, "")], "failed in line"),
}
