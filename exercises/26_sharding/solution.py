"""Our solution of exercise 26. The task is in task.py, next to this file."""

import torch
import torch.distributed as dist


class Parallel:
    """Trains rank 0's model on all ranks.

    A parameter may be frozen (it requires no gradient), and a layer may be used twice in a step.
    Each step uses all parameters that are not frozen. `cap_bytes` is the largest size of a bucket
    in bytes (see the text of exercise 23). No parameter is larger than a bucket.
    """

    def __init__(self, model, lr, cap_bytes):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.buckets = [[]]
        for parameter in reversed(self.parameters):  # in the order of their gradients
            if sum(p.nbytes for p in [*self.buckets[-1], parameter]) > cap_bytes:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.ready)
        shards = [self.mine(self.flat(bucket)).clone() for bucket in self.buckets]
        self.shards = [torch.nn.Parameter(shard) for shard in shards]  # what this rank updates
        self.optimizer = torch.optim.Adam(self.shards, lr=lr)
        self.started = []

    def flat(self, tensors):
        """One vector of these parameters, padded to a multiple of the number of ranks."""
        vector = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(vector, (0, -len(vector) % dist.get_world_size()))

    def mine(self, vector):
        return vector.chunk(dist.get_world_size())[dist.get_rank()]

    def ready(self, parameter):
        """Send a bucket as soon as all of its gradients are complete."""
        while len(self.started) < len(self.buckets):
            bucket = self.buckets[len(self.started)]
            if any(p.grad is None for p in bucket):
                return
            self.reduce(bucket)

    def reduce(self, bucket):
        """Reduce-scatter a bucket, because each rank needs only its part of the average."""
        if self.started:
            self.started[-1].wait()  # the bucket before this one is freed now
        flat = self.flat([p.grad / dist.get_world_size() for p in bucket])
        for p in bucket:
            p.grad = None
        shard = self.shards[len(self.started)]
        shard.grad = torch.empty_like(shard)
        self.started.append(dist.reduce_scatter_single(shard.grad, flat, async_op=True))

    def step(self):
        """Update the parameters after a backward pass, by the average of the ranks' gradients."""
        self.started[-1].wait()
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()
        for shard, bucket in zip(self.shards, self.buckets):
            flat = self.flat(bucket)
            dist.all_gather_single(flat, shard.detach())
            sizes = [p.numel() for p in bucket]
            for p, part in zip(bucket, flat[: sum(sizes)].split(sizes)):
                p.data.copy_(part.view_as(p))
