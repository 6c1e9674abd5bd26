"""The loss that train returns is that of the saved model, on the test data of all ranks."""

import torch
import torch.distributed as dist

from exercises.checks.common import Watch, batchnorm_model, parameters
from exercises.checks.judge import alike, shown

STEPS = 6


def data(rank):
    """The batches of a rank, and its test data: other numbers on each rank, and more of them."""
    torch.manual_seed(100 + rank)
    x = torch.rand(STEPS + 1, 6 + rank, 2) + 2 * rank
    *batches, test = zip(x, x.sum(2, keepdim=True))
    return batches, *test


def observe(mine):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches, x, y = data(rank)
    watch, own = Watch(batchnorm_model(seed=rank)), [torch.stack([torch.zeros(3), torch.ones(3)])]

    def gather_statistics(layer, inputs):
        if layer.training:
            batch = torch.stack([inputs[0].mean(0), inputs[0].var(0)])
            own[0] = own[0].lerp(batch.detach(), layer.momentum)

    watch.model[1].register_forward_pre_hook(gather_statistics)
    returned = mine.train(watch.model, batches, x, y, "model.pt")
    everyone = [None] * world_size
    dist.all_gather_object(everyone, own[0])
    saved = batchnorm_model(seed=0).eval()
    saved.load_state_dict(torch.load("model.pt"))
    with torch.no_grad():
        tests = [data(other)[1:] for other in range(world_size)]
        loss = torch.cat([(saved(x) - y).square() for x, y in tests]).mean().item()
    no = f"no, train returns {shown(returned, 6)} and the loss is {shown(loss, 6)}"
    return watch.facts() | {
        "the weights in the file": parameters(saved),
        "statistics in the file that are those of the batches": gathered(saved[1], everyone),
        "is the loss of the model in the file returned": "yes" if alike(returned, loss) else no,
    }


def gathered(layer, everyone):
    """Are the layer's statistics those of one rank, or between those of all?"""
    least, most = torch.stack(everyone).aminmax(dim=0)  # of the mean, of the variance
    most[1] += (most[0] - least[0]) ** 2  # the variance of all together has that of their means
    found = torch.stack([layer.running_mean, layer.running_var])
    return bool(((least - 1e-4 <= found) & (found <= most + 1e-4)).all())
