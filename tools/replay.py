"""Step through one rank: record a run of several ranks, then run one of them again, alone.

    torchrun --standalone --nproc-per-node 2 tools/replay.py record runs/a script.py --its-flags
    python tools/replay.py record runs/a script.py     # a script that starts its ranks by mp.spawn
    python tools/replay.py rank 1 runs/a               # rank 1 alone; breakpoint() stops it
    python tools/replay.py compare runs/a              # it hung: where do the ranks disagree?

All that a rank learns from others is what collectives leave in its tensors: `record` writes that to
files. `rank` starts the same command in an ordinary process, where a collective returns what was
recorded: losses and weights are those of the run, bit for bit. In a changed script it names the
first collective that gets different numbers from the rank, and stops at the first that differs in
operation or shape. It is for gloo and the default group. The rank's own files are written again.
"""

import json
import os
import runpy
import sys
import traceback
import zlib
from functools import partialmethod
from itertools import zip_longest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group, or it would keep the group alive
import torch.multiprocessing as mp
from torch.utils._pytree import tree_leaves

OPS = """allreduce allreduce_coalesced broadcast reduce barrier gather scatter allgather alltoall
    _allgather_base all_gather_single alltoall_base all_to_all_single reduce_scatter send recv
    _reduce_scatter_base reduce_scatter_single recv_anysource""".split()  # 2.14 renamed some
NOT_THE_READERS = os.path.dirname(torch.__file__), os.path.abspath(__file__), "<"
init_process_group, spawn = dist.init_process_group, mp.spawn


def main(mode="", *words):
    if mode == "record" and len(words) > 1:
        Tape.folder = Path(words[0]).absolute()
        run(list(words[1:]))
        if not Tape.folder.exists():
            end(f"{words[1]} made no process group: nothing is recorded")
    elif mode == "rank" and len(words) == 2:
        replay(*words)
    elif mode == "compare" and len(words) == 1:
        compare(read(words[0]))
    else:
        print(__doc__)
        sys.exit(0 if mode in ("-h", "--help") else 2)


def replay(rank, folder):
    recorded = read(folder)
    if rank not in recorded:
        end(f"{folder} has the ranks {', '.join(recorded)}, not {rank}")
    Tape.folder, (Tape.head, *Tape.recording) = Path(folder).absolute(), recorded[rank]
    if Tape.head["torch"] != torch.__version__:
        end(f"{folder} was recorded with torch {Tape.head['torch']}, this is {torch.__version__}")
    os.environ.update(Tape.head["launch"])
    torch.set_num_threads(Tape.head["threads"])  # other sums would differ in the last bits
    run(Tape.head["argv"])
    print(f"rank {rank}: replayed {Tape.calls} of {len(Tape.recording)} collectives")


