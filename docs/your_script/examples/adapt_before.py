"""A complete program on one device: it trains a small network until the error is small.

adapt_after.py is this program made data-parallel. docs/your_script/adapt.md explains the steps.
Run it: python docs/your_script/examples/adapt_before.py
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    x = 2 * torch.rand(12_000, 8) - 1
    y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2
    train_set, valid_set = random_split(TensorDataset(x, y), [10_000, 2_000])
    loader = DataLoader(train_set, batch_size=100, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=500)

    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    for epoch in range(8):
        model.train()
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            x = x + 0.01 * torch.randn_like(x)  # augmentation
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        total = torch.zeros(2, device=device)  # the sum of the errors and their number
        with torch.inference_mode():
            for x, y in valid_loader:
                x = x.to(device)
                y = y.to(device)
                total[0] += F.mse_loss(model(x), y, reduction="sum")
                total[1] += len(y)
        error = (total[0] / total[1]).item()
        print(f"epoch {epoch}: error {error:.4f} on {total[1]:.0f} points")
        torch.save(model.state_dict(), "regression.pt")
        if error < 0.01:
            break


def network():
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )  # fmt: skip


if __name__ == "__main__":
    main()
