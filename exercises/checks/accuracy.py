"""What the checks of `evaluate` share: a model whose mistakes are known, and their judgement."""

import math

import torch
import torch.nn as nn
from torch.utils.data import TensorDataset

from exercises.checks.common import number, some

# (number of images, those on which the model is wrong)
CASES = (
    (11, ()),
    (11, (4,)),
    (11, (0,)),
    (13, (1, 3, 5, 7, 9, 12)),
    (24, (3, 8, 9, 20, 22)),
    (7, (5, 6)),
)


class Known(nn.Module):
    """Gives the class that is noted for each image, and notes the images it is given: `seen`."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers
        self.scale = nn.Parameter(torch.ones(1))
        self.seen = []

    def forward(self, x):
        numbers = x[:, 0].long()
        self.seen += numbers.tolist()
        return nn.functional.one_hot(self.answers[numbers], 3) * self.scale


def observe(mine):
    """Evaluate each case -> what evaluate returned and which images this rank has tested."""
    found = []
    for count, wrong in CASES:
        labels = torch.arange(count) % 3
        answers = labels.clone()
        answers[list(wrong)] += 1
        model = Known(answers % 3)
        images = torch.stack([torch.arange(count), torch.ones(count)], dim=1).float()
        result = mine.evaluate(model, TensorDataset(images, labels))
        found.append({"result": number(result), "seen": model.seen})
    return {"cases": found}


def judge(ranks):
    for (count, wrong), found in zip(CASES, zip(*(rank["cases"] for rank in ranks))):
        if verdict := judge_case(count, count - len(wrong), found):
            return verdict
    return None


def judge_case(count, right, found):
    for rank, values in enumerate(found):
        if not isinstance(values["result"], float):
            return f"evaluate is to return a number; on rank {rank} it returned {values['result']}"
    results, tested = [v["result"] for v in found], [len(v["seen"]) for v in found]
    if any(not math.isclose(result, 100 * right / count, abs_tol=1e-3) for result in results):
        return (
            f"the model is right on {right} of {count} images, {100 * right / count:.2f} %; the "
            f"ranks tested {words(tested)} images and returned "
            f"{words([f'{result:.2f} %' for result in results])}"
        )
    if missing := sorted(set(range(count)) - {image for v in found for image in v["seen"]}):
        return f"the figure is right, but no rank has tested the images {some(missing)}"
    most = -(-count // len(found))
    for rank, images in enumerate(tested):
        if images > most:
            return (
                f"the figure is right, but rank {rank} tested {images} of {count} images; with "
                f"{len(found)} ranks {most} are enough"
            )
    return None


def words(values):
    """'1, 2 and 3'"""
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"
