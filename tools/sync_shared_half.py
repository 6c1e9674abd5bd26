"""Copy what stands below the ruled line of stage 1's train.py into the other stages.

    python tools/sync_shared_half.py            # or: make sync
    python tools/sync_shared_half.py --check    # only say which stages differ; exit code 1 if any

Change the lower half in 01_baseline/train.py, run this, and run the tests.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULE = f"\n# {'-' * 47} below this line: the same in every stage"


def split(path: Path) -> tuple[str, str]:
    """Cut a stage's script at its ruled line -> (upper half, lower half with the line).

    Raises ValueError unless the file has exactly one ruled line.
    """
    upper, *lower = path.read_text(encoding="utf-8").split(RULE)
    if len(lower) != 1:
        raise ValueError(f"{path} has {len(lower)} ruled lines, not one")
    return upper, RULE + lower[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    first, *others = sorted(ROOT.glob("0*/train.py"))
    shared = split(first)[1]
    differ = [path for path in others if split(path)[1] != shared]
    for path in differ:
        if not check:
            path.write_text(split(path)[0] + shared, encoding="utf-8")
        name = path.relative_to(ROOT)
        print(f"{name}: {'differs below the line' if check else 'brought up to date'}")
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
