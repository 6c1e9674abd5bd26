"""Digits that are rotated at random when they are loaded: the data set of notebooks 1 and 3.

It is in a file, because the processes of a loader's workers must import it. They cannot import
what a notebook's cell defines (unless they are forked, which macOS and Windows do not do).
"""

import torch
from torch.utils.data import Dataset, get_worker_info
from torchvision.transforms.functional import rotate


class Rotated(Dataset):
    """Item i is image i, rotated by a random angle: (image [28, 28], angle, worker, worker seed).

    images: uint8 [N, 28, 28].
    generator: the angles are drawn from it. None stands for the default generator of the process.
    The angle is in degrees, from -60 to 60. Without loader workers, the worker and its seed are -1.
    """

    def __init__(self, images, generator=None):
        self.images = images
        self.generator = generator

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        angle = 120 * torch.rand((), generator=self.generator).item() - 60
        image = rotate(self.images[index][None], angle)[0]
        worker = get_worker_info()
        if worker is None:
            return image, angle, -1, -1
        return image, angle, worker.id, worker.seed


def reseed(worker):
    """For worker_init_fn: each worker seeds its copy of the generator with its worker seed."""
    copy = get_worker_info().dataset.generator
    copy.manual_seed(torch.initial_seed())  # In a worker, the initial seed is the worker seed.