def run(argv):
    """Run a script as python does, with a Tape as its process group."""
    if not Path(argv[0]).is_file():
        end(f"there is no {argv[0]} here")
    replace()
    sys.argv, sys.path[0] = argv, os.path.dirname(os.path.abspath(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def replace():
    """Replace what makes groups and ranks, in this process."""
    dist.init_process_group, mp.spawn, mp.start_processes = make_group, make_ranks, make_ranks
    dist.new_group = lambda *_, **__: end("subgroups (new_group) are not recorded")
    if Tape.head:  # this process is a rank, alone
        mp.parent_process = mp.current_process  # a spawned rank may ask whether its parent lives
        dist.TCPStore = dist.FileStore = lambda *_, **__: Alone()


def make_group(backend=None, init_method=None, **options):
    if "nccl" in str(backend):
        end("only gloo is recorded: start the script on CPUs")
    if Tape.head:
        init_method, options["store"] = None, Alone()
        options |= {name: Tape.head[name] for name in ("rank", "world_size")}
    init_process_group("tape", init_method, **options)


def make_ranks(function, args=(), nprocs=1, **options):
    if Tape.head:
        return function(Tape.head["index"], *args)
    try:
        return spawn(in_child, (Tape.folder, function, args), nprocs, **options)
    except mp.ProcessExitedException as error:
        sys.exit(error.exit_code)  # the rank has printed why


def in_child(index, folder, function, args):
    Tape.index, Tape.folder = index, folder
    replace()
    function(index, *args)


class Tape(dist.ProcessGroup):
    """A process group that does what gloo does, and records it; or, with a recording, reads it."""

    folder = head = recording = None  # of the class: the script makes the group, main knows these
    index, calls, differs = 0, 0, False

    def __init__(self, store, rank, world_size, timeout):
        super().__init__(rank, world_size)
        folder = self.folder / f"rank{rank}"
        if self.head:
            self.results = open(folder / "results", "rb")
            return
        if folder.exists():
            end(f"{folder} is there already; each recording, of one group, needs a new folder")
        head = {"argv": sys.argv, "torch": torch.__version__, "threads": torch.get_num_threads()}
        head |= {"rank": rank, "world_size": world_size, "index": self.index}
        launch = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # and LOCAL_RANK, ...
        head["launch"] = {name: os.environ[name] for name in os.environ if name.endswith(launch)}
        folder.mkdir(parents=True)
        self.log, self.results = open(folder / "calls", "w"), open(folder / "results", "wb")
        print(json.dumps(head), file=self.log, flush=True)
        self.gloo = dist.ProcessGroupGloo(store, rank, world_size, timeout)

    def collective(self, op, *args, **options):
        if op in ("send", "recv", "recv_anysource"):
            end("send and recv (point-to-point) are not recorded")
        call, done = self.describe(op, args), Done()
        done.results = tensors_in(args[:1])  # a collective's first argument has the results
        if self.head:
            self.play(call, done.results)
        else:
            print(json.dumps(call), file=self.log, flush=True)  # now: it may never end
            getattr(self.gloo, op)(*args, **options).wait()
            for tensor in done.results:
                self.results.write(as_bytes(tensor))
            self.results.flush()
        Tape.calls += 1
        return done

    def play(self, call, results):
        here = f"collective {Tape.calls}, {call['what']} at {call['at']}"
        recorded = (self.recording + [{"what": "the end", "at": "exit"}])[Tape.calls]
        if call["what"] != recorded["what"]:
            end(f"stopped at {here}: recorded is {recorded['what']} at {recorded['at']}", 1)
        if call["brought"] != recorded["brought"] and not Tape.differs:
            print(f"replay.py: brings different numbers from here on: {here}", file=sys.stderr)
            Tape.differs = True
        for tensor in results:
            if self.results.readinto(as_bytes(tensor)) < tensor.nbytes:
                end(f"stopped at {here}: it did not end in the recording", 1)

    def describe(self, op, args):
        """What is called, a checksum of what this rank brings to it, and the line that calls."""
        tensors = tensors_in(args[1:]) or tensors_in(args)  # all-reduce has one argument for both
        what = [op, *dict.fromkeys(f"{list(t.shape)} {str(t.dtype)[6:]}" for t in tensors)]
        what += [arg.reduceOp.op.name for arg in args if hasattr(arg, "reduceOp")]
        roots = [arg.rootRank for arg in args if hasattr(arg, "rootRank")]
        what += [f"root {root}" for root in roots]
        brought = 0
        if op not in ("broadcast", "scatter") or roots == [self.rank()]:
            for tensor in tensors:
                brought = zlib.crc32(as_bytes(tensor), brought)
        stack = [f for f in traceback.extract_stack() if not f[0].startswith(NOT_THE_READERS)]
        at = f"{Path(stack[-1].filename).name}:{stack[-1].lineno}"
        return {"what": " ".join(what), "brought": brought, "at": at}

    def shutdown(self):
        self.gloo = None


for op in OPS:
    setattr(Tape, op, partialmethod(Tape.collective, op))
dist.Backend.register_backend("tape", Tape, devices=["cpu"])


class Done(dist.Work):
    """A collective that has ended: a Tape waits for each before it goes on."""

    def wait(self, timeout=None):
        return True

    def get_future(self):  # DDP asks for it
        future = torch.futures.Future()
        future.set_result(self.results)
        return future


class Alone(dist.HashStore):
    """The store of a rank that is alone: what it waits for has happened."""

    def wait(self, *_):
        pass


def compare(recorded):
    """Print the first collective that is not the same on all ranks."""
    logs = [log[1:] for log in recorded.values()]
    for number, calls in enumerate(zip_longest(*logs, fillvalue={"what": "none", "at": "exit"})):
        if len({call["what"] for call in calls}) > 1:
            print(f"The ranks agree on {number} collectives. The next one is")
            for rank, call in zip(recorded, calls):
                print(f"    rank {rank}: {call['what']} at {call['at']}")
            return
    print(f"The ranks agree on all {len(logs[0])} collectives.")


def read(folder):
    """-> {rank: [head, call, ...]} of a recording; ranks are text, in their order."""
    logs = [path.read_bytes().splitlines() for path in Path(folder).glob("rank*/calls")]
    if not logs:
        end(f"{folder} is no recording: there is no rank0/calls in it")
    try:
        parsed = [[json.loads(line) for line in log] for log in logs]
        for head, *calls in parsed:
            [head[name] for name in ("argv", "launch", "torch", "threads", "world_size", "index")]
            [call[name] for call in calls for name in ("what", "brought", "at")]
        return {str(log[0]["rank"]): log for log in sorted(parsed, key=lambda log: log[0]["rank"])}
    except (ValueError, KeyError, TypeError):  # a line is cut, or something else was written there
        end(f"{folder} is damaged: record the run again, into a new folder")


def tensors_in(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def as_bytes(tensor):
    """The bytes of a dense tensor, where they lie: gloo writes there, too, below autograd."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


def end(message, code=2):
    """One line, at once: also inside backward, where C++ calls."""
    sys.stdout.flush()
    print(f"replay.py: {message}", file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import replay as own_name  # spawned ranks import in_child from there

    own_name.main(*sys.argv[1:])
