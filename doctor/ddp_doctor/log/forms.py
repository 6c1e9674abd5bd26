"""The forms of lines that tell something: each has a pattern, and an example that a test matches.

A form is tried only on lines that have its word, so a million other lines cost little. The named
groups of a pattern are the fields of the fact that read.py makes of the line.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    kind: str
    word: str  # that such a line has
    example: str
    pattern: re.Pattern


def form(kind, word, example, pattern=None):
    """Without a pattern each line that has the word is of this form."""
    return Form(kind, word, example, re.compile(pattern or re.escape(word), re.ASCII))


MISMATCH = form(
    "mismatch",
    "is running collective",
    "Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=21, "
    "OpType=BROADCAST, TensorShape=[64], TensorDtypes=Float)",
    r"Rank (?P<rank>\d+) is running collective: \w+\(SequenceNumber=(?P<number>\d+),? ?"
    r"OpType=(?P<operation>\w+)(?:, TensorShape=(?P<shape>\[[^\]]*\]))?",
)

# What the watchdog of NCCL, the flight recorder and frameworks say of a rank.
NUMBERED = (
    form(
        "timeout",
        "Watchdog caught",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81, "
        "OpType=ALLREDUCE, NumelIn=512, NumelOut=512, Timeout(ms)=600000) ran for 600044 ms",
        r"\[Rank (?P<rank>\d+)\] +Watchdog caught collective operation timeout: Work\w+\("
        r"(?:(?:SeqNum|OpId)=(?P<number>\d+), )?OpType=(?P<operation>\w+)"
        r"(?:, NumelIn=(?P<size>\d+)|, TensorShape=(?P<shape>\[[^\]]*\]))?"
        r".*?Timeout\(ms\)=(?P<milliseconds>\d+)",
    ),
    form(
        "queue",
        "ast enqueued",
        "[PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work sequence "
        "id: 81 PG status: last enqueued work: 83, last completed work: 80",
        r"(?:PG GUID [^(\]]*\((?P<group>[^)]*)\) )?[Rr]ank (?P<rank>\d+)\].*?"
        r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), "
        r"last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    ),
    form(
        "stack",
        "of the failed collective:",
        "[E1118 ProcessGroupNCCL.cpp:734] Stack trace of the failed collective:",
        r"Stack trace of the failed collective: ?$",
    ),
    MISMATCH,
    form(
        "joined",
        "MEMBER: ",
        "Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8",
        r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<world>\d+)",
    ),
    form("all_joined", "All distributed processes", "All distributed processes registered."),
    form(
        "process",
        "world_rank=",
        "- (ip=10.0.0.7, pid=1189) world_rank=1, local_rank=1, node_rank=0",
        r"pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)",
    ),
)

# How processes ended, in the words of launchers.
EXITS = (
    form("exit", "failed (exitcode:", "failed (exitcode: -6) local_rank: 1 (pid: 90189)"),
    form(
        "exit",
        "return code = ",
        "['python', 'train.py', '--local_rank=1'] exits with return code = -9",
        r"exits with return code = -?[1-9]",
    ),
    form("exit", "exited with exit code ", "pdsh@head: node2: ssh exited with exit code 127"),
    form(
        "exit",
        "terminated with",
        "[rank: 2] Child process with PID 41103 terminated with code 1.",
        r"(?i:process) .*terminated with (?:exit code|code|signal) ?(?!0\b)",
    ),
    form("exit", "exited on signal", "process rank 3 with PID 712 on node gn2 exited on signal 9"),
    form("exit", "got signal: ", "SignalException: Process 61003 got signal: 15"),
    form("exit", "has failed.", "Worker 2 has failed.", r"Worker (?P<rank>\d+) has failed\."),
    form(
        "exit",
        "Worker group",
        "Worker group FAILED. 3/3 attempts left; will restart",
        r"group FAILED",
    ),
    form("exit", "eceived SIG", "[rank: 0] Received SIGTERM: 15", r"[Rr]eceived SIG[A-Z]"),
    form("exit", "received by PID", "traceback : Signal 9 (SIGKILL) received by PID 1234"),
    form("exit", " death signal", "Received 2 death signal, shutting down workers"),
)

# The launcher, the scheduler, the kernel, the network and the hardware.
SYSTEM = (
    form(
        "system",
        "error: ",
        "srun: error: gn31: task 0: Out Of Memory",
        r"\S: (?:fatal )?error: (?!couldn't chdir)|^error: ",
    ),
    form("system", "DUE TO ", "*** JOB 42 ON gn3 CANCELLED AT 2026-11-08 DUE TO TIME LIMIT ***"),
    form(
        "system",
        "oom",
        "python invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0",
        r"invoked oom-killer|oom[-_]kill",
    ),
    form(
        "system",
        "ut of memory: Kill",
        "Memory cgroup out of memory: Killed process 311 (python) total-vm:318844kB",
    ),
    form("system", "OOMKilled", "Last State: Terminated, Reason: OOMKilled"),
    form("system", "killed due to memory pressure", "1 Workers killed due to memory pressure"),
    form("system", "NVRM: Xid", "NVRM: Xid (PCI:0000:82:00): 79, GPU has fallen off the bus."),
    form("system", "blocked for more", "INFO: task python:12 blocked for more than 120 s"),
    form("system", "Killed", "Killed", r"(?:^|line \d+: +\d+ )Killed"),
    form("system", "Segmentation fault", "line 4: 3912 Segmentation fault", r"(?:^|\d )Seg"),
    form("system", "(core dumped)", "line 4: 3912 Aborted (core dumped) python t.py", r"^(?!srun)"),
    form("system", "(): ", "free(): invalid pointer", r"^(?:\w*alloc\w*|free|corrupted)\(\): "),
    form("system", "Evicted", "92s  Warning  Evicted  pod/net-worker-1  The node was low"),
    form("system", "Deleted pod", "39s  SuccessfulDelete  pytorchjob/net  Deleted pod: worker-1"),
    form("system", "Stopping container", "41s  Killing  pod/worker-1  Stopping container pytorch"),
    form("system", "Error from server", 'Error from server (NotFound): pods "net-0" not found'),
    form(
        "system",
        "Warning  ",
        "2m   Warning   FailedScheduling   pod/net-0   0/6 nodes are available",
        r"\bWarning {2,}(?:[A-Z][a-z]+)+ ",
    ),
    form("system", "BackOff", "net-worker-1   0/1     ImagePullBackOff   0          9m41s"),
    form("system", "ErrImage", "net-worker-1   0/1     ErrImagePull   0          9m41s"),
    form("system", "Error response from daemon", "docker: Error response from daemon: no driver"),
    form("system", "been marked dead", "The node with node id: 5c1e has been marked dead"),
    form(
        "system",
        "has died",
        "The actor is dead because its node has died. Node Id: 5c1e",
        r"(?:node|worker process) has died",
    ),
    form("system", "preempt", "the actor's node was preempted", r"(?i)\bpreempted\b(?!_)"),
    form("system", "(raylet", "(raylet) [12:40 E 17 17] node.cc", r"\bE \d+ \d+\] "),
    form("system", "died or was killed", "A worker died or was killed while executing a task"),
    form("system", "% full", "/tmp/ray is over 95% full, available space: 48", r"over \d+% full"),
    form("system", "startup timed out", "The worker group startup timed out after 30.0 seconds"),
    form("system", "No space left on device", "error: No space left on device (28)"),
    form("system", "uota exceeded", "OSError: [Errno 122] Disk quota exceeded"),
    form(
        "system",
        "No such file",
        "bash: line 1: cd: /data/net: No such file or directory",
        r"^(?:bash|sh|\w*python\S*|/\S+): .*No such file or directory|can't open file",
    ),
    form("system", "shared object file", "libcudart.so.12: cannot open shared object file"),
    form(
        "system", "symbol lookup error", "python: symbol lookup error: undefined symbol: ncclInit"
    ),
    form("system", "not found (required by", "`GLIBCXX_3.4.29' not found (required by a.so)"),
    form("system", "build stopped", "ninja: build stopped: subcommand failed."),
    form("system", "not found", "sh: 1: torchrun: not found", r": (?:command )?not found$"),
    form("system", "Connection closed at byte", "Connection closed at byte 2097. Giving up."),
    form(
        "system",
        "(errno: ",
        "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        r"\(errno: (?!97\b)\d+ - ",
    ),
    form("system", "Address already in use", "OSError: [Errno 98] Address already in use"),
    form("system", "(gai error", "cannot be retrieved (gai error: -2 - Name or service not known)"),
    form(
        "system",
        "client socket has ",
        "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to",
        r"\[E.*client socket has (?:timed out|failed)",
    ),
    form("system", "No route to host", "connect to 10.0.0.7 port 22: No route to host"),
    form("system", "Network is unreachable", "connect to 10.0.0.7: Network is unreachable"),
    form("system", "Connection refused", "connect to 10.0.0.7 port 22: Connection refused"),
    form("system", "ould not resolve host", "ssh: Could not resolve hostname gn2"),
    form("system", "failure in name resolution", "Temporary failure in name resolution"),
    form("system", "Permission denied (", "gn2: Permission denied (publickey,password)."),
    form("system", "Host key verification", "Host key verification failed."),
    form("system", "not enough slots", "There are not enough slots available in the system"),
    form("system", "keep-alive heartbeat", "The node has failed to send a keep-alive heartbeat"),
    form("system", "recvValue failed on", "recvValue failed on SocketImpl(fd=3): failed to recv"),
    form("system", "random run_id", "config has no run_id, generated a random run_id: 90331127"),
    form("system", "credential expired", "Application launch failed: Job credential expired"),
    form("system", "NCCL WARN", "misc/socket.cc:49 NCCL WARN Connection closed", r"NCCL WARN \S"),
    form(
        "system",
        "Duplicate GPU",
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3",
    ),
    form("system", "Multiple Ranks are", "Multiple Ranks are using the same GPU/Partition."),
    form("system", "Detected mismatch b", "Detected mismatch between collectives on ranks. Rank 0"),
    form("system", "uda failure", "gn1:71:180 [0] Cuda failure 'out of memory'"),
    form(
        "system", "CUDA error: ", "what():  CUDA error: an illegal access", r"CUDA error: \w[^.]*"
    ),
    form(
        "system",
        "what():",
        "  what():  [enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 65536 vs 34816",
        r"what\(\): +(?!.*[Ww]atchdog)\S.*",
    ),
    form("system", "] Assertion ", "block: [0,0,0], thread: [3,0,0] Assertion `t >= 0` failed."),
    form("system", "NVIDIA driver on your system", "The NVIDIA driver on your system is too old"),
    form(
        "system",
        "not compatible with the current",
        "sm_61 is not compatible with the current PyTorch installation.",
    ),
    form("system", "access was encountered", "error in col2im: an illegal access was encountered"),
    form("system", "bus error", "ERROR: Unexpected bus error encountered in worker."),
    form("system", "Failed to initialize NVML", "Failed to initialize NVML: Driver mismatch"),
    form("system", "determine the device", "Unable to determine the device handle"),
    form("system", "mismatched ranks that", "the lagging/dead/mismatched ranks that caused"),
    form(
        "system", "but didn't join", "[3] finished collective #27, but didn't join collective #28"
    ),
    form("system", "watchdog got stuck", "ProcessGroupNCCL's watchdog got stuck for 480 seconds"),
    form("system", "Culprit rank", "error msg: Culprit rank 2; Error type: SIZE_MISMATCH"),
    form(
        "system",
        "reached monitoredBarrier",
        "Rank 3 successfully reached monitoredBarrier, but received errors",
        r"Rank (?P<rank>\d+) successfully reached monitoredBarrier",
    ),
    form(
        "system",
        "did not receive grad for rank",
        "Parameters which did not receive grad for rank 0: head.bias, head.weight",
        r"Parameters which did not receive grad for rank \d+: ",
    ),
)

# With these words torch raises the exception of a replica or of a loader's worker again.
CAUGHT = r"Caught \w+ in (?:replica|DataLoader worker|pin memory)"

# What scripts and libraries say of themselves. They come last, because they may be harmless.
COMPLAINTS = (
    form(
        "complaint",
        "nan",
        "WARNING rank 2: loss is nan at step 812, skipping this batch",
        r"(?i)\b(?:loss|grad\w*)\b.{0,20}\b(?:is|was|=) *nan\b.*(?:stop|skip|abort|exit)",
    ),
    form("complaint", "OOM: ", "WARNING fairseq: OOM: Ran out of memory with exception"),
    form("complaint", "rror: ", "worker 3: ValueError: no label", r"\b[A-Z]\w*Error: \S|^Error: "),
    form("complaint", "Caught ", "Caught KeyError in replica 1 on device 1.", CAUGHT),
    form("complaint", "Exception: ", "QueueException: full", r"\b[A-Z]\w*Exception: \S"),
    form("complaint", "CRITICAL", "CRITICAL [lm.util:158] Uncaught HfHubHTTPError"),
    form("complaint", "FATAL", "FATAL: cannot read the configuration"),
    form("complaint", "ERROR", "2026-11-20 12:40:36 ERROR trial failed", r"\bERROR\b(?!:torch)"),
)

# Words of a line that may tell something if no other line does.
MENTIONS = ("fail", "error", "abort", "fatal", "cannot", "could not", "unable to", "not found")

# Warnings of PyTorch with which a run may end well.
WARNINGS = (
    form("warning", "destroy_process_group() was not", "destroy_process_group() was not called"),
    form("warning", "Guessing device ID", "Guessing device ID based on global rank. This can hang"),
    form("warning", "has NOT been destroyed", "process group has NOT been destroyed before"),
    form("warning", "currently unknown. This can", "is currently unknown. This can cause a hang"),
)

# What says that something is finished.
FINISHED = (
    form("finished", "'train_runtime'", "{'train_runtime': 81.2, 'epoch': 1.0}"),
    form(
        "finished",
        "inished",
        "training finished in 38 min 44 s",
        r"(?i)\b(?:training|run|job|all epochs|stage \d+) (?:is |has |was )?finished\b|"
        r"<== finished|\bfinished (?:training|all \d+)",
    ),
    form(
        "finished",
        "omplete",
        "100 epochs completed in 3.871 hours.",
        r"(?i:\b(?:training|run|job|all epochs) (?:is |has |was )?completed?\b)|"
        r"\d+ epochs completed|\bCompleted\b(?! (?:store|rank))",
    ),
    form("finished", "COMPLETED", "2204116 COMPLETED 0:0 elapsed 01:12:33"),
    form("finished", "SUCCEEDED", "state: SUCCEEDED"),
    form("finished", "raining done", "Training done: 6000 of 6000 updates"),
    form(
        "finished",
        "done",
        "All done, 6000 iterations in 0:44:32",
        r"(?i)^(?:\[[^\]]*\]:? *|rank \d+: )*(?:all )?done\b(?! \(t=| with)|: rank \d+ done\b",
    ),
    form("finished", "End of training", "End of training."),
    form("finished", "End time of running", "End time of running main: 2026-11-21"),
    form("finished", "exits successfully", "Process 4711 exits successfully."),
    form(
        "finished",
        "exit",
        "stage 5 finished, exit code 0",
        r"\bexit(?:ed with)?(?: code| status)?:? 0$|\bexit(?:s|ed) (?:normally|cleanly)",
    ),
    form("finished", "rc=0", "rc=0", r"^rc=0$"),
    form("finished", "error=None", "Result(metrics={'step': 9}, error=None)"),
    form("finished", "`Trainer.fit` stopped", "`Trainer.fit` stopped: `max_epochs=3` reached."),
    form(
        "finished",
        "/",
        "step:1390/1390 val_loss:3.2781",
        r"^(?!.*[Ee]poch).*\bstep[s:= ]+(\d+)/\1\b",
    ),
    form("finished", " of ", "step 5000 of 5000", r"\b(?:step|iteration|epoch)s? (\d+) of \1\b"),
    form(
        "finished",
        "100%",
        "Train: 100%|#####| 74/74 [32:08<00:00, 25.91s/it]",
        r"^(?:Train\w*:? *)?100%\|[^|]*\| *(\d+)/\1\b",
    ),
)

FORMS = NUMBERED + EXITS + SYSTEM + COMPLAINTS + WARNINGS + FINISHED


def any_of(text):
    """A pattern for a list of patterns, one on each line."""
    return re.compile("|".join(text.split("\n")[1:-1]), re.ASCII)


# Lines that only accompany others, and are nobody's last words.
NOISE = any_of(r"""
^\s*$
^#\d+ |frame #\d|^\s+File
^\[?[EWIF]\d{0,4} |^\[\d+\]:
^[-=* ]{10}
^\$ |srun: |slurmstepd
^\s*(?:traceback|error_file|host|time|rank|exitcode)\s*:
^Failures:|Root Cause|<NO_OTHER|FAILED$
Exception raised from|terminate called|what\(\):
CUDA kernel errors|For debugging consider|Compile with|Search for `
torch/distributed/|torch\.distributed\.|ProcessGroup|OMP_NUM_THREADS|TORCH_NCCL|dump signal
NCCL INFO|NCCL WARN|[Ww]arn
Killing subprocess|closing signal|gloo/transport
""")
# Exceptions that only say that others took too long, were not there, or stopped this process.
WAITED = any_of(r"""
[Tt]im(?:ed|e) ?out
[Cc]onnection (?:to \S+ )?(?:closed|reset|refused|lost)|Broken pipe
was aborted|store->get|failed to recv|connectFullMesh|clients joined|reached monitoredBarrier
ncclRemoteError|remote process exited|RendezvousTimeout|RendezvousConnectionError
SignalException|KeyboardInterrupt
""")
# Exceptions with which a launcher reports another one.
REPORT = any_of(r"""
ChildFailedError|CalledProcessError
ProcessRaisedException|ProcessExitedException
RayTaskError|RayActorError|ActorDiedError|TrainingFailedError|ControllerError
""")
# Files that are not the user's.
LIBRARY = any_of(r"""
site-packages|dist-packages|[/\\]lib\d*[/\\]python|/usr/lib|/ray/python/
[/\\]bin[/\\]|\\[Ll]ib\\|\\Scripts\\
^<
""")
