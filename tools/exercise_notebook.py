"""Write what is made of the tasks: exercises/given.zip and notebooks/source/exercises.md.

    python tools/exercise_notebook.py

The first has each task as it is given. In the second, each exercise becomes a text and a cell with
what the reader changes. A test compares both with the tasks.
`python tools/build_notebooks.py exercises` makes the notebook of it, as of all others.
"""

import ast
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from exercises.exercise import GIVEN, all_exercises  # noqa: E402 (the path must be set before)

SOURCE = ROOT / "notebooks/source/exercises.md"
CHANGED = re.compile(r"(?:Fix|Write)\s+`(\w+)`")
LEVELS = {
    1: "Level 1: one change",
    2: "Level 2: read a page first",
    3: "Level 3: write it yourself",
}
HEAD = """# Exercises: 26 small programs to fix or to write

Each cell has a function with a mistake that you fix, or a function that you write. Run the cell:
`%%check` runs the function on two and on three real ranks (processes) and prints what they did.
Change the function until the verdict is *done*. You need no GPU and no data. The
[glossary](../../docs/reference/glossary.md) explains words such as *shard*, *collective* and
*bare model*.

**Run the following cell first.** If PyTorch is installed, as on Kaggle and Colab, the cell takes a
few seconds. Otherwise it installs PyTorch, which is a download of several hundred megabytes and
takes some minutes. If you opened this notebook without the rest of the repository, the cell asks
for the address of the repository. In a clone, the cell only changes the folder.

```{code-cell}
import os
import subprocess
from importlib.util import find_spec

ADDRESS = ""  # the address from which you got this repository, for git clone
if os.path.isdir("../exercises"):
    os.chdir("..")
elif not os.path.isdir("exercises") and ADDRESS:
    subprocess.run(["git", "clone", "--depth", "1", ADDRESS, "clone"])
    if os.path.isdir("clone"):
        os.chdir("clone")

if os.path.isdir("exercises"):
    needed = ("torch", "torchvision", "psutil", "rich", "tabulate", "tqdm")
    missing = [name for name in needed if not find_spec(name)]
    if missing:
        print("installing", *missing)
        %pip install --quiet {" ".join(missing)}
    %load_ext exercises.magic
else:
    print("The exercises are not here. Please write the address of the repository between the")
    print("quotes of ADDRESS, and run this cell again. It needs git and a network.")
```

- The first `%%check` takes ten to thirty seconds, because the ranks import PyTorch. A later
  `%%check` takes two to ten seconds.
- `%hint 07` in a cell of its own prints the next of three hints for exercise 07.
- The title of an exercise links to its file. The checker puts your cell into this file, in place of
  the function or class of the same name. The file shows what is imported, and its last part is a
  small program that shows the symptom. You may import more in the cell.
- If the verdict names a line, the lines of the cell are counted, and `%%check` is line 1.
- After *done*, the checker prints what the exercise teaches, our solution, and a second right
  solution.
- This notebook was not run on Kaggle or Colab. It was run on two CPU cores, with PyTorch installed
  and the other packages missing. Cloning and installing took eight seconds, and the first *done*
  came after 26 seconds.
"""

TAIL = """Next: [your own script](../../docs/your_script/README.md).
"""


def main() -> None:
    zip_given()
    SOURCE.write_text(text())


def zip_given() -> None:
    """Write the tasks with a fixed date, so that equal tasks make an equal file."""
    with zipfile.ZipFile(GIVEN, "w") as archive:
        for exercise in all_exercises():
            entry = zipfile.ZipInfo(f"{exercise.folder.name}/task.py")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, exercise.file.read_text())


def text() -> str:
    parts = [HEAD]
    level = 0
    for exercise in all_exercises():
        if exercise.level != level:
            level = exercise.level
            parts.append(f"## {LEVELS[level]}\n")
        parts.append(part(exercise))
    parts.append(TAIL)
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
