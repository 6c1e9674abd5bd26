"""Record data-parallel runs for the player in docs/player: real ranks, on CPU cores with gloo.

    python -m benchmarks.record [step | failure]    # both: some three minutes

A step of DDP is recorded by a hook on every parameter and DDP's communication hook; a failure by
notes that each rank writes as it goes, so that they are there when it is killed. The ranks share
the clock of their machine. Nothing is written before all are recorded. The recordings of
all-reduces stay as they are: they depend on 05_multinode/from_scratch.py, and not on PyTorch.
"""

import argparse
import json

from benchmarks import common
from benchmarks.recorders import failure, step
from tools import processes

FOLDER = common.ROOT / "docs/player/recordings"
KINDS = {"step": step.record_steps, "failure": failure.record_failures}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", nargs="?", choices=KINDS, help="both if none is given")
    only = parser.parse_args().kind
    processes.exit_on_signals()
    recordings = []
    for kind in [only] if only else KINDS:
        print(kind, flush=True)
        recordings += KINDS[kind]()
    for recording in recordings:
        text = json.dumps(recording, separators=(",", ":")) + "\n"
        (FOLDER / f"{recording['name']}.json").write_text(text)


if __name__ == "__main__":
    main()
