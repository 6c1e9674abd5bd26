"""Record data-parallel runs for the player in docs/player: real ranks, on CPU cores with gloo.

    python tools/record.py                # all: some four minutes
    python tools/record.py step           # of one kind: step, all_reduce or failure

A step of DDP is recorded by a hook on every parameter and DDP's communication hook; an all-reduce
of 05_multinode/from_scratch.py by a stand-in for torch.distributed that notes every message; a
failure by notes that each rank writes as it goes, so that they are there when it is killed. The
ranks share the clock of their machine. Nothing is written before all are recorded.
tests/test_recordings.py examines what is there.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from tools import processes
from tools.recorders import all_reduce, failure, step

FOLDER = common.ROOT / "docs/player/recordings"
KINDS = {  # kind: the function that records it, and for how many ranks
    "step": (step.record_steps, step.RANKS),
    "all_reduce": (all_reduce.record_all_reduces, all_reduce.RANKS),
    "failure": (failure.record_failures, failure.RANKS),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="KIND", help=", ".join(KINDS))
    add("--folder", type=Path, default=FOLDER, help="where the recordings are")
    args = parser.parse_args()
    for name in args.names:
        if name not in KINDS:
            parser.error(f"there is no kind {name}; there are {', '.join(KINDS)}")
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--folder {args.folder}: {error.strerror}")
    processes.exit_on_signals()
    recordings = []
    for kind in dict.fromkeys(args.names or KINDS):
        record, numbers = KINDS[kind]
        for ranks in numbers:
            recordings += record(ranks)
            print(f"{kind}, {ranks} ranks", flush=True)
    for old in args.folder.glob("*.json"):
        if json.loads(old.read_text())["kind"] in (args.names or KINDS):
            old.unlink()
    for recording in recordings:
        text = json.dumps(recording, separators=(",", ":")) + "\n"
        (args.folder / f"{recording['name']}.json").write_text(text)


if __name__ == "__main__":
    main()
