"""Provoke the messages and symptoms on docs/failures/messages/launch.md: a few lines each, on CPUs,
with gloo.

    python tests/provoke_messages.py                  print the names
    python tests/provoke_messages.py unused_parameter crossed_all_reduces

Prints under each name what its processes print. A case takes two ranks, or one process.
"""

import argparse
import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from lib.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
CASES = {}  # name -> (function, number of ranks or 0 without a process group, seconds of timeout)
AT_A_TIME = 4  # most cases wait for a timeout
LONGEST = 90  # seconds that a case may take; most take one to five


def alone(function):
    """A case in one process, without a process group."""
    CASES[function.__name__] = function, 0, 0
    return function


def two_ranks(function):
    """A case on two ranks, of which none should have to wait."""
    CASES[function.__name__] = function, 2, 60
    return function


def one_waits(function):
    """A case on two ranks, of which one waits until the timeout of its process group."""
    CASES[function.__name__] = function, 2, 5
    return function


# ---------------------------------------------------------------- start-up


@alone
def tensor_on_the_cpu():
    dist.init_process_group("cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))


@alone
def rank_too_large():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=2, world_size=2)


@alone
def no_environment():
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo")


@alone
def port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as first:
        dist.TCPStore("127.0.0.1", first.getsockname()[1], is_master=True, wait_for_workers=False)


@alone
def rank_missing():
    listener = socket.create_server(("127.0.0.1", 0)).detach()  # or it would listen everywhere
    options = {"world_size": 2, "timeout": timedelta(seconds=2)}
    dist.TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=listener, **options)


@alone
def interface_missing():
    os.environ["GLOO_SOCKET_IFNAME"] = "eth7"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@alone
def stale_store():
    """Ranks that ended leave their addresses in the store, and a new rank 1 calls them."""
    path = tempfile.mkdtemp() + "/store"
    for rank in (0, 1):
        fork(join_and_leave, path, rank)
    for process in multiprocessing.active_children():
        process.join()
    join_and_leave(path, 1)


def join_and_leave(path, rank):
    group = {"store": dist.FileStore(path, 3), "world_size": 2, "timeout": timedelta(seconds=10)}
    dist.init_process_group("gloo", rank=rank, **group)
    dist.barrier()
    os._exit(0)


# ---------------------------------------------------------------- ranks that wait, ranks that die


@one_waits
def one_rank_calls(rank):
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        asleep(rank)


@one_waits
def evaluation_on_rank_0(rank):
    x = torch.ones(4, 2)
    with_buffers = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))).eval()
    without = DistributedDataParallel(nn.Linear(2, 2)).eval()
    if rank == 0:
        with torch.no_grad():
            call("ddp_model(x) without buffers", without, x)
            call("ddp_model.module(x) with BatchNorm", with_buffers.module, x)
            call("ddp_model(x) with BatchNorm", with_buffers, x)
    else:
        asleep(rank)


@two_ranks
def rank_died(rank):
    if rank == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(1))


@alone
def store_gone():
    port = multiprocessing.Queue()
    fork(hold_a_store, port)
    store = dist.TCPStore("127.0.0.1", port.get(), is_master=False, timeout=timedelta(seconds=5))
    store.set("last", "")
    for process in multiprocessing.active_children():
        process.join()
    for _ in range(2):  # the first one may still fit into the system's buffer
        store.set("next", "")
        time.sleep(0.5)


def hold_a_store(port):
    listener = socket.create_server(("127.0.0.1", 0)).detach()
    options = {"is_master": True, "wait_for_workers": False}
    store = dist.TCPStore("127.0.0.1", 0, master_listen_fd=listener, **options)
    port.put(store.port)
    store.wait(["last"], timedelta(seconds=30))


@one_waits
def monitored_barrier(rank):
    if rank == 0:
        dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)
    else:
        asleep(rank)


