"""Provoke the messages that need a GPU: each case is a small script that fails on one GPU.

    python tests/provoke_gpu_messages.py FOLDER [NAME ...]    write FOLDER/NAME.log for each case

The entry that explains a case names it ("Provoke on a GPU" on the pages of messages). The logs of a
run on one NVIDIA H200 with PyTorch 2.11 are in doctor/tests/gpu_logs, with shortened paths, and
tests/test_messages.py looks for their entries.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from lib import processes

LONGEST = 100  # seconds that a case may take; most take ten
AT_A_TIME = 4

START = """
import os, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
"""
JOIN = """
rank = int(os.environ["RANK"])
device = torch.device("cuda", 0)
torch.cuda.set_device(device)
dist.init_process_group({group}, timeout=timedelta(seconds=20))
"""
NCCL = JOIN.format(group='"nccl", device_id=device')
GLOO = JOIN.format(group='"gloo"')

ONE_PROCESS = {
    "label_out_of_range": """
model = nn.Linear(4, 10).cuda()
labels = torch.tensor([3, 10]).cuda()
loss = nn.functional.cross_entropy(model(torch.rand(2, 4).cuda()), labels)
print(loss.item())
""",
    "index_out_of_range": """
embedding = nn.Embedding(100, 8).cuda()
vectors = embedding(torch.tensor([5, 100]).cuda())
print(vectors.sum().item())
""",
    "no_probability": """
probability = torch.tensor([0.5, 1.5]).cuda()
loss = nn.functional.binary_cross_entropy(probability, torch.ones(2).cuda())
print(loss.item())
""",
    "out_of_memory": """
free, total = torch.cuda.mem_get_info()
images = torch.empty(free + 2**30, dtype=torch.uint8, device="cuda")
""",
    "batch_on_the_cpu": """
model = nn.Linear(4, 10).cuda()
model(torch.rand(2, 4))
""",
    "labels_on_the_cpu": """
model = nn.Linear(4, 10).cuda()
output = model(torch.rand(2, 4).cuda())
nn.functional.cross_entropy(output, torch.tensor([1, 2]))
""",
    "half_and_float": """
model = nn.Linear(4, 10).cuda().half()
model(torch.rand(2, 4).cuda())
""",
    "cuda_in_a_worker": """
class Digits(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.rand(4).cuda()
torch.zeros(1).cuda()
for images in DataLoader(Digits(), batch_size=2, num_workers=2):
    print(images.shape)
""",
    "pinned_twice": """
digits = [torch.rand(4).cuda() for _ in range(8)]
for images in DataLoader(digits, batch_size=2, pin_memory=True):
    print(images.shape)
""",
    "unscaled_twice": """
model = nn.Linear(4, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", torch.float16):
    loss = model(torch.rand(2, 4).cuda()).sum()
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.unscale_(optimizer)
""",
    "scaler_without_gradients": """
model = nn.Linear(4, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
scaler.scale(torch.ones(1).cuda())
scaler.step(optimizer)
scaler.update()
""",
    "scaler_of_a_half_model": """
model = nn.Linear(4, 10).cuda().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
scaler.scale(model(torch.rand(2, 4).cuda().half()).sum()).backward()
scaler.unscale_(optimizer)
""",
    "checkpoint_of_another_gpu": """
torch.save({"w": torch.ones(2).cuda()}, "gpu.pt")
content = open("gpu.pt", "rb").read().replace(b"cuda:0", b"cuda:7")
open("gpu.pt", "wb").write(content)
print(torch.load("gpu.pt"))
""",
}
ONE_RANK = {
    "nccl_and_a_cpu_tensor": NCCL + "dist.all_reduce(torch.ones(2))\n",
    "group_not_destroyed": NCCL + "dist.all_reduce(torch.ones(2).cuda())\nprint('done')\n",
    "barrier_without_a_device": """
dist.init_process_group("nccl")
dist.barrier()
dist.destroy_process_group()
""",
    "watchdog_timeout": NCCL
    + """
numbers = torch.ones(29, device=device)
dist.all_reduce(numbers)
print("step 1", flush=True)
torch.cuda._sleep(10**11)  # the GPU is busy for longer than the timeout
dist.all_reduce(numbers)
torch.cuda.synchronize()
""",
    "ddp_around_a_cpu_model": NCCL + "DistributedDataParallel(nn.Linear(4, 4), device_ids=[0])\n",
    "strided_tensor": NCCL
    + "dist.all_gather_into_tensor(torch.ones(2, 2).cuda().t(), torch.ones(2, 2).cuda().t())\n",
    "label_out_of_range_under_ddp": NCCL
    + """
model = DistributedDataParallel(nn.Linear(4, 10).cuda(), device_ids=[0])
labels = torch.tensor([3, 10]).cuda()
loss = nn.functional.cross_entropy(model(torch.rand(2, 4).cuda()), labels)
loss.backward()
print(loss.item())
""",
}
TWO_RANKS = {
    "two_ranks_on_one_gpu": NCCL + "dist.all_reduce(torch.ones(2).cuda())\n",
    "a_gpu_for_each_rank": """
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
""",
    "device_id_of_another_gpu": """
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=device)
dist.all_reduce(torch.ones(2, device=device))
""",
    "one_rank_out_of_memory": GLOO
    + """
model = DistributedDataParallel(nn.Linear(4, 4).to(device), device_ids=[0])
for step in range(3):
    images = torch.rand(2, 4, device=device)
    if rank == 1 and step == 2:
        free, total = torch.cuda.mem_get_info()
        images = torch.empty(free + 2**30, dtype=torch.uint8, device=device)
    model(images).sum().backward()
    print(f"rank {rank} step {step}", flush=True)
""",
    "one_rank_with_a_wrong_label": GLOO
    + """
model = DistributedDataParallel(nn.Linear(4, 10).to(device), device_ids=[0])
for step in range(3):
    labels = torch.tensor([3, 10 if rank == 1 and step == 2 else 4], device=device)
    loss = nn.functional.cross_entropy(model(torch.rand(2, 4, device=device)), labels)
    loss.backward()
    print(f"rank {rank} step {step} loss {loss.item():.3f}", flush=True)
""",
}
COMMANDS = {
    "no_gpu_is_visible": "env CUDA_VISIBLE_DEVICES= python case.py",
    "ordinal_of_another_machine": "env CUDA_VISIBLE_DEVICES=7 python case.py",
}
CASES = {
    **{name: ("python case.py", code) for name, code in ONE_PROCESS.items()},
    **{
        name: ("torchrun --standalone --nproc-per-node 1 case.py", code)
        for name, code in ONE_RANK.items()
    },
    **{
        name: ("torchrun --standalone --nproc-per-node 2 case.py", code)
        for name, code in TWO_RANKS.items()
    },
    **{name: (command, "torch.zeros(1).cuda()\n") for name, command in COMMANDS.items()},
}


def run(name, folder):
    """Run a case in a folder of its own; its output goes to FOLDER/NAME.log."""
    command, code = CASES[name]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "case.py").write_text(START + code)
    bin_folder = Path(sys.executable).parent
    env = {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "TORCH_FR_DUMP_TEMP_FILE": str(place / "rank_"),
    }
    log = folder / f"{name}.log"
    code = processes.run_to_file(command.split(), log, command, LONGEST, env, cwd=place)
    if code is None:
        with open(log, "a") as opened:
            opened.write(f"no end within {LONGEST} s\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="all, if none is given")
    args = parser.parse_args()
    names = args.names or list(CASES)
    for name in names:
        if name not in CASES:
            parser.error(f"no case is called {name}")
    args.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(lambda name: run(name, args.folder), names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
