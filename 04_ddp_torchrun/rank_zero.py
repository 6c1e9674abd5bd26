"""What only rank 0 does, and how the other ranks learn of it.

- Rank 0 writes TensorBoard's events and a log file. No other rank needs them.
- Rank 0 tests the model, so only rank 0 knows when to stop early. It broadcasts its decision as a
  Python object (broadcast_object_list), so that all ranks leave the loop after the same epoch.
- With --alone, rank 0 leaves the loop without a broadcast. The other ranks train on. On CPUs each
  rank then waits in a collective that the others do not call, until --timeout.

    torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/rank_zero.py --tensorboard runs
    torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/rank_zero.py --alone
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader, DistributedSampler


def run(args, device):
    """Train for args.epochs epochs, or until rank 0 has seen the accuracy args.target."""
    import train

    rank = dist.get_rank()
    world_size = dist.get_world_size()
    torch.manual_seed(rank)
    train_set, test_set = train.load_mnist(args.data)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler)
    model = train.make_model().to(device)
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    # train_epoch needs these two. With these arguments they change nothing.
    schedule = ConstantLR(optimizer, factor=1.0)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    writer = None
    if rank == 0:
        test_loader = DataLoader(test_set, batch_size=500)
        if args.tensorboard:
            writer = open_writer(args.tensorboard)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, _ = train.train_epoch(
            ddp_model, loader, optimizer, schedule, scaler, device, amp="off"
        )
        reached = False
        if rank == 0:
            accuracy = accuracy_of(model, test_loader, device)
            log_epoch(writer, epoch, loss, accuracy)
            reached = accuracy >= args.target
        if not args.alone:
            reached = decision_of_rank_0(reached)
        if reached:
            break
    dist.barrier()  # This line stands for whatever follows, such as saving.
    if rank == 0:
        print(f"done after {epoch + 1} epoch(s)")


@torch.inference_mode()
def accuracy_of(model, test_loader, device):
    """Test all images on this rank alone. The bare model, unlike ddp_model, calls no collective."""
    from train import to_device

    model.eval()
    correct = 0
    for images, labels in test_loader:
        x, y = to_device(images, labels, device)
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(test_loader.dataset)


def decision_of_rank_0(decision):
    """Every rank passes an object, and gets the one of rank 0."""
    box = [decision]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def open_writer(folder):
    from torch.utils.tensorboard import SummaryWriter  # here, because the import takes seconds

    return SummaryWriter(folder)


def log_epoch(writer, epoch, loss, accuracy):
    """Print a line; with a writer also put it into log.txt, and the numbers into TensorBoard."""
    line = f"epoch {epoch + 1}  loss {loss:.4f}  accuracy {accuracy:.2%}"
    print(line)
    if writer:
        writer.add_scalar("loss/train", loss, epoch)
        writer.add_scalar("accuracy/test", accuracy, epoch)
        writer.flush()
        with open(Path(writer.log_dir, "log.txt"), "a", encoding="utf-8") as log:
            log.write(line + "\n")


def main():
    from train import download_mnist

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("-e", "--epochs", type=int, default=5, help="at most so many (5)")
    add("-b", "--batch-size", type=int, default=240, help="images per step, over all ranks (240)")
    add("--data", type=Path, default=os.getenv("MNIST_ROOT", "data"), help="MNIST's folder (data)")
    add("--target", type=float, default=0.98, help="accuracy at which to stop (0.98)")
    add("--tensorboard", type=Path, help="folder for TensorBoard's events and log.txt")
    add("--timeout", type=float, default=20, help="seconds a rank waits for the others (20)")
    add("--alone", action="store_true", help="rank 0 stops alone: see what the others do")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    add("--backend", default=backend, help="gloo lets ranks share a GPU")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, as --help shows")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if local_rank == 0:
        download_mnist(args.data)  # One rank per node downloads, before it joins the others.
    dist.init_process_group(
        args.backend,
        timeout=timedelta(seconds=args.timeout),
        device_id=device if args.backend == "nccl" else None,
    )
    dist.barrier()
    run(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
