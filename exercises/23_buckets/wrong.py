"""Wrong answers to exercise 23. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: made 12 calls in a step, where 3 calls are enough


# %% one call for all
# verdict: began after the whole backward pass
class Parallel(Parallel):
    def ready(self, parameter):
        self.bucket.append(parameter)


# %% four tensors, whatever cap_bytes is
# verdict: gave a call 4,352 bytes; cap_bytes is 2,276
class Parallel(Parallel):
    def ready(self, parameter):
        if len(self.bucket) == 4:
            self.reduce()
        self.bucket.append(parameter)
