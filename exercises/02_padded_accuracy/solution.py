"""Our solution of exercise 02. The task is in task.py, next to this file."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset


def evaluate(model, dataset):
    """Test on this rank's part of the data. Return the accuracy on the whole data set in %."""
    # On N ranks, each rank takes every N-th image, so no image is tested twice. A
    # DistributedSampler would repeat images until all ranks have equally many. A test must not.
    shard = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    loader = DataLoader(shard, batch_size=4)
    correct = torch.tensor(0)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(dim=1) == y).sum()
    dist.all_reduce(correct)
    return 100 * correct.item() / len(dataset)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    labels = torch.arange(11) % 3
    images = F.one_hot(labels).float()  # A model that returns its input is right.
    accuracy = evaluate(torch.nn.Identity(), TensorDataset(images, labels))
    print(f"rank {dist.get_rank()}: {accuracy:.2f} % of {len(images)} images are right")
    dist.destroy_process_group()
