"""Wrong answers to exercise 20. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: 2 workers per rank: different from our solution: samples that come more than once


# %% one worker reads, the others do not
# verdict: samples that one worker gets more than another: 12; 1 with
class Stream(Stream):
    def __iter__(self):
        info = get_worker_info()
        reads = info is None or info.id == 0
        return iter(range(self.rank, self.count, self.world_size) if reads else ())


# %% two workers have one number
# verdict: more than once
class Stream(Stream):
    def __iter__(self):
        info = get_worker_info()
        if info is None:
            return iter(range(self.rank, self.count, self.world_size))
        return iter(range(self.rank + info.id, self.count, self.world_size * info.num_workers))
