"""Right scripts in one file: a case has this head, one function as `main`, and the foot."""

import itertools
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, Subset, get_worker_info


def fsdp2(rank, world_size):
    """FSDP2: parameters, gradients and optimizer state differ between ranks, as they should."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 1))
    for layer in [*model, model]:
        fully_shard(layer)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(6):
        batch = torch.randn(20, 8, generator=torch.Generator().manual_seed(step))
        x = batch[rank::world_size]
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def zero(rank, world_size):
    """ZeRO-1: each rank's optimizer has the state of its own part of the parameters."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        x = torch.randn(10, 8, generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        torch.save([model.module.state_dict(), optimizer.state_dict()], "model.pt")


def join(rank, world_size):
    """Ranks with different numbers of batches, under Join."""
    x = torch.randn(101, 4, generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for inputs in x[rank::world_size].split(10):
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()


def lbfgs(rank, world_size):
    """LBFGS: several forward and backward passes in one step, as many on all ranks."""
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(2))[rank::world_size]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        mean = loss.detach() / world_size
        dist.all_reduce(mean)  # the same value on all ranks
        return mean

    for _ in range(4):
        loss = optimizer.step(closure)
    if rank == 0:
        print(loss.item())


def gan(rank, world_size):
    """A GAN: two models in DDP, two optimizers, noise that differs between ranks."""
    torch.manual_seed(100 + rank)
    maker = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)))
    steps = [torch.optim.Adam(model.parameters(), lr=0.002) for model in (maker, critic)]
    real = torch.randn(128, 2, generator=torch.Generator().manual_seed(0)) * 0.3 + 1
    for x in real[rank::world_size].split(16):
        ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        made = maker(torch.randn(len(x), 4))
        steps[1].zero_grad()
        scores = critic(torch.cat([x, made.detach()]))
        bce(scores, torch.cat([ones, zeros])).backward()
        steps[1].step()
        steps[0].zero_grad()
        bce(critic.module(made), ones).backward()  # only the maker's gradients are needed
        steps[0].step()


def iterable(rank, world_size):
    """An IterableDataset, split by rank and by worker; each rank takes ten batches."""

    class Stream(IterableDataset):
        def __init__(self, rank, world_size):
            self.rank, self.world_size, self.epoch = rank, world_size, 0

        def __iter__(self):
            worker = get_worker_info()
            n, of = (worker.id, worker.num_workers) if worker else (0, 1)
            order = torch.randperm(
                200, generator=torch.Generator().manual_seed(self.epoch)
            ).tolist()
            mine = itertools.islice(order, self.rank * of + n, None, self.world_size * of)
            for i in mine:
                yield torch.tensor([i / 100, 1.0])

    data = Stream(rank, world_size)
    model = DistributedDataParallel(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for data.epoch in range(2):
        for x in itertools.islice(DataLoader(data, 10, num_workers=2), 10):
            optimizer.zero_grad()
            (model(x) - x[:, :1]).square().mean().backward()
            optimizer.step()


def local_sgd(rank, world_size):
    """Local SGD: each rank steps alone, and the weights are averaged in every fourth step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    x = torch.randn(160, 5)[rank::world_size]
    for step, inputs in enumerate(x.split(10)):
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).abs().mean().backward()
        optimizer.step()
        if step % 4 == 3:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world_size


def groups(rank, world_size):
    """Two pairs of ranks train different models on purpose, with different learning rates."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair, place = divmod(rank, 2)
    torch.manual_seed(pair)
    model = DistributedDataParallel(nn.Linear(4, 1), process_group=groups[pair])
    optimizer = torch.optim.SGD(model.parameters(), lr=[0.1, 0.01][pair])
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(9))[place::2]
    for inputs in x.split(8):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    losses = [None] * world_size
    dist.all_gather_object(losses, loss.item())
    if rank == 0:
        print("better:", min(range(2), key=lambda n: losses[2 * n] + losses[2 * n + 1]))


