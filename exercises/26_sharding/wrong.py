"""Wrong answers to exercise 26. Each stands below our solution in one file, and is refused."""

# %% task.py as it is given
# verdict: holds 21,760 bytes of gradients at the end of the backward pass


# %% an all-reduce, of which a part is used
# verdict: an all-reduce of each gradient sends 13,056
class Parallel(Parallel):
    def reduce(self, bucket):
        if self.started:
            self.started[-1].wait()
        flat = self.flat([p.grad / dist.get_world_size() for p in bucket])
        for p in bucket:
            p.grad = None
        shard = self.shards[len(self.started)]
        shard.grad = self.mine(flat)
        self.started.append(dist.all_reduce(flat, async_op=True))


# %% no rank gets what the others have updated
# verdict: what step 1 adds to the weights
class Parallel(Parallel):
    def step(self):
        self.started[-1].wait()
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()


# %% each rank has the whole state of Adam
# verdict: bytes besides the parameters between two steps
class Parallel(Parallel):
    def __init__(self, model, lr, cap_bytes):
        super().__init__(model, lr, cap_bytes)
        self.wholes = [torch.nn.Parameter(self.flat(bucket)) for bucket in self.buckets]
        self.optimizer = torch.optim.Adam(self.wholes, lr=lr)

    def step(self):
        self.started[-1].wait()
        self.started = []
        for shard, whole in zip(self.shards, self.wholes):
            whole.grad = torch.empty_like(whole)
            dist.all_gather_single(whole.grad, shard.grad)
            shard.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad()
        for whole, bucket in zip(self.wholes, self.buckets):
            sizes = [p.numel() for p in bucket]
            for p, part in zip(bucket, whole.detach()[: sum(sizes)].split(sizes)):
                p.data.copy_(part.view_as(p))


# %% whole gradients stay until the step
# verdict: of gradients at the end of the backward pass
class Parallel(Parallel):
    def reduce(self, bucket):
        gradients = [p.grad for p in bucket]
        super().reduce(bucket)
        for p, gradient in zip(bucket, gradients):
            p.grad = gradient

    def step(self):
        super().step()
        for parameter in self.parameters:
            parameter.grad = None


# %% all calls are on their way at once
# verdict: of gradients at the end of the backward pass
class Parallel(Parallel):
    def reduce(self, bucket):
        flat = self.flat([p.grad / dist.get_world_size() for p in bucket])
        for p in bucket:
            p.grad = None
        shard = self.shards[len(self.started)]
        shard.grad = torch.empty_like(shard)
        self.started.append(dist.reduce_scatter_single(shard.grad, flat, async_op=True))

    def step(self):
        for work in self.started[:-1]:
            work.wait()
        super().step()
