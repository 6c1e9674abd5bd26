"""What does the doctor find in public DDP scripts? Each has a recipe in recipes/.

A recipe names a repository, its commit, the shell commands that make a script small enough for two
CPU cores without a network, and the command that starts it. This program checks the commit out
into a temporary folder, runs the commands in it, runs the script under the doctor, and writes what
was found to results/NAME.json. docs/doctor/field_report.md judges the findings.

    python doctor/field/field.py ddp_series nanogpt
    python doctor/field/field.py --all --snapshots FOLDER --python /path/to/python

Without a snapshot in FOLDER/OWNER+NAME/repo (a git directory) the repository is cloned.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECIPES = HERE / "recipes"
RESULTS = HERE / "results"
LIMIT = 280  # seconds that a script may take


def main():
    args = parse()
    if args.count:
        print(count(args.results))
        return
    for name in args.names or all_names():
        recipe = read(name)
        if "why_not" in recipe:
            print(f"{name}: not run, {recipe['why_not']}")
            continue
        result = run(recipe, args)
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(summary(name, result))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(all_names()))
    parser.add_argument("--all", action="store_true", help="run all recipes")
    parser.add_argument("--count", action="store_true", help="count the results and their verdicts")
    parser.add_argument("--snapshots", type=Path, help="folder with snapshots of repositories")
    parser.add_argument("--python", default=sys.executable, help="Python that runs the scripts")
    parser.add_argument("--doctor", type=Path, default=HERE.parent, help="folder of the doctor")
    parser.add_argument("--short", type=int, metavar="N", help="end each pass after N batches")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--keep", type=Path, help="check out into this folder, and keep it")
    args = parser.parse_args()
    if args.all + args.count + bool(args.names) != 1:
        parser.error("name recipes, or give --all or --count")
    unknown = set(args.names) - set(all_names())
    if unknown:
        parser.error(f"no recipe: {', '.join(sorted(unknown))}")
    return args


def all_names() -> list[str]:
    return sorted(file.stem for file in RECIPES.glob("*.json"))


def read(name: str) -> dict:
    return json.loads((RECIPES / f"{name}.json").read_text())


# ---------------------------------------------------------------- one recipe


def run(recipe: dict, args) -> dict:
    """Check out, prepare and run -> what the doctor found, as data."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        checkout(recipe, args.snapshots, folder)
        started = time.monotonic()
        command = shlex.join(doctor(args, temporary)) + " " + recipe["command"]
        lines = ["set -e", *recipe["prepare"], command]
        where = folder / recipe.get("folder", "")
        done = subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            cwd=where,
            env=environment(args.python, folder),
            capture_output=True,
            text=True,
        )
        seconds = round(time.monotonic() - started)
        report = Path(temporary, "doctor.json")
        if not report.exists():
            sys.exit(f"{done.stdout}\n{done.stderr}\nThe doctor wrote no report.")
        if args.keep:
            (folder / "doctor.txt").write_text(done.stdout + done.stderr)
        text = report.read_text().replace(f"{where.resolve()}/", "")
        return analyse(json.loads(text), seconds, recipe.get("folder", ""))


def checkout(recipe: dict, snapshots: Path | None, folder: Path) -> None:
    """Put the files of the recipe's commit into the folder, without git."""
    commit = recipe["commit"]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as clone:
        git = snapshot(recipe, snapshots)
        if git is None:
            git = Path(clone, "repo")
            address = f"https://github.com/{recipe['repository']}"
            clone_command = ["git", "clone", "--quiet", "--bare", "--filter=blob:none"]
            subprocess.run([*clone_command, address, git], check=True)
        if git.name != "repo":  # the files of that commit, without git
            subprocess.run(["cp", "-r", f"{git}/.", folder], check=True)
            return
        archive = ["git", "--git-dir", git, "archive", commit, *recipe.get("paths", [])]
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as files:
            subprocess.run(["tar", "-x", "-C", folder], stdin=files.stdout, check=True)
        if files.returncode:
            sys.exit(f"{git} has no commit {commit}")


def snapshot(recipe: dict, snapshots: Path | None) -> Path | None:
    """-> a git directory with the commit, or a folder with its files, if there is one

    A fork of a recipe is another repository that has the same commit and is smaller.
    """
    for repository in (recipe["repository"], recipe.get("fork")):
        if snapshots and repository:
            place = snapshots / repository.replace("/", "+")
            for found in (place / recipe["commit"], place / "repo"):
                if found.is_dir():
                    return found
    return None


def doctor(args, temporary: str) -> list[str]:
    check = [sys.executable, str(args.doctor.resolve()), "check"]
    if args.short:
        check += ["--short", str(args.short)]
    return [*check, "--limit", str(LIMIT), "--json", f"{temporary}/doctor.json"]


def environment(python: str, folder: Path) -> dict[str, str]:
    """For the commands of a recipe: $PYTHON, $FIELD (this folder of recipes), $TORCHRUN."""
    torchrun = f"{python} -m torch.distributed.run --standalone --nproc-per-node 2"
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "WANDB_MODE": "disabled"}
    threads = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ours = {
        "PYTHON": python,
        "FIELD": str(RECIPES),
        "TORCHRUN": torchrun,
        "CUDA_VISIBLE_DEVICES": "",
    }
    return os.environ | offline | threads | ours


# ---------------------------------------------------------------- the result


def analyse(report: dict, seconds: int, folder: str) -> dict:
    kept = {key: report[key] for key in ("exit", "command", "ranks", "looked_at", "not_judged")}
    findings = []
    for finding in report["findings"]:
        at = os.path.normpath(os.path.join(folder, finding["at"]))  # as in the repository
        findings.append({key: finding[key] for key in ("severity", "key", "seen")} | {"at": at})
    return {"seconds": seconds, "findings": findings} | kept


def summary(name: str, result: dict) -> str:
    lines = [f"{name}: exit code {result['exit']}, {result['seconds']} s"]
    for finding in result["findings"]:
        lines.append(f"  {finding['severity']} {finding['key']} {finding['at']}: {finding['seen']}")
    return "\n".join(lines)


def place(recipe: dict) -> str:
    return "/".join([recipe["repository"], recipe.get("folder", ""), recipe["script"]])


def count(results: Path) -> str:
    """How many scripts ran, and how many findings were confirmed, wrong or missed, as judged?"""
    recipes = {name: read(name) for name in all_names()}
    ran = [name for name in recipes if (results / f"{name}.json").exists()]
    found = confirmed = wrong = missed = certain = 0
    for name in ran:
        findings = json.loads((results / f"{name}.json").read_text())["findings"]
        keys = {finding["key"] for finding in findings}
        verdicts = {judged["key"]: judged["verdict"] for judged in recipes[name]["judged"]}
        found += len(findings)
        confirmed += sum(verdicts.get(finding["key"]) == "confirmed" for finding in findings)
        wrong += sum(verdicts.get(finding["key"]) == "wrong" for finding in findings)
        certain += sum(finding["severity"] == "wrong" for finding in findings)
        missed += len(set(recipes[name]["missed"]) - keys)
    scripts = {place(recipe) for recipe in recipes.values()}
    scripts_ran = {place(recipes[name]) for name in ran}
    return (
        f"{len(scripts)} scripts, {len(scripts_ran)} ran, {found} findings ({certain} certain): "
        f"{confirmed} confirmed, {wrong} wrong, {found - confirmed - wrong} not judged; "
        f"{missed} known mistakes missed"
    )


if __name__ == "__main__":
    main()
