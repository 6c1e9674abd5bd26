"""ZeRO-2: shard gradients and optimizer state, by reduce-scatter

This is the last step of the chain. It is our file of 24; you may copy yours over it. Each rank
makes the same Adam step for all parameters, and keeps the same two numbers for each of them. Let
each rank update only one N-th of every bucket: use reduce-scatter in place of all-reduce, and
all-gather after the step. Free a gradient when its bucket has left.

The numbers to reach, in bytes: let P be those of all gradients together. Each of N ranks sends no
more than before. Besides the parameters it holds at most P / N of gradients and one bucket at the
end of the backward pass, and at most 4 P / N between two steps. Adam's state is 2 P / N of these.
The tensors of a call count until you have waited for it.

torchrun --standalone --nproc-per-node 2 exercises/chain/play.py 26_sharding  # draws it
python exercises/check.py 26                                                  # is it right?
"""

import torch
import torch.distributed as dist


class Parallel:
    """Trains rank 0's model on all ranks.

    A parameter may be frozen, and a layer may be used twice in a step. A step uses all parameters
    that are not frozen, and none of them has more than cap_bytes.
    """

    def __init__(self, model, lr, cap_bytes):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.cap_bytes = cap_bytes
        self.bucket = []
        self.started = []

    def ready(self, parameter):
        """Called in the backward pass, as soon as .grad is there."""
        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:
            self.reduce()
        self.bucket.append(parameter)

    def reduce(self):
        """Average the gradients of the bucket that is open, and open a new one."""
        flat = torch.cat([p.grad.flatten() for p in self.bucket]) / dist.get_world_size()
        work = dist.all_reduce(flat, async_op=True)
        self.started.append((work, flat, self.bucket))
        self.bucket = []

    def step(self):
        """After a backward pass: update the parameters by the average of the ranks' gradients."""
        self.reduce()  # the last bucket
        for work, flat, bucket in self.started:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()
