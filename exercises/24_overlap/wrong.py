"""Wrong answers to exercise 24. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: waited 4.4 ms for calls that take 4.4 ms


# %% the future of each call is waited for at once
# verdict: waited 4.4 ms
class Parallel(Parallel):
    def reduce(self):
        super().reduce()
        work, _, _ = self.started[-1]
        work.get_future().then(lambda future: future.value()).wait()


# %% only the last call is waited for
# verdict: never waits for 2 of its calls
class Parallel(Parallel):
    def step(self):
        self.reduce()
        self.started[-1][0].wait()
        for _, flat, bucket in self.started:
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()


# %% collect_all, but nobody waits for it
# verdict: never waits for 3 of its calls
class Parallel(Parallel):
    def step(self):
        self.reduce()
        torch.futures.collect_all([work.get_future() for work, _, _ in self.started])
        for _, flat, bucket in self.started:
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()
