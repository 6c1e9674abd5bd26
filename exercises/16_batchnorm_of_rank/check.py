"""The loss that train returns is that of the saved model, on the test data of all ranks."""

import torch
import torch.distributed as dist

from exercises.common import Watch, batchnorm_model, parameters
from exercises.verdict import alike, shown

STEPS = 6


def data(rank):
    """The batches of a rank, and its test data: other numbers on each rank, and more of them."""
    torch.manual_seed(100 + rank)
    x = torch.rand(STEPS + 1, 6 + rank, 2) + 2 * rank
    y = 2 * x.sum(2, keepdim=True)
    *batches, test = zip(x, y)
    return batches, *test


def observe(mine):
    rank = dist.get_rank()
    batches, x, y = data(rank)
    watch = Watch(batchnorm_model(seed=rank))
    own = [torch.stack([torch.zeros(3), torch.ones(3)])]  # the statistics of this rank

    def gather_statistics(layer, inputs):
        if layer.training:
            batch = torch.stack([inputs[0].mean(0), inputs[0].var(0)])
            own[0] = own[0].lerp(batch.detach(), layer.momentum)

    watch.model[1].register_forward_pre_hook(gather_statistics)
    returned = mine.train(watch.model, batches, x, y, "model.pt")
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own[0])
    saved = batchnorm_model(seed=0).eval()
    saved.load_state_dict(torch.load("model.pt"))
    loss = loss_on_all(saved)
    same = "yes"
    if not alike(returned, loss):
        same = f"no, train returns {shown(returned, 6)} and the loss is {shown(loss, 6)}"
    found = watch.facts()
    found["the weights in the file"] = parameters(saved)
    fact = "the statistics in the file come from the batches"
    found[fact] = gathered(saved[1], everyone)
    found["does train return the loss of the model in the file"] = same
    return found


@torch.no_grad()
def loss_on_all(model):
    """The mean over the test data of all ranks."""
    squares = []
    for rank in range(dist.get_world_size()):
        _, x, y = data(rank)
        squares.append((model(x) - y).square())
    return torch.cat(squares).mean().item()


def gathered(layer, everyone):
    """Are the layer's statistics those of one rank, or between those of all?"""
    least, most = torch.stack(everyone).aminmax(dim=0)  # of the mean, of the variance
    most[1] += (most[0] - least[0]) ** 2  # the variance of all together has that of their means
    found = torch.stack([layer.running_mean, layer.running_var])
    inside = (least - 1e-4 <= found) & (found <= most + 1e-4)
    return bool(inside.all())
