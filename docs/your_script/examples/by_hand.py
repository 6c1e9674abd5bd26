"""Start ranks on several nodes with multiprocessing, without a launcher.

Run it once on each node, with the number of the node. To rehearse two nodes of two ranks on one
machine, run both lines in the same shell:

    python docs/your_script/examples/by_hand.py --node-rank 1 &
    python docs/your_script/examples/by_hand.py --node-rank 0
"""

import argparse
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def main():
    args = parse_args()
    if args.start == "spawn":
        # mp.spawn calls worker(local_rank, args). If a rank fails, it ends the others of this node
        # and raises the error here.
        mp.spawn(worker, args=(args,), nprocs=args.nproc_per_node)
    else:
        start_by_hand(args)


def start_by_hand(args):
    # A new process of "spawn" begins with an empty interpreter and imports this file. A fork would
    # copy this process, which fails as soon as this process has used CUDA.
    context = mp.get_context("spawn")
    processes = []
    for local_rank in range(args.nproc_per_node):
        process = context.Process(target=worker, args=(local_rank, args))
        process.start()
        processes.append(process)
    # join() only waits. If one rank fails, nobody ends the other ranks, here or on other nodes.
    for process in processes:
        process.join()
    # The exit code of a process is not raised as an exception, so the caller must look at it.
    failed = [process.exitcode for process in processes if process.exitcode != 0]
    if failed:
        sys.exit(f"node {args.node_rank}: exit codes of failed ranks: {failed}")


def worker(local_rank, args):
    """One rank. Its number among all ranks follows from the number of its node."""
    rank = args.node_rank * args.nproc_per_node + local_rank
    world_size = args.nnodes * args.nproc_per_node
    if rank == args.fail:
        raise RuntimeError(f"rank {rank} fails before it joins the group")
    join_group(rank, world_size, args)
    total = torch.tensor(rank)
    dist.all_reduce(total)
    print(
        f"rank {rank} of {world_size}: node {args.node_rank}, local rank {local_rank}, "
        f"sum of the ranks {total.item()}",
        flush=True,
    )
    dist.destroy_process_group()


def join_group(rank, world_size, args):
    """Join the other ranks. Both ways give PyTorch the same four values."""
    timeout = timedelta(seconds=args.timeout)
    if args.init == "tcp":
        meeting_point = f"tcp://{args.master_addr}:{args.master_port}"
        dist.init_process_group(
            "gloo",  # on GPUs "nccl", after torch.cuda.set_device(local_rank)
            init_method=meeting_point,
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    else:
        os.environ["MASTER_ADDR"] = args.master_addr
        os.environ["MASTER_PORT"] = str(args.master_port)
        os.environ["RANK"] = str(rank)
        os.environ["WORLD_SIZE"] = str(world_size)
        # The default of init_method is "env://": read these four variables.
        dist.init_process_group("gloo", timeout=timeout)


def parse_args():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--nnodes", type=int, default=2, help="number of nodes (2)")
    add("--node-rank", type=int, default=0, help="number of this node, from 0 (0)")
    add("--nproc-per-node", type=int, default=2, help="ranks on each node (2)")
    add("--master-addr", default="127.0.0.1", help="address of node 0 (127.0.0.1)")
    add("--master-port", type=int, default=29513, help="a port that is free on node 0 (29513)")
    add("--start", choices=("process", "spawn"), default="process", help="(process)")
    add("--init", choices=("tcp", "env"), default="tcp", help="how the ranks meet (tcp)")
    add("--timeout", type=int, default=60, help="seconds to wait for the other ranks (60)")
    add("--fail", type=int, help="the number of a rank that fails at its start")
    return parser.parse_args()


if __name__ == "__main__":
    main()
