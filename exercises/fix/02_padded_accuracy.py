"""DDP: accuracy above 100 %

The model is right on all 11 images, and the test says 109.09 %. With a model that makes mistakes,
the figure is also wrong, by less, and it changes with the number of ranks. Neither a division by
the number of tested images nor the mean of the ranks' accuracies helps. Every rank must return the
accuracy that one process finds. No rank may test more images than it must (6 of 11 on two). Fix
`evaluate`.

torchrun --standalone --nproc-per-node 2 exercises/fix/02_padded_accuracy.py  # shows it
python exercises/check.py 02                                                  # is it fixed?
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, dataset):
    """Test the model on this rank's shard -> accuracy over the whole data set, in percent."""
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
    images = F.one_hot(labels).float()  # so simple that the best model returns its input
    accuracy = evaluate(torch.nn.Identity(), TensorDataset(images, labels))
    print(f"rank {dist.get_rank()}: {accuracy:.2f} % of {len(images)} images are right")
    dist.destroy_process_group()
