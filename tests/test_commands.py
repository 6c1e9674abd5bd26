"""The commands of the pages that a newcomer follows, as typed.

They run in the order of the page, in one shell, in a copy of the repository in a folder with a
blank in its name, without a network, on small data.
"""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, STAGES

PAGES = ["README.md", *(f"{stage}/README.md" for stage in STAGES)]
PAGES += ["docs/your_script/adapt.md", "docs/doctor/check.md", "docs/doctor/speed.md"]
PAGES += ["docs/failures/debugging.md", "docs/failures/reading_a_log.md"]
PAGES.append("exercises/README.md")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What is not run here, by words of the command, with the reason.
NOT_RUN = {
    "make demo": "it installs the environment: .ci/run does",
    "make test": "it would run this test again",
    "pip install": "it installs something",
    "SCRIPT": "the reader's own script",
    "first-node": "several machines: tests of the rehearsal run these lines on nodes",
    "--rdzv-endpoint 127.0.0.1:29500": "it needs a second terminal: test_stages.py starts both",
    "run.log": "a log that the reader has",
    "rank0.log": "logs that the reader has",
    "log logs/": "logs that the reader has",
    "torchrun ... 2>&1": "the reader's own command",
    "judge_cases.py": "the corpus takes minutes: doctor/tests run a part of it",
    "check.py --": "the exercises have tests of their own",
    "docs/your_script/examples/ddp_complete.py": "test_docs.py runs it",
}
# Commands that end with exit code 1, because they show a mistake or a difference.
FAIL = ("git diff", "doctor check", "doctor log", "exercises/check.py")


def commands_of(page):
    """-> the command lines of a page; a backslash at the end joins two lines."""
    commands = []
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        commands += block.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in commands]
    return [line for line in lines if line and not any(words in line for words in NOT_RUN)]


def copy_of_the_repository(folder):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in done.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_the_commands_of_a_page_run_as_typed(page, tmp_path, reader):
    reader.folder = tmp_path / "a folder"
    copy_of_the_repository(reader.folder)
    (reader.folder / ".venv").symlink_to(sys.prefix)  # what make demo would have made
    script = []
    for command in commands_of(page):
        allowed = " || test $? = 1" if any(words in command for words in FAIL) else ""
        script.append(f"echo {shlex.quote('$ ' + command)}\n{command}{allowed}")
    lines = shlex.quote("\n".join(script))
    variables = {"OMP_NUM_THREADS": "1", "http_proxy": "off"}
    result = reader.run(f"bash -euo pipefail -c {lines}", timeout=560, **variables)
    assert result.code == 0, result
