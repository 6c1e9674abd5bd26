"""All ranks resume from the newest epoch whose file is whole on every rank."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

# for each case what ranks 0, 1 and 2 have: epochs, those with a minus are cut off
CASES = (
    ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
    ([1, 2, 3], [1, 2, -3], [1, 2, 3]),
    ([1, 2, -3], [1, 3], [1, 2, 3]),
    ([1, 3, 4], [2, 3, -4], [3]),
    ([2], [-1, 3], [1]),
    ([], [1], [1]),
)
HINTS = (
    "Which epoch does each rank resume from, and which files has the other rank?",
    "After a failure the ranks' files differ: agree on an epoch that all have whole, then load. "
    "The smallest of the newest will not do: a rank may lack that one.",
    "dist.all_gather_object(everywhere, set of whole epochs), then "
    "max(set.intersection(*everywhere), default=0).",
)


def observe(mine, *case):
    rank, folder = dist.get_rank(), Path(tempfile.mkdtemp(dir="."))
    for epoch in case[rank]:
        path = folder / f"epoch_{abs(epoch):02}.pt"
        torch.save({"epoch": abs(epoch), "of": rank}, path)
        if epoch < 0:
            path.write_bytes(path.read_bytes()[:-1])
    return mine.newest(folder)


def judge(ranks, *case):
    whole = [{epoch for epoch in epochs if epoch > 0} for epochs in case[: len(ranks)]]
    epoch = max(set.intersection(*whole), default=0)
    for number, returned in enumerate(ranks):
        wanted = (epoch, {"epoch": epoch, "of": number} if epoch else None)
        if returned != wanted:
            have = "; ".join(f"rank {n} has {sorted(w) or 'none'}" for n, w in enumerate(whole))
            return (
                f"of files that are whole, {have}. On rank {number} newest was to return "
                f"{wanted}; it returned {returned}"
            )
    return None