@two_ranks
def crossed_all_reduces(rank):
    a, b = torch.ones(1), 10 * torch.ones(1)
    for tensor in (a, b) if rank == 0 else (b, a):
        dist.all_reduce(tensor)
    print(f"rank {rank}: a = {a.item():.0f}, b = {b.item():.0f}")


# ---------------------------------------------------------------- DistributedDataParallel


@two_ranks
def unused_parameter(rank):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    dist.set_debug_level_from_env()
    layers = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    layers.forward = lambda x: layers["used"](x)
    model = DistributedDataParallel(layers)
    for _ in range(2):
        model(torch.ones(4, 2)).mean().backward()


@two_ranks
def ready_twice(rank):
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: checkpoint(nn.Linear.forward, layer, x, use_reentrant=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), layer, layer))
    model(torch.ones(4, 2)).mean().backward()


@two_ranks
def attribute_of_the_model(rank):
    model = nn.Linear(2, 2)
    model.classes = 2
    ddp_model = DistributedDataParallel(model)
    print(ddp_model.module.classes)
    print(ddp_model.classes)


@two_ranks
def flag_without_need(rank):
    model = DistributedDataParallel(nn.Linear(2, 1), find_unused_parameters=True)
    for _ in range(3):
        model(torch.ones(4, 2)).mean().backward()


@two_ranks
def other_strides(rank):
    model = nn.Conv2d(3, 4, 3)
    ddp_model = DistributedDataParallel(model)
    model.to(memory_format=torch.channels_last)
    x = torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last)
    ddp_model(x).sum().backward()


@two_ranks
def deprecated_buffers(rank):
    DistributedDataParallel(nn.Linear(2, 1), broadcast_buffers=False)
    with warnings.catch_warnings(record=True) as seen:
        ddp_model = DistributedDataParallel(nn.Linear(2, 1))
        ddp_model.broadcast_buffers = False
    print(f"attribute set after wrapping: {len(seen)} warnings")


@two_ranks
def tensor_and_dtensor(rank):
    model = nn.Sequential(nn.Linear(2, 1))
    fully_shard(model)
    model[0](torch.ones(4, 2))  # not model(...), whose forward would gather the weights


@alone
def frozen_and_trainable_in_one_unit():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    FullyShardedDataParallel(model, device_id=torch.device("cpu"))


@alone
def hybrid_shard_on_one_axis():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.init_device_mesh("cpu", (1,))
    options = {"device_mesh": mesh, "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
    FullyShardedDataParallel(nn.Linear(2, 1), device_id=torch.device("cpu"), **options)


@alone
def key_of_another_rank():
    folder = tempfile.mkdtemp()
    dcp.save({"weight": torch.ones(2), "loader_of_rank_0": torch.ones(1)}, checkpoint_id=folder)
    dcp.load({"weight": torch.ones(2), "loader_of_rank_1": torch.ones(1)}, checkpoint_id=folder)


# ---------------------------------------------------------------- backward, precision, optimizer


@alone
def backward_twice():
    loss = nn.Linear(2, 1)(torch.ones(4, 2)).square().mean()
    loss.backward()
    loss.backward()


@alone
def fp16_parameters():
    model = nn.Linear(2, 1).half()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(4, 2).half()).float().mean()).backward()
    scaler.step(torch.optim.SGD(model.parameters(), lr=0.1))


@alone
def old_names_of_amp():
    torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        pass


