"""Average gradients with hooks, as DDP does

The chain, first step. Here is the naive average: after the backward pass, one all_reduce for each
gradient, and the ranks only wait. Start each call as soon as its gradient is there, while the
backward pass goes on: then `step` need not average.

The number to reach: the first call begins before the backward pass ends. No DDP.

torchrun --standalone --nproc-per-node 2 exercises/chain/23_averaging_hook.py   # to play with
python exercises/check.py 23
"""

import torch
import torch.distributed as dist


class Parallel:
    """Trains the model on all ranks by Adam, from the parameters of rank 0.

    All parameters take part in each step; no gradient has more than cap_bytes.
    """

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


if __name__ == "__main__":
    import play  # beside this file: trains a small model

    play.main(Parallel)
