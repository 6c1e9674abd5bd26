"""The model has what is in the file, however it was saved; what does not fit is an error."""

from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn

from exercises.common import batchnorm_model

CASES = (
    ("the DDP model", "module.", "unchanged"),
    ("the bare model", "", "unchanged"),
    ("the DDP model", "module.", "a part is called submodule"),
    ("the bare model", "", "a part is called submodule"),
    ("the DDP model", "module.", "a weight is missing"),
    ("the bare model", "", "a weight is missing"),
    ("the DDP model", "module.", "a weight is left over"),
    ("the bare model", "", "a weight is left over"),
    ("the DDP model", "module.", "all names differ"),
)
CASE = "with a file saved from {0} ({2}): "


def observe(mine, _, prefix, change):
    rank = dist.get_rank()
    saved = batchnorm_model(seed=7)
    model = batchnorm_model(seed=rank)
    if change == "a part is called submodule":
        saved = nn.Sequential(OrderedDict(submodule=saved))
        model = nn.Sequential(OrderedDict(submodule=model))
    saved(torch.rand(8, 2))  # gives BatchNorm other statistics than those of a new model
    names = {}
    for name, value in saved.state_dict().items():
        names[f"{prefix}{name}"] = value
    if change == "a weight is missing":
        del names[f"{prefix}0.weight"]
    if change == "a weight is left over":
        names[f"{prefix}3.weight"] = torch.ones(1)
    if change == "all names differ":
        names = {f"encoder.{name}": value for name, value in names.items()}
    path = f"of_rank_{rank}.pt"
    torch.save(names, path)
    try:
        mine.load(model, path)
    except (Exception, SystemExit):  # any: the exercise does not say which
        return {"an error is raised": True}
    found = {"an error is raised": False}
    if change in ("unchanged", "a part is called submodule"):
        for name, value in model.state_dict().items():
            found[f"{name} of the loaded model"] = value
    return found
