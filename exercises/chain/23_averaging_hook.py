"""Average gradients with hooks, as DDP does

This is the first step of the chain. The file has the naive average: after the backward pass it
starts one all_reduce for each gradient, and the ranks only wait. Start each call during the
backward pass, as soon as its gradient is there. Then `step` need not average. Do not use DDP.

The number to reach: the checker's model has 6 layers with 12 gradients. The calls for all layers
but the first one must begin before the backward pass has computed the first layer's gradients.

torchrun --standalone --nproc-per-node 2 exercises/chain/play.py 23_averaging_hook  # try it out
python exercises/check.py 23                                                        # is it right?
"""

import torch
import torch.distributed as dist


class Parallel:
    """Trains rank 0's model on all ranks. A step uses all parameters; none exceeds cap_bytes."""

    def __init__(self, model, lr, cap_bytes):
        self.parameters = list(model.parameters())
        for parameter in self.parameters:
            dist.broadcast(parameter.data, src=0)
        self.optimizer = torch.optim.Adam(self.parameters, lr=lr)

    def step(self):
        """After a backward pass: update the parameters by the average of the ranks' gradients."""
        for parameter in self.parameters:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
