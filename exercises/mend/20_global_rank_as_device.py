"""CUDA error: invalid device ordinal, only on the second node

On one node all is well. With a second one, its processes ask for GPUs that it does not have. Each
process is to get a GPU of its own, one of those on its node; another node may have more or fewer.
Mend `device_of_this_rank`. No GPU is needed: the script only compares the name with those that
there would be. Here both nodes are this computer:

torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 exercises/mend/20_global_rank_as_device.py &
torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 exercises/mend/20_global_rank_as_device.py
python exercises/check.py 20    # is it mended?
"""

import os

import torch
import torch.distributed as dist


def device_of_this_rank():
    """-> torch.device: the GPU of this process, as its node numbers them."""
    rank = int(os.environ["RANK"])
    return torch.device(f"cuda:{rank}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    device = device_of_this_rank()
    gpus = int(os.environ["LOCAL_WORLD_SIZE"])  # on a node: one for each of its processes
    print(
        f"rank {dist.get_rank()} on node {os.environ['GROUP_RANK']} takes {device} "
        f"of {', '.join(f'cuda:{n}' for n in range(gpus))}"
        f"{'' if device.index < gpus else ': invalid device ordinal'}"
    )
    dist.destroy_process_group()
