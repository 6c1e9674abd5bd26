"""Lightning: a LightningModule with BatchNorm and dropout, a validation set of 60 samples."""

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(0)
x = torch.randn(220, 8, generator=generator)
data = TensorDataset(x, (x.sum(1) > 0).long())
train = torch.utils.data.Subset(data, range(160))
test = torch.utils.data.Subset(data, range(160, 220))


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, i):
        inputs, targets = batch
        loss = cross_entropy(self.model(inputs), targets)
        return loss

    def validation_step(self, batch, i):
        inputs, targets = batch
        right = (self.model(inputs).argmax(1) == targets).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Classifier(), DataLoader(train, 8, shuffle=True), DataLoader(test, 10))
