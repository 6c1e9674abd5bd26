"""Your own backend: PyTorch's DistributedDataParallel trains over the ring all-reduce you wrote.

A backend is a process group: an object that can all-reduce, broadcast and gather. Here it has a
socket to each neighbour, a thread that runs collectives one by one during backward, and two that
send and receive for it. The all-reduce is `ring` of from_scratch.py; stage 4 trains, on CPUs.

    torchrun --standalone --nproc-per-node 2 05_multinode/own_backend.py -e 1
"""

import importlib
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

sys.path.insert(0, f"{os.path.dirname(__file__)}/..")  # the root
stage4 = importlib.import_module("04_ddp_torchrun.train")
from_scratch = importlib.import_module("05_multinode.from_scratch")


def main():
    # The sockets read CPU memory, so PyTorch must not see a GPU.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    args = stage4.parse_args()
    args.backend = "ring"  # The record says what the ranks communicated with.
    if os.environ["LOCAL_RANK"] == "0":
        stage4.download_mnist(args.data)  # One rank per node downloads, before it joins the others.
    dist.init_process_group(args.backend, timeout=timedelta(seconds=args.timeout))
    try:
        dist.all_reduce(torch.zeros(1))  # A barrier: no rank has the sum before all are here.
        stage4.train(args, torch.device("cpu"))
        print(f"rank {dist.get_rank()} has sent {dist.group.WORLD.sent:,} bytes")
    finally:
        # This closes the sockets. A neighbour that waits for this rank then fails at once.
        dist.destroy_process_group()


class Promise(dist.Work):
    """What a collective returns at once; its future is complete when a thread has done the work."""

    def get_future(self):  # DDP waits for it at the end of backward
        return self.future

    def wait(self, timeout=None):  # dist.all_reduce waits here, unless async_op=True
        self.future.wait()
        return True


def in_thread(name, method):
    """Decorate a method of Ring: a call returns a promise, and one of its threads does the work."""

    def start(self, *args):
        promise = Promise()
        turn = torch.futures.Future()
        promise.future = turn.then(lambda _: method(self, *args))  # keeps what it returns or raises
        self.threads[name].submit(turn.set_result, None)  # in the thread: calls method
        return promise

    return start


class Ring(dist.ProcessGroup):
    """All ranks in a ring. PyTorch calls its methods. timeout: how long a message may take."""

    def __init__(self, store, rank, world_size, timeout):
        super().__init__(rank, world_size)
        if dist.is_initialized():
            raise ValueError("a ring has all ranks: it is no group for new_group")
        self.left = (rank - 1) % world_size
        self.right = (rank + 1) % world_size
        self.sent = 0  # bytes
        with socket.socket(type=socket.SOCK_DGRAM) as probe:  # for UDP connect() sends nothing
            probe.connect((os.getenv("MASTER_ADDR", "127.0.0.1"), 1))
            here = probe.getsockname()[0]  # this node's address in the network that has rank 0
        with socket.create_server((here, 0)) as server:
            server.settimeout(timeout.total_seconds())
            store.set(f"address {rank}", f"{here} {server.getsockname()[1]}")
            address = store.get(f"address {self.right}").decode().split()
            self.outgoing = socket.create_connection(address, timeout.total_seconds())
            self.incoming, _ = server.accept()
        self.outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # send at once
        self.incoming.settimeout(timeout.total_seconds())
        self.inbox = self.incoming.makefile("rb")
        self.threads = {name: ThreadPoolExecutor(1) for name in ("collectives", "out", "in")}

    @partial(in_thread, "collectives")
    @torch.inference_mode()  # stage 4 all-reduces a tensor that was made in inference mode
    def allreduce(self, tensors, options):  # DDP: a bucket of gradients
        if options.reduceOp != dist.ReduceOp.SUM:
            raise ValueError("this ring can only add up")
        from_scratch.ring(tensors[0].view(-1))  # dist.isend, dist.irecv: send and recv, below
        return tensors

    @partial(in_thread, "collectives")
    def broadcast(self, tensors, options):  # DDP: rank 0's weights, from neighbour to neighbour
        if self.rank() != options.rootRank:
            dist.recv(tensors[0], self.left)
        if self.right != options.rootRank:
            dist.send(tensors[0], self.right)

    @partial(in_thread, "collectives")
    def allgather(self, outputs, inputs, options):  # DDP: do all ranks have the same model?
        rank = self.rank()
        everyone = outputs[0]
        everyone[rank].copy_(inputs[0])
        for i in range(self.size() - 1):  # the second half of a ring all-reduce
            from_scratch.exchange(everyone[rank - i], self.right, everyone[rank - i - 1], self.left)

    @partial(in_thread, "out")
    def send(self, tensors, peer, tag):
        if peer != self.right:
            raise ValueError(f"rank {self.rank()} has no link to rank {peer}")
        data = tensors[0].detach().view(-1).view(torch.uint8).numpy()  # its bytes, where they lie
        self.outgoing.sendall(data)
        self.sent += len(data)

    @partial(in_thread, "in")
    def recv(self, tensors, peer, tag):
        if peer != self.left:
            raise ValueError(f"rank {self.rank()} has no link from rank {peer}")
        data = tensors[0].detach().view(-1).view(torch.uint8).numpy()
        if self.inbox.readinto(data) < len(data):
            raise ConnectionError(f"rank {peer} has ended")

    def shutdown(self):  # destroy_process_group calls it
        self.outgoing.close()  # the right neighbour fails if it waits, and so on round the ring


dist.Backend.register_backend("ring", Ring, devices=["cpu"])

if __name__ == "__main__":
    main()