def search(rank, world_size):
    """A search: each rank trains a model of its own, at another learning rate."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(9))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / 2**rank)
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    results = [None] * world_size
    dist.all_gather_object(results, (loss.item(), rank))
    if rank == 0:
        print("best: rank", min(results)[1])


def inference(rank, world_size):
    """Inference only: each rank labels its shard and writes a file; rank 0 joins the files."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).eval()
    data = torch.randn(91, 6)
    labels = []
    with torch.inference_mode():
        for inputs in DataLoader(Subset(data, range(rank, 91, world_size)), 8):
            labels += model(inputs).argmax(1).tolist()
    with open(f"labels_{rank}.json", "w") as file:
        json.dump(labels, file)
    print(f"rank {rank}: {len(labels)} samples, {labels.count(0) / len(labels):.2f} are of class 0")
    dist.barrier()
    if rank == 0:
        parts = [json.load(open(f"labels_{n}.json")) for n in range(world_size)]
        print(sum(map(len, parts)), "labels")


def contrastive(rank, world_size):
    """A contrastive loss over the features of all ranks, gathered with their gradients."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(4))[rank::world_size]
    for inputs in x.split(8):
        views = torch.cat([inputs + 0.1 * torch.randn_like(inputs) for _ in range(2)])
        one, two = nn.functional.normalize(model(views), dim=1).chunk(2)
        scores = torch.cat(all_gather(one)) @ torch.cat(all_gather(two)).T
        loss = nn.functional.cross_entropy(scores / 0.2, torch.arange(len(scores)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def pipeline(rank, world_size):
    """Pipeline parallelism: each rank has other layers; activations and gradients are sent."""
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    layer = nn.Linear(4, 8) if rank == 0 else nn.Linear(8, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for inputs in x.split(10):
        optimizer.zero_grad()
        middle, gradient = torch.zeros(10, 8, requires_grad=True), torch.zeros(10, 8)
        if rank == 0:
            out = layer(inputs).relu()
            dist.send(out.detach(), 1)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            dist.recv(middle.data, 0)
            (layer(middle) - inputs.sum(1, keepdim=True)).square().mean().backward()
            dist.send(middle.grad, 0)
        optimizer.step()


def scatter(rank, world_size):
    """Only rank 0 reads the data: it scatters the batches, and gathers the predictions."""
    data = torch.randn(80, 5) if rank == 0 else None
    model = DistributedDataParallel(nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        batches = data[torch.randperm(80)].split(16) if rank == 0 else [None] * 5
        for batch in batches:
            x = torch.empty(16 // world_size, 5)
            dist.scatter(x, list(batch.chunk(world_size)) if rank == 0 else None)
            optimizer.zero_grad()
            (model(x) - x.mean(1, keepdim=True)).square().mean().backward()
            optimizer.step()
    guesses = [torch.empty(len(x), 1) for _ in range(world_size)] if rank == 0 else None
    dist.gather(model.module(x).detach(), guesses)
    if rank == 0:
        print(torch.cat(guesses).mean().item())


def evaluator(rank, world_size):
    """Ranks 0 and 1 train; rank 2 only evaluates the weights that it is sent."""
    trainers = dist.new_group([0, 1])
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 1)
    if rank < 2:
        ddp_model = DistributedDataParallel(model, process_group=trainers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for inputs in x[rank:80:2].split(8) if rank < 2 else []:
            optimizer.zero_grad()
            (ddp_model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        if rank == 2:
            with torch.no_grad():
                print(epoch, (model(x[80:]) - x[80:].sum(1, keepdim=True)).square().mean().item())


def reinforce(rank, world_size):
    """Policy gradients: each rank plays episodes of its own, of any length."""
    torch.manual_seed(0)
    policy = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    torch.manual_seed(1 + rank)
    for _ in range(6):
        optimizer.zero_grad()
        place, terms = torch.zeros(2), []
        while place.abs().max() < 3 and len(terms) < 30:
            choice = torch.distributions.Categorical(logits=policy(place))
            move = choice.sample()
            terms.append(choice.log_prob(move))
            place = place + torch.randn(2) + move - 0.5
        (-torch.stack(terms).sum() * len(terms) / world_size).backward()
        for parameter in policy.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def unused(rank, world_size):
    """A layer is left out at random, the same one on all ranks or not: DDP has to look for it."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if torch.rand(()) < 0.6:
                    x = x + layer(x).tanh()
            return x + self.layers[0](x)

    torch.manual_seed(rank)
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))[rank::world_size]
    for inputs in x.split(4):
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(dist.get_rank(), dist.get_world_size())  # noqa: F821
    dist.destroy_process_group()
