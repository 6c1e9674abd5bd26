"""Average gradients with hooks, as DDP does

This is the first step of the chain. The file has the naive average: after the backward pass it
starts one all_reduce for each gradient, and the ranks only wait. Start each call during the
backward pass, as soon as its gradient is there. Then `step` need not average. Do not use DDP.

The number to reach: the checker's model has 6 layers with 12 gradients. The calls for all layers
but the first one must begin before the backward pass has computed the first layer's gradients.

torchrun --standalone --nproc-per-node 2 exercises/chain/play.py 22_averaging_hook  # draws it
python exercises/check.py 22                                                        # is it right?
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

    def step(self):
        """After a backward pass: update the parameters by the average of the ranks' gradients."""
        for parameter in self.parameters:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
