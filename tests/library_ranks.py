"""What a library does with data and numbers on two ranks: test_libraries.py starts it, by torchrun.

python -m torch.distributed.run --standalone --nproc-per-node 2 tests/library_ranks.py accelerate
"""

import json
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

NUMBERS = torch.arange(20.0).view(-1, 1)
ODD = TensorDataset(torch.arange(9.0).view(-1, 1))


class Stream(IterableDataset):
    """The same numbers, for a loader that has no sampler. Notes whether this rank has read it."""

    read = False

    def __iter__(self):
        self.read = True
        for number in NUMBERS:
            yield {"x": number}


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        return {"x": torch.tensor([float(i)]), "labels": torch.zeros(1)}


class Batches:
    """A batch sampler that notes the epochs which it is told."""

    batch_size = 2
    drop_last = False
    sampler = None

    def __init__(self):
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)

    def __iter__(self):
        return iter([[2 * number, 2 * number + 1] for number in range(10)])

    def __len__(self):
        return 10


def flat(batches):
    return sorted(int(number) for batch in batches for number in batch.flatten())


def accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = TensorDataset(NUMBERS)
    found = {}
    loader = accelerator.prepare(DataLoader(data, batch_size=2))
    found["split"] = flat(batch for (batch,) in loader)
    sampler = DistributedSampler(data, shuffle=False)
    loader = accelerator.prepare(DataLoader(data, batch_size=2, sampler=sampler))
    found["split twice"] = flat(batch for (batch,) in loader)
    stream = Stream()
    found["stream"] = flat(b["x"] for b in accelerator.prepare(DataLoader(stream, batch_size=2)))
    found["stream was read"] = stream.read
    loader = accelerator.prepare(DataLoader(ODD, batch_size=2))
    batches = [batch for (batch,) in loader]
    found["gather"] = len(flat(accelerator.gather(batch) for batch in batches))
    found["gather_for_metrics"] = []
    for (batch,) in loader:
        found["gather_for_metrics"] += flat([accelerator.gather_for_metrics(batch)])
    loader = accelerator.prepare(DataLoader(data, batch_size=2, shuffle=True))
    found["epochs"] = [[int(x) for (batch,) in loader for x in batch] for _ in range(2)]
    batches = Batches()
    for _ in accelerator.prepare(DataLoader(data, batch_sampler=batches)):
        pass
    found["told"] = batches.told
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            gradient = model.module.weight.grad.item()
            optimizer.step()
            schedule.step()
    found["gradient"] = gradient
    found["rate"] = schedule.get_last_lr()[0]
    return found


def torchmetrics():
    from torchmetrics import MeanMetric

    dist.init_process_group("gloo")
    metric = MeanMetric()
    metric.update(float(dist.get_rank()))
    return {"compute": metric.compute().item()}


def transformers():
    from transformers import Trainer, TrainingArguments

    seen = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels=None):
            if self.training:
                seen.append(x)
            y = self.layer(x) * 0 + x
            return {"loss": y.mean(), "logits": y}

    def train(data, max_steps=5):
        seen.clear()
        folder = sys.argv[2]
        settings = dict(use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True)
        settings |= dict(per_device_train_batch_size=2, logging_steps=1, max_steps=max_steps)
        trainer = Trainer(
            Net(),
            TrainingArguments(folder, per_device_eval_batch_size=2, **settings),
            train_dataset=data,
            eval_dataset=Rows(9),
            compute_metrics=lambda prediction: {"rows": len(prediction.predictions)},
        )
        trainer.train()
        return trainer

    trainer = train(Rows(20))
    found = {"split": flat(seen)}
    found["first loss"] = trainer.state.log_history[0]["loss"]
    found["first batch"] = seen[0].mean().item()
    found["rows evaluated"] = trainer.evaluate()["eval_rows"]
    train(Stream())
    found["stream"] = flat(seen)
    train(Rows(20), max_steps=10)
    order = [int(x) for batch in seen for x in batch]
    found["epochs"] = [order[:10], order[10:]]
    return found


def fabric():
    import lightning as L

    fabric = L.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    loader = fabric.setup_dataloaders(
        DataLoader(TensorDataset(NUMBERS), batch_size=2, shuffle=True)
    )
    return {"epochs": [[int(x) for (batch,) in loader for x in batch] for _ in range(2)]}


def lightning():
    import lightning as L

    data = TensorDataset(NUMBERS)

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []
            self.validated = []

        def training_step(self, batch, number):
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            self.seen.append(x)
            return self.layer(x).sum()

        def validation_step(self, batch, number):
            self.validated.append(batch[0])
            self.log("own", float(self.global_rank))
            self.log("synced", float(self.global_rank), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def train(loader, epochs=1):
        net = Net()
        quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        quiet |= dict(enable_model_summary=False, num_sanity_val_steps=0)
        quiet |= dict(max_epochs=epochs)
        trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", **quiet)
        trainer.fit(net, loader, DataLoader(ODD, batch_size=1))
        return net, trainer

    net, trainer = train(DataLoader(data, batch_size=2))
    found = {"split": flat(net.seen), "validated": len(net.validated)}
    found |= {name: value.item() for name, value in trainer.callback_metrics.items()}
    sampler = DistributedSampler(data, shuffle=False)
    net, _ = train(DataLoader(data, batch_size=2, sampler=sampler))
    found["split twice"] = flat(net.seen)
    net, _ = train(DataLoader(Stream(), batch_size=2))
    found["stream"] = flat(net.seen)
    net, _ = train(DataLoader(data, batch_size=2, shuffle=True), epochs=2)
    order = [int(x) for batch in net.seen for x in batch]
    found["epochs"] = [order[:10], order[10:]]
    return found


if __name__ == "__main__":
    found = globals()[sys.argv[1]]()
    both = [None, None]
    dist.all_gather_object(both, found)
    if dist.get_rank() == 0:
        print("found " + json.dumps(both), flush=True)
    dist.barrier()
    dist.destroy_process_group()
