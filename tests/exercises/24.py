GIVEN = "made 12 calls in a step, where 3 are enough"
IF = "        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:\n"
WRONG = {
    "one call for all": ([(IF, "        if not parameter.nbytes:\n")], "began after the whole"),
    "four tensors, whatever cap_bytes is": (
        [(IF, "        if len(self.bucket) == 4:\n")],
        "gave a call 4,352 bytes; cap_bytes is 2,276",
    ),
}
