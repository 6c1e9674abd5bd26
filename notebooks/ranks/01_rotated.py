"""Digits that are rotated at random when they are loaded: the data set of notebooks 1 and 3.

It is in a file, because the processes of a loader's workers must import it. They cannot import
what a notebook's cell defines (unless they are forked, which macOS and Windows do not do).
"""

import torch
from torch.utils.data import Dataset, get_worker_info
from torchvision.transforms.functional import rotate


class Rotated(Dataset):
    """Item i is image i, rotated by a random angle -> (image [28, 28], angle, worker, its seed).

    images: uint8 [N, 28, 28]. generator: where the angles come from; None is the process's own.
    The angle is in degrees, from -60 to 60. Without workers the last two are -1.
    """

    def __init__(self, images, generator=None):
        self.images, self.generator = images, generator

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        angle = 120 * torch.rand((), generator=self.generator).item() - 60
        image = rotate(self.images[index][None], angle)[0]
        worker = get_worker_info()
        return image, angle, worker.id if worker else -1, worker.seed if worker else -1


def reseed(worker):
    """For worker_init_fn: let a worker's copy of the generator begin at its worker seed."""
    get_worker_info().dataset.generator.manual_seed(torch.initial_seed())
