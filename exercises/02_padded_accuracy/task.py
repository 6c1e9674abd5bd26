"""DDP: accuracy above 100 %

The model classifies all 11 images correctly, but the script prints an accuracy of 109.09 %. With a
model that makes mistakes, the accuracy is wrong as well. Two changes do not correct it: dividing by
the number of tested images, and averaging the accuracies of the ranks. Every rank must return the
accuracy that a single process finds. The work must be shared: on two ranks, no rank may test more
than 6 of the 11 images. Fix `evaluate`.

torchrun --standalone --nproc-per-node 2 exercises/02_padded_accuracy/task.py  # the symptom
python exercises/check.py 02                                                   # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, dataset):
    """Test on this rank's part of the data. Return the accuracy on the whole data set in %."""
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
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
