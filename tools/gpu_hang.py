"""A hang under NCCL for `make gpu`: rank 1 skips an all-reduce, and NCCL's watchdog ends the wait.

    TORCH_FR_DUMP_TEMP_FILE=FOLDER/rank_ torchrun --standalone --nproc-per-node 2 tools/gpu_hang.py

Each rank writes its flight recorder to FOLDER/rank_N, and torchfrtrace reads these files.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=20), device_id=device)
    numbers = torch.ones(29, device=device)
    dist.all_reduce(numbers)
    if dist.get_rank() == 0:
        dist.all_reduce(numbers)
    dist.barrier()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
