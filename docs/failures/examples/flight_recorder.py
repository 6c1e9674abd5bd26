"""A hang with gloo, and what the flight recorder of each rank says about it (PyTorch 2.14).

torchrun --standalone --nproc-per-node 2 docs/failures/examples/flight_recorder.py
torchfrtrace --just_print_entries traces
"""

import os
import pickle
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def main():
    if "RANK" not in os.environ:
        raise SystemExit("start it with torchrun, as the first lines of this file show")
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    try:
        dist.all_reduce(torch.ones(1))
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(29))  # Rank 1 skips this call.
        dist.barrier()
    except RuntimeError:  # The timeout raises this after five seconds, on both ranks.
        dump(Path("traces"))


def dump(folder):
    """Write the entries of this rank's recorder in the format that torchfrtrace reads."""
    trace = pickle.loads(_dump_fr_trace())
    groups = trace["pg_config"]
    if "0" not in groups:  # PyTorch 2.14.1 records gloo's group without a name.
        groups["0"] = {**groups[""], "name": "0", "desc": "default_pg"}
    folder.mkdir(exist_ok=True)
    (folder / f"rank_{dist.get_rank()}").write_bytes(pickle.dumps(trace))


if __name__ == "__main__":
    main()
