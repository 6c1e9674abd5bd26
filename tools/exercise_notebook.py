"""Write notebooks/source/exercises.md from the files of the exercises.

    python tools/exercise_notebook.py

Each exercise becomes a text and a cell with what the reader changes. A test compares the two.
`python tools/build_notebooks.py exercises` makes the notebook of it, as of all others.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from exercises import check  # noqa: E402 (the path must be set before)

SOURCE = ROOT / "notebooks/source/exercises.md"
CHANGED = re.compile(r"(?:Fix|Write)\s+`(\w+)`")
LEVELS = {
    1: "Level 1: one change",
    2: "Level 2: read a page first",
    3: "Level 3: write it yourself",
}
HEAD = """# Exercises: 26 small programs to fix or to write

Each cell has a function with one mistake, or one to write. Run the cell: `%%check` runs it on two
and three real ranks (processes) and prints what they did. Change the function until the verdict is
*done*. You need no GPU and no data.

**Run this cell first.** If PyTorch is there, as on Kaggle and Colab, it takes a few seconds.
Otherwise it installs PyTorch, which is a download of several hundred megabytes and takes some
minutes. Put in the address from which you got this repository. In a clone the cell only changes
the folder.

```{code-cell}
import os
import subprocess
from importlib.util import find_spec

ADDRESS = ""  # of this repository
if os.path.isdir("../exercises"):
    os.chdir("..")
elif not os.path.isdir("exercises"):
    assert ADDRESS, "put in the address of this repository"
    subprocess.run(["git", "clone", "--depth", "1", ADDRESS, "clone"], check=True)
    os.chdir("clone")
needed = ("torch", "torchvision", "psutil", "rich", "tabulate", "tqdm")
missing = [name for name in needed if not find_spec(name)]
if missing:
    print("installing", *missing)
    %pip install --quiet {" ".join(missing)}
%load_ext exercises.magic
```

- The first `%%check` takes ten to thirty seconds, because the ranks import PyTorch. Later ones
  take two to ten.
- `%hint 07` in a cell of its own prints the next of three hints.
- A cell stands in for the definitions of the same names in the file of the exercise. The title
  links to that file. It shows what is imported, and it has a small program that shows the symptom.
  You may import more in the cell.
- If the verdict names a line, it is counted in the cell, and `%%check` is line 1.
- After *done*, the checker prints what the exercise teaches, our solution and another one.
- This notebook was not run on Kaggle or Colab. On two CPU cores with PyTorch, where the other
  packages were missing, it took eight seconds to clone and install, and 26 seconds to the first
  *done*.
"""


def main() -> None:
    SOURCE.write_text(text())


def text() -> str:
    parts = [HEAD]
    level = 0
    for exercise in check.all_exercises():
        if exercise.level != level:
            level = exercise.level
            parts.append(f"## {LEVELS[level]}\n")
        parts.append(part(exercise))
    return "\n".join(parts)


def part(exercise) -> str:
    """The title, the task and the cell of an exercise."""
    docstring = exercise.given.split('"""')[1]
    _, *paragraphs, _ = docstring.strip().split("\n\n")  # without the title and the commands
    name = exercise.file.relative_to(ROOT)
    task = "\n\n".join(paragraphs)
    return (
        f"### {exercise.number}. [{exercise.title}](../../{name})\n\n{task}\n\n"
        f"```{{code-cell}}\n%%check {exercise.number}\n{definition(exercise)}\n```\n"
    )


def definition(exercise) -> str:
    """What the reader changes."""
    found = CHANGED.search(exercise.given)
    wanted = found[1] if found else "Parallel"
    lines = exercise.given.splitlines()
    for node in ast.parse(exercise.given).body:
        if getattr(node, "name", None) == wanted:
            return "\n".join(lines[node.lineno - 1 : node.end_lineno])  # with its last comment
    raise LookupError(f"{exercise.file.name} has no {wanted}")


if __name__ == "__main__":
    main()
