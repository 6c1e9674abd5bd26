"""ZeRO-2: shard gradients and optimizer state, by reduce-scatter

This is the last part, after exercise 24. The file is our solution of 24, and you may copy your own
over it. So far, every rank makes the same Adam step for all parameters, and keeps the same state of
Adam, which has two numbers for each number in a parameter. Now let each of N ranks update only one
N-th of every bucket. Use reduce-scatter in place of all-reduce, and all-gather after the step. Free
a gradient as soon as its bucket is sent.

What the checker measures: let P be the size of all gradients in bytes. Each of N ranks must send no
more bytes than before. Parameters are not counted in what a rank holds. At the end of the backward
pass, a rank may hold P / N bytes of gradients and one bucket. Between two steps it may hold 4 P / N
bytes, of which Adam's state takes 2 P / N. The tensors of a call count until you have waited for
the call.

torchrun --standalone --nproc-per-node 2 exercises/play.py 26  # draws a step
python exercises/check.py 26                                   # is it right?
"""

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
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.ready)
        self.cap_bytes = cap_bytes
        self.bucket = []
        self.started = []

    def ready(self, parameter):
        """PyTorch calls this in the backward pass when parameter.grad is complete."""
        if sum(p.nbytes for p in [*self.bucket, parameter]) > self.cap_bytes:
            self.reduce()
        self.bucket.append(parameter)

    def reduce(self):
        """Average the gradients of the open bucket, and open a new bucket."""
        flat = torch.cat([p.grad.flatten() for p in self.bucket]) / dist.get_world_size()
        work = dist.all_reduce(flat, async_op=True)
        self.started.append((work, flat, self.bucket))
        self.bucket = []

    def step(self):
        """Update the parameters after a backward pass, by the average of the ranks' gradients."""
        self.reduce()  # the last bucket
        for work, flat, bucket in self.started:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.started = []
        self.optimizer.step()
        self.optimizer.zero_grad()
