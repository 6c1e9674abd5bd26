GIVEN = "2 workers per rank: sample 0 came 2 times"
FIRST = "first = self.rank * workers + worker  # readers are counted over all ranks"
RANGE = "        return iter(range(first, self.count, self.world_size * workers))\n"
OF_RANK = "range(self.rank, self.count, self.world_size)"
SLICED = f"        return iter({OF_RANK}[worker::workers])\n"
RIGHT = {"the rank's samples are split among its workers": [(RANGE, SLICED)]}
WRONG = {
    "by workers alone": (
        [(RANGE, "        return iter(range(worker, self.count, workers))\n")],
        "came 2 times",
    ),
    "one worker reads, the others do not": (
        [(RANGE, f"        return iter({OF_RANK} if worker == 0 else ())\n")],
        "the workers, rank by rank, got 12, 0, 12, 0 samples",
    ),
    "two workers have one number": (
        [(FIRST, "first = self.rank + worker")],
        "2 workers per rank",
    ),
}
