GIVEN = "2 workers per rank: sample 0 came 2 times"
FIRST = "first = self.rank * workers + worker  # readers are counted over all ranks"
RANGE = "range(first, self.count, self.world_size * workers)"
SLICED = "range(self.rank, self.count, self.world_size)[worker::workers]"
RIGHT = {"the rank's samples are split among its workers": [(RANGE, SLICED)]}
WRONG = {
    "by workers alone": ([(RANGE, "range(worker, self.count, workers)")], "came 2 times"),
    "two workers have one number": (
        [(FIRST, "first = self.rank + worker")],
        "2 workers per rank",
    ),
}
