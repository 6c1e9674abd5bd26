"""The shortest complete script, on one device. 04_ddp_torchrun/minimal.py runs on several."""

import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    data = {"root": os.getenv("MNIST_ROOT", "data"), "transform": transforms.ToTensor()}
    try:
        train_set = datasets.MNIST(download=True, **data)
        test_set = datasets.MNIST(train=False, **data)
    except Exception as error:  # no network, or a damaged file
        raise SystemExit(f"no MNIST in {data['root']}: {error!r}") from None
    loader = DataLoader(train_set, batch_size=240, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=500)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(2):
        model.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        correct = torch.zeros((), device=device)
        with torch.inference_mode():
            for x, y in test_loader:
                correct += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        print(f"epoch {epoch}: {correct:.0f} of {len(test_set)} test images correct")
        torch.save(model.state_dict(), "minimal.pt")


if __name__ == "__main__":
    main()
