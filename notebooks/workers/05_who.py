"""What torchrun tells each rank, for the fifth notebook: it prints a rank's numbers as JSON."""

import json
import os

import torch
import torch.distributed as dist


def main() -> None:
    kinds = ("", "LOCAL_", "GROUP_")
    names = [kind + name for name in ("RANK", "WORLD_SIZE") for kind in kinds]
    numbers = {name: int(os.environ[name]) for name in names}
    dist.init_process_group("gloo")
    total = torch.tensor(numbers["RANK"])
    dist.all_reduce(total)  # over both hosts
    dist.destroy_process_group()
    print(json.dumps(numbers | {"sum": total.item()}))


if __name__ == "__main__":
    main()
