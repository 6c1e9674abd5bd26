"""Average many small gradients in few all_reduce calls: buckets

This is the second part, after exercise 22. The file begins with our solution of 22, which you may
replace by yours. If each gradient has a call of its own, the latency of the calls costs more than
the bytes that they send. But a single call for all gradients could begin only at the end of the
backward pass. So DDP collects gradients in buckets, in the order in which the backward pass
completes them, and makes one call for each bucket. Do the same, with one difference: no bucket may
have more than `cap_bytes` bytes.

What the checker measures: its model has 6 layers, which have 12 gradients. If a bucket has room for
two layers, a step must make 3 calls. If it has room for one layer, a step must make 6 calls.

torchrun --standalone --nproc-per-node 2 exercises/play.py 23  # draws a step
python exercises/check.py 23                                   # is it right?
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

    def ready(self, parameter):
        """PyTorch calls this in the backward pass when parameter.grad is complete."""
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad)

    def step(self):
        """Update the parameters after a backward pass, by the average of the ranks' gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()
