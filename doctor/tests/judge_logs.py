"""Does `ddp-doctor explain` say of each log what it should? The judge of the corpus in tests/logs.

    python doctor/tests/judge_logs.py [FOLDER] [ID ...]

Each ID.json names the files of a run, the ranks that are the cause (null: none of them, or unknown;
[]: no failure), the line of the user's script, and what must be said and must not be said. For this
`say` and `not` have regular expressions, which were chosen from the labels and not from outputs.
The logs were written for this purpose after public threads (`source`), in the formats of the
programs; names, hosts and numbers are invented, and none was run on GPUs.

right: ranks, line, and all that must be said. half: the ranks and at least half of it, and nothing
that must not be said. wrong: the rest. With an ID the explanation is printed, too.
"""

import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "logs"
sys.path.insert(0, str(FOLDER.parents[1]))


def judge(folder, case):
    """-> the verdict, what is wrong, and the explanation."""
    from ddp_doctor.explain.words import explain, text_of

    found = explain([folder / name for name in case["files"]])
    text = text_of(found)
    faults = []
    if found["ranks"] != case["root_cause_ranks"]:
        faults.append(f"ranks {found['ranks']}, not {case['root_cause_ranks']}")
    ranks_are_right = not faults
    said = " ".join(text.split("\nRead: ")[0].split())
    for name in sorted(case["files"], key=len, reverse=True):
        said = said.replace(Path(name).name, "LOG")  # the name of a file must not count as said
    if case["user_line"] and case["user_line"] not in said:
        faults.append(f"line {found['line']}, not {case['user_line']}")
    missing = [words for words in case["say"] if not re.search(words, said, re.IGNORECASE)]
    forbidden = [words for words in case["not"] if re.search(words, said, re.IGNORECASE)]
    faults += [f"not said: {words}" for words in missing]
    faults += [f"said, though it must not be: {words}" for words in forbidden]
    if not faults:
        return "right", faults, text
    if ranks_are_right and not forbidden and len(missing) <= len(case["say"]) / 2:
        return "half", faults, text
    return "wrong", faults, text


def cases_of(folder):
    paths = sorted(folder.glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def main():
    words = sys.argv[1:]
    folder = Path(words.pop(0)) if words and Path(words[0]).is_dir() else FOLDER
    counts = {"right": 0, "half": 0, "wrong": 0}
    for case in cases_of(folder):
        if words and not case["id"].startswith(tuple(words)):
            continue
        verdict, faults, text = judge(folder, case)
        counts[verdict] += 1
        print(f"{verdict:6}{case['id']:36}{'; '.join(faults)}")
        if words:
            print(text, "\n")
    print(counts)


if __name__ == "__main__":
    main()
