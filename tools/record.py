"""Record data-parallel runs for the player in docs/player: real ranks, on CPU cores with gloo.

    python tools/record.py                # all: some four minutes
    python tools/record.py step           # of one kind: step, all_reduce or failure
    python tools/record.py --check        # examine the recordings that are there
    python tools/record.py --check FILE   # these

A step of DDP is recorded by a hook on every parameter and DDP's communication hook; an all-reduce
of 05_multinode/from_scratch.py by a stand-in for torch.distributed that notes every message; a
failure by notes that each rank writes as it goes, so that they are there when it is killed. The
ranks share the clock of their machine. Nothing is written unless all recordings pass the check.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common
from tools.recorders import all_reduce, check, failure, step

rehearsal = importlib.import_module("05_multinode.rehearsal.common")

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
    add("names", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; with --check files")
    add("--check", action="store_true", help="examine recordings, record nothing")
    add("--folder", type=Path, default=check.FOLDER, help="where the recordings are")
    args = parser.parse_args()
    try:
        if args.check and args.names:
            there = [check.check_file(Path(name)) for name in args.names]
        else:
            there = check.check_files(args.folder)
    except check.Damaged as error:
        parser.error(str(error))
    if args.check:
        print(f"{len(there)} recordings, nothing is wrong with them")
        return
    for name in args.names:
        if name not in KINDS:
            parser.error(f"there is no kind {name}; there are {', '.join(KINDS)}")
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=args.folder).close()
    except OSError as error:
        parser.error(f"--folder {args.folder}: {error.strerror}")
    rehearsal.exit_on_signals()
    kinds = dict.fromkeys(args.names or KINDS)
    recordings = [found for kind in kinds for found in record_kind(kind)]
    names = {recording["name"] for recording in recordings}
    for recording in recordings:
        text = json.dumps(recording, separators=(",", ":")) + "\n"
        path = args.folder / f"{recording['name']}.json"
        common.write_whole(path, lambda temp, text=text: temp.write_text(text))
    for old in there:
        if old["kind"] in kinds and old["name"] not in names:
            (args.folder / f"{old['name']}.json").unlink()


def record_kind(kind: str) -> Iterator[dict]:
    """-> recordings that have passed the check. Ends the program with 1 if one does not."""
    record, numbers = KINDS[kind]
    for ranks in numbers:
        for recording in record(ranks):
            try:
                yield check.check(recording)
            except check.Damaged as error:
                sys.exit(f"record: {recording['title']}: {error}")
            print(recording["title"], flush=True)


if __name__ == "__main__":
    main()
