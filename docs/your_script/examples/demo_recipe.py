"""Train the recipe of a DDP demo on MNIST in one process: how does each change the accuracy?

The demo trains three epochs with plain SGD at a rate of 1e-4, and 32 images per step on each GPU.
Two GPUs together take 64 images per step. One process with 64 images does the same.

    python docs/your_script/examples/demo_recipe.py --batch-size 32
    python docs/your_script/examples/demo_recipe.py --batch-size 64
    python docs/your_script/examples/demo_recipe.py --batch-size 64 --lr 2e-4
    python docs/your_script/examples/demo_recipe.py --amp fp16 --loss-outside --steps 300
"""

import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision import datasets


def make_model():
    """The network of the demo, which is that of the stages: [B, 1, 28, 28] -> [B, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip


def train(model, images, labels, args):
    """Train, and return the number of steps and of those that the GradScaler has skipped."""
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    # As in the stages, the scaler is enabled for fp16 only. The demo always enables it.
    scaler = torch.amp.GradScaler("cpu", enabled=args.amp == "fp16")
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.amp)
    steps = 0
    skipped = 0
    model.train()
    for _ in range(args.epochs):
        for batch in torch.randperm(len(images)).split(args.batch_size):
            with torch.autocast("cpu", precision, enabled=precision is not None):
                outputs = model(images[batch])
                if not args.loss_outside:
                    loss = F.cross_entropy(outputs, labels[batch])
            if args.loss_outside:
                loss = F.cross_entropy(outputs, labels[batch])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scale = scaler.get_scale()
            scaler.update()
            # After an infinite gradient the scaler skips the step and halves its scale.
            if scaler.get_scale() < scale:
                skipped += 1
            steps += 1
            if steps == args.steps:
                return steps, skipped
    return steps, skipped


@torch.inference_mode()
def accuracy(model, images, labels):
    model.eval()
    correct = 0
    for x, y in zip(images.split(500), labels.split(500)):
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(labels)


def load(root, train):
    """Return images [N, 1, 28, 28] between 0 and 1, and labels [N]."""
    data = datasets.MNIST(root, train=train)
    return data.data.unsqueeze(1) / 255, data.targets


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--batch-size", type=int, default=32, help="images per step, of all ranks together (32)")
    add("--lr", type=float, default=1e-4, help="learning rate (1e-4)")
    add("--epochs", type=int, default=3)
    add("--steps", type=int, help="stop after so many steps")
    add("--amp", choices=("off", "bf16", "fp16"), default="off")
    add("--loss-outside", action="store_true", help="compute the loss in fp32, as the demo does")
    add("--seed", type=int, default=0)
    add("--data", default=os.getenv("MNIST_ROOT", "data"), help="folder of MNIST (data)")
    args = parser.parse_args()
    torch.set_num_threads(1)  # as the ranks of the stages
    torch.manual_seed(args.seed)
    model = make_model()
    steps, skipped = train(model, *load(args.data, train=True), args)
    print(f"{args.batch_size} images per step, learning rate {args.lr:g}, amp {args.amp}")
    print(f"{steps:,} steps, of which the GradScaler skipped {skipped}")
    print(f"test accuracy {accuracy(model, *load(args.data, train=False)):.2%}")


if __name__ == "__main__":
    main()
