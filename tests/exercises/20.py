GIVEN = "2 workers per rank: different from our solution: samples that come more than once"
FIRST = "first = self.rank * workers + worker"
RANGE = "range(first, self.count, self.world_size * workers)"
OF_RANK = "range(self.rank, self.count, self.world_size) if worker == 0 else ()"
WRONG = {
    "one worker reads, the others do not": (
        [(RANGE, OF_RANK)],
        "samples that one worker gets more than another: 12; 1 with our solution",
    ),
    "two workers have one number": ([(FIRST, "first = self.rank + worker")], "more than once"),
}
