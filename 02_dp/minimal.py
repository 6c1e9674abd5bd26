"""Train a small network on MNIST: one process, on all GPUs of this machine (nn.DataParallel).

python 02_dp/minimal.py
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train(device)


def train(device):
    train_set, test_set = load_mnist()
    batch_size = 240
    loader = DataLoader(train_set, batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=500)

    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 7 * 32, 10),
    ).to(device)
    # In each step DataParallel copies the model to every GPU, splits the batch among the GPUs, and
    # gathers the outputs on the first GPU. The loss there is the mean over the whole batch, so
    # backward adds up the gradients of the copies. With fewer than two GPUs the wrapper only calls
    # the model. Only training calls the wrapper. The test and torch.save use the model itself.
    dp_model = nn.DataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(2):
        model.train()
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            loss = F.cross_entropy(dp_model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        correct = torch.tensor(0, device=device)
        with torch.inference_mode():
            for x, y in test_loader:
                x = x.to(device)
                y = y.to(device)
                correct += (model(x).argmax(dim=1) == y).sum()
        print(f"epoch {epoch + 1}: {correct} of {len(test_set)} test images correct")
        torch.save(model.state_dict(), "minimal.pt")


def load_mnist():
    """Return the training set and the test set. They are downloaded if they are not there."""
    root = os.getenv("MNIST_ROOT", "data")
    train_set = datasets.MNIST(root, download=True, transform=transforms.ToTensor())
    test_set = datasets.MNIST(root, train=False, transform=transforms.ToTensor())
    return train_set, test_set


if __name__ == "__main__":
    main()
