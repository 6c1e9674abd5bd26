"""Average gradients with hooks, as DDP does

In exercises 22, 23, 24 and 26 you write what DDP does, part by part. This is the first part. In
this file, the gradients are averaged in the simplest way: after the backward pass, `step` starts
one all_reduce for each gradient, and all ranks wait for it. Start the all_reduce of each gradient
during the backward pass instead, as soon as the gradient is complete. Then `step` no longer
averages. Do not use DDP.

What the checker measures: its model has 6 layers, which have 12 gradients. The calls for layers 2
to 6 must begin before the backward pass has computed the gradients of layer 1.

torchrun --standalone --nproc-per-node 2 exercises/play.py 22  # draws a step
python exercises/check.py 22                                   # is it right?
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

    def step(self):
        """Update the parameters after a backward pass, by the average of the ranks' gradients."""
        for parameter in self.parameters:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