@alone
def other_optimizer():
    """The saved optimizer had all parameters, and this one has a layer less."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    saved = torch.optim.SGD(model.parameters(), lr=0.1).state_dict()
    torch.optim.SGD(model[1].parameters(), lr=0.1).load_state_dict(saved)


@alone
def schedule_first():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1).step()


@alone
def not_deterministic():
    torch.use_deterministic_algorithms(True)
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


# ---------------------------------------------------------------- checkpoints


@two_ranks
def keys_of_the_wrapper(rank):
    saved = DistributedDataParallel(nn.Linear(2, 2)).state_dict()
    nn.Linear(2, 2).load_state_dict(saved)


@alone
def weights_only():
    path = tempfile.mkdtemp() + "/model.pt"
    torch.save({"args": argparse.Namespace(lr=0.1), "weight": torch.ones(1)}, path)
    torch.load(path)


@alone
def half_a_file():
    path = Path(tempfile.mkdtemp(), "model.pt")
    torch.save(nn.Linear(100, 100).state_dict(), path)
    whole = path.read_bytes()
    for size in (100, len(whole) // 2):
        path.write_bytes(whole[:size])
        call(f"{size} of {len(whole)} bytes", torch.load, path)


@two_ranks
def load_before_save(rank):
    path = Path(os.environ["STORE"] + ".pt")
    if rank == 0:
        time.sleep(1)  # a large model
        torch.save({}, path)
    else:
        torch.load(path)


# ---------------------------------------------------------------- data


@alone
def data_missing():
    from torchvision import datasets

    datasets.MNIST(tempfile.mkdtemp(), download=False)


@alone
def download_refused():
    """Each request of this server is answered by 403."""
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from torchvision import datasets

    BaseHTTPRequestHandler.do_GET = lambda request: request.send_error(403)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    datasets.MNIST.mirrors = [f"http://127.0.0.1:{server.server_port}/"]
    datasets.MNIST(tempfile.mkdtemp(), download=True)


@alone
def sampler_and_shuffle():
    data = TensorDataset(torch.arange(8))
    DataLoader(data, sampler=DistributedSampler(data, 2, 0), shuffle=True)


@alone
def open_files():
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    list(DataLoader(range(200), num_workers=1))


def worker_gets(number):
    """Read from a loader whose worker gets a signal at its first image."""

    def die(images):
        os.kill(os.getpid(), number)

    worker_does(die)


def worker_does(action):
    """Read from a loader whose worker calls this with its first images."""
    fork = {"num_workers": 1, "multiprocessing_context": "fork"}
    next(iter(DataLoader(range(4), collate_fn=action, **fork)))


# ---------------------------------------------------------------- cases of one expression

SOON = timedelta(seconds=2)

IN_ONE_PROCESS = {
    "no_group": lambda: dist.all_reduce(torch.ones(1)),
    "nccl_without_gpus": lambda: dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1
    ),
    "store_nobody": lambda: dist.TCPStore("127.0.0.1", free_port(), is_master=False, timeout=SOON),
    "unknown_name": lambda: dist.TCPStore(
        "no-such-node.invalid", 29500, is_master=False, timeout=SOON
    ),
    "no_local_address": lambda: dist.ProcessGroupGloo.create_device(hostname="192.0.2.77"),
    "keys_of_compile": lambda: nn.Linear(2, 2).load_state_dict(
        torch.compile(nn.Linear(2, 2)).state_dict()
    ),
    "disk_full": lambda: torch.save(nn.Linear(100, 100).state_dict(), "/dev/full"),
    "no_folder": lambda: torch.save({}, "no-such-folder/model.pt"),
    "other_images": lambda: importlib.import_module("01_baseline.train").make_model()(
        torch.ones(2, 1, 32, 32)
    ),
    "other_labels": lambda: nn.functional.cross_entropy(torch.zeros(1, 10), torch.tensor([12])),
    "batch_of_one": lambda: nn.BatchNorm1d(2)(torch.ones(1, 2)),
    "gather_on_the_cpu": lambda: nn.parallel.gather([torch.ones(2), torch.ones(2)], 0),
    "gather_numbers": lambda: nn.parallel.gather([{"loss": 0.5}, {"loss": 0.7}], 0),
    "lengths_on_another_device": lambda: nn.utils.rnn.pack_padded_sequence(
        torch.ones(2, 3, 4), torch.tensor([3, 2], device="meta"), batch_first=True
    ),
    "hidden_of_another_batch": lambda: nn.GRU(4, 5)(torch.ones(3, 2, 4), torch.zeros(1, 4, 5)),
    "no_gradient": lambda: torch.ones(2).sum().backward(),
    "other_sizes": lambda: nn.Linear(2, 3).load_state_dict(nn.Linear(2, 2).state_dict()),
    "no_samples": lambda: DataLoader([], shuffle=True),
    "unequal_samples": lambda: next(iter(DataLoader([torch.ones(1), torch.ones(2)], batch_size=2))),
    "worker_raises": lambda: worker_does(lambda images: 1 / 0),
    "worker_exits": lambda: worker_does(lambda images: os._exit(3)),
    "worker_killed": lambda: worker_gets(signal.SIGKILL),
    "worker_bus_error": lambda: worker_gets(signal.SIGBUS),
}
ON_TWO_RANKS = {
    "second_init": lambda rank: dist.init_process_group("gloo"),
    "other_shapes": lambda rank: dist.all_reduce(torch.ones(4 if rank == 0 else 400)),
    "other_shapes_detail": lambda rank: dist.all_reduce(torch.ones(4 if rank == 0 else 400)),
    "all_frozen": lambda rank: DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False)),
    "other_models": lambda rank: DistributedDataParallel(
        nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + rank)))
    ),
    "syncbatchnorm_on_cpu": lambda rank: nn.SyncBatchNorm(2)(torch.ones(4, 2)),
    "device_ids_on_cpu": lambda rank: DistributedDataParallel(nn.Linear(2, 2), device_ids=[rank]),
}
CASES |= {name: (function, 0, 0) for name, function in IN_ONE_PROCESS.items()}
CASES |= {name: (function, 2, 60) for name, function in ON_TWO_RANKS.items()}


# ---------------------------------------------------------------- cases that start a script

BARE = "mp.spawn(train, nprocs=2)"
GUARDED = f"if __name__ == '__main__': {BARE}"
SCRIPTS = {  # what mp.spawn starts, and how
    "spawn_arguments": ("def train(rank): pass", GUARDED.replace("(train", "(train, (1, 2)")),
    "spawned_rank_raises": ("def train(rank): 1 / (1 - rank)", GUARDED),
    "spawned_rank_killed": (
        "def train(rank): os.kill(os.getpid(), 9) if rank else time.sleep(60)",
        GUARDED,
    ),
    "spawned_rank_exits": ("def train(rank): exit(3) if rank else time.sleep(60)", GUARDED),
    "workers_of_a_daemon": (
        "from torch.utils.data import DataLoader\n"
        "def train(rank): list(DataLoader(range(4), num_workers=1))",
        GUARDED.replace("nprocs=2", "nprocs=2, daemon=True"),
    ),
    "spawn_without_a_guard": ("def train(rank): print(rank)", BARE),
    "spawn_a_lambda": ("train = lambda rank: print(rank)", GUARDED),
    "spawn_in_a_notebook": ("def train(rank): print(rank)", BARE),
}
PYTHON = "torchrun --standalone --nproc-per-node {} --no-python python -c"
MEET = "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:PORT --rdzv-conf"
HUP = "--no-python sh -c 'kill -HUP $PPID; sleep 2'; echo"
DDP = "import torch, torch.distributed as d; d.init_process_group(); "
DDP += "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))"
KILLED = 'import os, time; os.environ["RANK"] == "0" or os.kill(os.getpid(), 9); time.sleep(60)'
COMMANDS = {
    "other_torchrun": "bash -c 'PATH=/nowhere; torchrun --version'",
    "local_rank_argument": "python -m torch.distributed.launch --nproc-per-node 1 "
    "04_ddp_torchrun/train.py",
    "threads_of_torchrun": "for n in 1 2; do torchrun --standalone --nproc-per-node $n "
    "--no-python sh -c 'echo threads:$OMP_NUM_THREADS:'; done",
    "endpoint_nobody": f"{MEET} is_host=0,read_timeout=2 05_multinode/train.py",
    "node_missing": f"{MEET} join_timeout=2 05_multinode/train.py",
    "closed_terminal": "for handled in SIGHUP SIGTERM; do nohup torchrun --standalone "
    f"--signals-to-handle=$handled {HUP} $handled: exit code $?; done",
    # One process in ten to twenty survives it, by the addresses that it happens to get.
    "ddp_detail": "for n in 1 2 3 4 5 6; do "
    f"TORCH_DISTRIBUTED_DEBUG=DETAIL {PYTHON.format(2)} '{DDP}' || break; done",
    "signal_9": f"{PYTHON.format(2)} '{KILLED}'",
    "rank_raises": f"{PYTHON.format(1)} '1 / 0'",
}
LAUNCHES = {*SCRIPTS, *COMMANDS}


def run_script(name):
    script = "import os, time\nimport torch.multiprocessing as mp\n{}\n{}\n".format(*SCRIPTS[name])
    path = Path(tempfile.mkdtemp(), "train.py")
    path.write_text(script)
    in_a_notebook = name == "spawn_in_a_notebook"  # its functions are in no file
    subprocess.run([sys.executable, *(["-c", script] if in_a_notebook else [path])])


def run_command(name):
    command = COMMANDS[name].replace("PORT", str(free_port()))
    print("$", command)
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run(command, shell=True, cwd=ROOT, env=env)


CASES |= {name: (partial(run_script, name), 0, 0) for name in SCRIPTS}
CASES |= {name: (partial(run_command, name), 0, 0) for name in COMMANDS}


# ---------------------------------------------------------------- running them


def call(what, function, *args):
    """Call a function, and print what became of it."""
    try:
        function(*args)
        print(f"{what}: done")
    except Exception as error:
        print(f"{what}: failed, {type(error).__name__}: {error}")


def asleep(rank):
    """Stay alive and call nothing until the other rank has ended."""
    dist.FileStore(os.environ["STORE"] + "-ended", 2).wait([str(1 - rank)], timedelta(seconds=90))


def fork(function, *args):
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    process.start()
    return process


def run_process(name, rank, folder):
    """Run a case, or one rank of it, with its output in a file."""
    log = os.open(folder / f"{name}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(1)
    function, ranks, seconds = CASES[name]
    try:
        if ranks:
            if name.endswith("_detail"):
                os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
                dist.set_debug_level_from_env()
            os.environ["STORE"] = str(folder / name)
            group = {"store": dist.FileStore(os.environ["STORE"], ranks), "world_size": ranks}
            dist.init_process_group("gloo", rank=rank, timeout=timedelta(seconds=seconds), **group)
            function(rank)
        else:
            function()
    except BaseException as error:
        while error:
            print(f"rank {rank}: " * (ranks > 0) + f"{type(error).__name__}: {error}")
            error = error.__cause__
    if ranks:
        dist.FileStore(os.environ["STORE"] + "-ended", ranks).set(str(rank), "")
    os._exit(0)  # a group that has failed may abort the process at its end


def run(names, folder):
    """Run cases at the same time, and print under each name what it printed."""
    running = {
        name: [fork(run_process, name, rank, folder) for rank in range(CASES[name][1] or 1)]
        for name in names
    }
    for name, processes in running.items():
        ended = []
        for rank, process in enumerate(processes):
            process.join(LONGEST)
            if process.exitcode is None:
                process.kill()
                process.join()
            if process.exitcode < 0:
                ended.append(f"rank {rank} ended by {signal.Signals(-process.exitcode).name}")
        printed = (folder / f"{name}.txt").read_text()
        print(f"== {name}", printed, *ended, sep="\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to provoke; none: list them")
    names = parser.parse_args().names
    for name in names:
        if name not in CASES:
            print(f"provoke_messages.py: error: no case is called {name}", file=sys.stderr)
            return 2
    if not names:
        print("\n".join(CASES))
    importlib.import_module("torch._dynamo")  # DDP imports it: once here, not once in each rank
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tempfile.tempdir = folder  # of the cases
        for start in range(0, len(names), AT_A_TIME):
            run(names[start : start + AT_A_TIME], Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
