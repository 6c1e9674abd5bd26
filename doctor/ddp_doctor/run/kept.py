"""Files that were there before a run with --short: see watch/keep.py."""

import json
import os
from contextlib import suppress
from pathlib import Path


def kept_name(file, path):
    """The second name of a file. `path` is the file itself or the folder that is touched.

    It lies next to that path, since a folder may be removed as a whole.
    """
    mark = os.path.basename(os.environ["DDP_DOCTOR_FOLDER"])
    name = f"{path}.{mark}"
    return name if file == path else os.path.join(name, os.path.relpath(file, path))


def put_back(folder):
    """-> {file that is as it was before the run: what the run wrote, or None}"""
    put = {}
    folders = set()
    for list_of_rank in sorted(folder.glob("kept-*.txt")):
        for line in list_of_rank.read_text().splitlines():
            file, name = json.loads(line)
            if not os.path.lexists(name):
                continue
            put[file] = name_of_new(file, name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            if put[file]:
                os.replace(file, put[file])
            os.replace(name, file)  # which does nothing if both are one file
            with suppress(FileNotFoundError):
                os.unlink(name)
            folders.add(os.path.dirname(name))
    for one in sorted(folders, key=len, reverse=True):
        remove_empty(one, folder.name)
    return put


def name_of_new(file, name):
    """What the run has written gets another name: model.pt becomes model.short.pt."""
    if not os.path.lexists(file) or os.path.samestat(os.lstat(file), os.lstat(name)):
        return None
    path = Path(file)
    return str(path.with_name(f"{path.stem}.short{path.suffix}"))


def remove_empty(folder, mark):
    """The folders that only have kept files, up to the one that has the mark in its name."""
    with suppress(OSError):
        while mark in folder:
            os.rmdir(folder)
            folder = os.path.dirname(folder)
