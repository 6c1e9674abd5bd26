"""Copy what stands below the ruled line of stage 1's train.py into the other stages.

    python tools/sync_shared_half.py    # or: make sync

Change the lower half in 01_baseline/train.py, run this, and run the tests: they compare the stages.
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
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    first, *others = sorted(ROOT.glob("0*/train.py"))
    shared = split(first)[1]
    for path in others:
        upper, lower = split(path)
        if lower != shared:
            path.write_text(upper + shared, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: brought up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
