"""Accelerate: a loop with its prepared loaders, and an evaluation of 61 samples."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(accelerator.process_index)
generator = torch.Generator().manual_seed(0)
x = torch.randn(221, 8, generator=generator)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(Subset(data, range(160)), 8, shuffle=True)
tests = DataLoader(Subset(data, range(160, 221)), 8)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
loader, tests = accelerator.prepare(loader, tests)
for epoch in range(2):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
    model.eval()
    rights = []
    for inputs, targets in tests:
        with torch.no_grad():
            right = model(inputs).argmax(1) == targets
        rights.append(accelerator.gather_for_metrics(right.float()))
    mean_loss = accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"epoch {epoch}: {torch.cat(rights).mean():.4f}, {mean_loss:.4f}")
accelerator.end_training()
