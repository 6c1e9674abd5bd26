"""What only rank 0 does, and how the other ranks learn of it.

- TensorBoard's events and a log file: rank 0 writes them, no other rank needs them
- early stopping: only rank 0 has the accuracy, so it decides, and broadcasts its decision as a
  Python object (broadcast_object_list): all ranks leave the loop after the same epoch
- --alone: rank 0 leaves the loop without a broadcast; the other ranks train on, and on CPUs every
  rank waits in a collective that the others do not call, until --timeout

    torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/rank_zero.py --tensorboard runs
    torchrun --standalone --nproc-per-node 2 04_ddp_torchrun/rank_zero.py --alone
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def run(args, device):
    """Train for args.epochs epochs, or until rank 0 has seen the accuracy args.target."""
    import train

    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    train_set, test_set = train.load_mnist(args.data)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler, collate_fn=tuple)
    model = train.ConvNet().to(device)
    ddp_model = DistributedDataParallel(model)
    ddp_model.broadcast_buffers = False  # not in every forward: once an epoch, below
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=False)
    writer = open_writer(args.tensorboard) if rank == 0 and args.tensorboard else None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, _ = train.train_epoch(ddp_model, loader, optimizer, scaler, device, "off")
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
        counts = train.evaluate(model, test_set, device, rank, world_size)
        dist.reduce(counts, dst=0)  # the sum over all ranks, on rank 0 only
        reached = False
        if rank == 0:
            accuracy = (counts[0] / counts[1]).item()
            log_epoch(writer, epoch, loss, accuracy)
            reached = accuracy >= args.target
        if not args.alone:
            reached = decision_of_rank_0(reached)
        if reached:
            break
    dist.barrier()  # stands for whatever follows: saving, a last evaluation
    if rank == 0:
        print(f"done after {epoch + 1} epoch(s)")


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
    import train

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
    args = parser.parse_args()
    if "RANK" not in os.environ:
        train.stop("start it with torchrun, as --help shows")
    local_rank = int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    with train.process_group(device, args.timeout):
        if local_rank == 0:  # one rank per node downloads
            train.load_mnist(args.data)
        dist.barrier()
        try:
            run(args, device)
        except OSError as error:  # only rank 0 writes
            train.stop(f"cannot write to {args.tensorboard}: {error.strerror}; is the disk full?")


if __name__ == "__main__":
    main()
