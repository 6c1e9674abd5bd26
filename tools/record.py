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
ORDER = (None, *all_reduce.WAYS, *failure.CASES)  # a step has no way and no case


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)}; with --check files")
    add("--check", action="store_true", help="examine recordings, record nothing")
    add("--folder", type=Path, default=check.FOLDER, help="where the recordings are")
    args = parser.parse_args()
    if args.check:
        check.main([Path(name) for name in args.names], args.folder)
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
    try:
        there = check.check_files(args.folder)
    except check.Damaged as error:
        parser.error(f"{error}: delete it first")
    recordings = [found for kind in kinds for found in record_kind(kind)]
    recordings += [recording for recording in there if recording["kind"] not in kinds]
    write(sorted(recordings, key=order_of_menus), there, args.folder)


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


def write(recordings: list[dict], before: list[dict], folder: Path) -> None:
    """Write recordings and their index. Of those before, a file that is not among them goes."""
    names = [f"{recording['name']}.json" for recording in recordings]
    keys = ("kind", "title", "choices")
    index = []
    for name, recording in zip(names, recordings):
        index.append({"file": name} | {key: recording[key] for key in keys})
        write_compact(folder / name, recording)
    write_compact(folder / "index.json", index)
    for gone in {f"{recording['name']}.json" for recording in before} - set(names):
        (folder / gone).unlink()


def order_of_menus(recording: dict) -> tuple:
    """Steps, ways, cases; of each the numbers of ranks; of steps nets with one bucket, several."""
    choices = recording["choices"]
    which = choices.get("way") or choices.get("case")
    net = choices.get("channels", 0), -choices.get("bucket_cap_mb", 0)
    return ORDER.index(which), choices["ranks"], net


def write_compact(path: Path, value: object) -> None:
    text = json.dumps(value, separators=(",", ":")) + "\n"
    common.write_whole(path, lambda temp: temp.write_text(text))


if __name__ == "__main__":
    main()
