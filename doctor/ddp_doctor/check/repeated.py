"""Evaluation: did every rank evaluate the whole set, and were the results of all brought together?

Then each sample counts once per rank. A mean is right in spite of that: a sum of hits that is
divided by a sum of counts, or a sum that is divided by the number of ranks.
"""

import ast
import math
import re
from bisect import bisect
from collections import Counter
from dataclasses import dataclass

from ..run.digits import NUMBER, agrees
from ..run.events import Printed
from .data import evaluates, of_one_set, reductions, results, sets_of, shows, until_training
from .findings import Finding
from .source import asks, files_of, keyword_of, parted
from .values import (
    WORLD,
    Value,
    called,
    calls_at,
    function_around,
    is_name,
    made_first,
    not_prepared,
)

HITS = re.compile(r"(\d+)\s*(?:/|of|out of)\s*(\d+)")  # as in "97 of 100"
FEWEST = 8  # samples: fewer results may have the number of the samples by chance


@dataclass(frozen=True)
class Whole:
    """An evaluation in which each rank of a team read the same samples."""

    team: list
    epochs: tuple  # one per rank

    @property
    def first(self):
        return self.epochs[0]

    @property
    def count(self):
        return self.first.loaded

    def calls(self, find):
        """What `find` finds in this evaluation, one list per rank, without that of the next one."""
        columns = []
        for rank, epoch in zip(self.team, self.epochs):
            starts = [other.batches[0].when.time for other in rank.epochs if other.batches]
            own = epoch.batches[0].when.time
            end = min((start for start in starts if start > own), default=math.inf)
            columns.append([call for call in find(rank, epoch) if call.when.time < end])
        return columns

    def sums(self, find):
        """The numbers of these calls, one list per rank. A line may be called after each batch.

        It may also be called several times after the same batch: for hits, and then for counts.
        """
        rows = []
        for calls, epoch in zip(self.calls(find), self.epochs):
            given = [batch.when.time for batch in epoch.batches]
            times = Counter()  # of each line after each number of batches
            totals = Counter()  # of each line, each time, and each place in the tensor
            for call in calls:
                after = call.at, bisect(given, call.when.time)
                times[after] += 1
                for place, number in enumerate(call.values):
                    totals[call.at, times[after], place] += number
            rows.append([*totals.values()])
        return rows


def whole_evaluations(run, team):
    found = []
    for epochs in run.meetings(team, evaluates):
        sets = sets_of(epochs)
        if of_one_set(epochs) and all(own == sets[0] for own in sets):
            found.append(Whole(team, epochs))
    return found


def line_of_loader(run, epoch):
    """Which line gives each rank the whole set?

    Lightning may be told not to divide the data, and Accelerate's prepare() may not get the loader.
    Or else it is the line of the loader. If a helper makes the training loader as well, it is the
    line that calls the helper.
    """
    began = epoch.began
    told = keyword_of("use_distributed_sampler", False, files_of(run))
    told = told or not_prepared(began.at, files_of(run))
    if told:
        return told
    for other in run.ranks[0].epochs:
        is_shared = other.trained and other.began.made == began.made
        if is_shared and began.made_from and other.began.made_from[:1] != began.made_from[:1]:
            return began.made_from[0]
    return began.made


def samples_in_words(whole):
    which = "the same" if whole.first.cut else "all"
    return f"Each rank evaluated {which} {whole.count} samples"


# ------------------------------------------------------------------ counts that are added up


def whole_evaluation_added(run):
    """Each rank evaluated the whole set, and the counts were added up."""
    for team in run.teams:
        found = []
        alone = False  # is a count added up by itself, and not together with its divisor?
        doubled = []  # sums of all ranks that the script prints
        for whole in whole_evaluations(run, team):
            added = first_with_counts(whole.sums(sums_of), whole.count)
            if added:
                found.append(whole)
                alone |= len(added) == 1
                doubled += doubled_counts(whole, added)
        over = [hits_over(team[0], whole.first, whole.count) for whole in found]
        over = [text for text in over if text]
        if not over and not doubled and not alone:
            continue
        totals = [*over, *doubled]
        shown = f", to {totals[0]}" if totals else ""
        yield Finding(
            "evaluation-repeated",
            found[0].first.began.at,
            seen=f"{samples_in_words(found[0])}, and the counts are added up{shown}",
            fine="" if over else "the sum is divided by a count that was added up, too",
            comes_from=line_of_loader(run, found[0].first),
        )


def sums_of(rank, epoch):
    return [call for call in reductions(rank, epoch) if call.sums]


def first_with_counts(rows, count):
    """Numbers of which one is a whole number up to `count`, equal on all ranks: perhaps its hits.

    All numbers of this evaluation, or none.
    """
    for numbers in zip(*rows):
        same = len(set(numbers)) == 1
        if same and 1 < numbers[0] <= count and numbers[0] % 1 == 0:
            return rows[0]
    return []


def doubled_counts(whole, numbers):
    """Sums of all ranks that the script prints."""
    totals = [int(number) * len(whole.team) for number in numbers if number > 9]
    return [total for total in totals if shows(whole.team[0], whole.first, total)]


def hits_over(rank, epoch, count):
    """The script shows "1064 of 1000": more hits than samples. -> that text, or an empty one."""
    for event in until_training(rank, epoch, Printed):
        for hits, of in HITS.findall(event.text):
            if int(of) == count < int(hits):
                return f"{hits} of {of}"
    return ""


# ------------------------------------------------------------------ other sums


def whole_evaluation_summed(run):
    """Each rank evaluated the whole set, and a result that is no count was added up."""
    for team in run.teams:
        found = []
        figures = []  # that the script prints and that are too large, of each evaluation
        for whole in whole_evaluations(run, team):
            numbers = sums_added(whole)
            if numbers and not shows_figure(whole, numbers, 1):
                found.append(whole)
                figures.append(shows_figure(whole, numbers, len(team)))
        if not found:
            continue
        shown = f". The script prints {figures[0]}, which has each sample once per rank"
        yield Finding(
            "evaluation-repeated",
            found[0].first.began.at,
            seen=f"{samples_in_words(found[0])}, and their equal results are added up"
            + (shown if all(figures) else ""),
            fine="" if all(figures) else "the sum is divided by the number of ranks",
            comes_from=line_of_loader(run, found[0].first),
        )


def sums_added(whole):
    """Results that all ranks have alike, where nothing that is added up could be their divisor."""
    for call in whole.calls(sums_of)[0]:
        lines = [call.at, *call.called_from]
        counts = [number for number in call.values if number >= 1 and number % 1 == 0]
        if counts or not adds_up(call.at) or any(map(over_world, lines)):
            return []
    rows = whole.sums(sums_of)
    same = [met[0] for met in zip(*rows) if max(met) - min(met) <= 1e-6 * abs(max(met))]
    return [number for number in same if number % 1 != 0]


def adds_up(line):
    """Does a call of this line add up, and take no mean as those of frameworks do by default?"""
    for call in calls_at(line, ("all_reduce", "reduce")):
        receiver = ast.unparse(call.func).rpartition(".")[0]
        given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        words = " ".join(map(ast.unparse, given)).lower()
        if re.search("mean|avg", words):
            return False
        # Accelerator.reduce() adds up by default, and the all_reduce() of Fabric takes the mean.
        plain = not receiver or "dist" in receiver or "acc" in receiver
        return plain or "sum" in words
    return False


def over_world(line):
    """Does the function of this line divide by the number of ranks, above the line or below it?"""
    file, number = parted(line)
    for node in ast.walk(function_around(file, number)):
        divisors = []
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            divisors.append(getattr(node, "right", getattr(node, "value", None)))
        if isinstance(node, ast.Call) and called(node).strip("_") in ("div", "true_divide", "mul"):
            divisors += node.args
        for divisor in divisors:
            if has_world(Value(file, divisor.lineno, divisor)):
                return True
    return False


def has_world(value):
    if asks(value.node, WORLD):
        return True
    for node in ast.walk(value.node):
        if is_name(node):
            first = made_first(value.part(node))
            if first is not None and asks(first.node, WORLD):
                return True
    return False


def shows_figure(whole, numbers, times):
    """The printed text that is `times` a number per sample or per batch, or the root of it."""
    began = whole.first.began
    divisors = {began.samples, began.batches, whole.count, len(whole.first.batches), 1}
    figures = set()
    for number in numbers:
        for divisor in divisors - {None, 0}:
            quotient = times * number / divisor
            figures |= {quotient, 100 * quotient, math.sqrt(abs(quotient))}
    for event in until_training(whole.team[0], whole.first, Printed):
        for text in NUMBER.findall(event.text):
            digits = re.sub(r"^[0.]*|\.|e.*", "", text)
            if len(digits) > 2 and any(agrees(text, figure) for figure in figures):
                return text
    return ""


# ------------------------------------------------------------------ results that are gathered


def whole_evaluation_gathered(run):
    """Each rank evaluated the whole set, and the results of all ranks were gathered."""
    for team in run.teams:
        for whole in whole_evaluations(run, team):
            each = all(gives_each_sample(calls, whole.count) for calls in whole.calls(gathers))
            hits = first_with_counts(whole.sums(gathers), whole.count)
            figure = hits_over(team[0], whole.first, whole.count)
            if not figure and not shows_figure(whole, hits, 1):
                figure = shows_figure(whole, hits, len(team))
            totals = doubled_counts(whole, [whole.count, *hits])
            certain = figure or (each and totals)
            if each or (hits and (figure or totals)):
                shown = [text for text in (figure, *totals) if text]
                yield Finding(
                    "evaluation-repeated",
                    whole.first.began.at,
                    seen=f"{samples_in_words(whole)}, and the results of all ranks are gathered"
                    + (f". The script prints {shown[0]}" if shown else ""),
                    fine="" if certain else "only means, or the results of one rank, are taken",
                    comes_from=line_of_loader(run, whole.first),
                )
                break


def gathers(rank, epoch):
    return [call for call in results(rank, epoch) if "gather" in call.op]


def gives_each_sample(calls, count):
    """Did the rank give a line that gathers as many results as it had samples?

    The line may gather several things for each sample.
    """
    given = {}
    for call in calls:
        given[call.at] = given.get(call.at, 0) + call.given
    return count >= FEWEST and any(rows and rows % count == 0 for rows in given.values())


JUDGES = [
    whole_evaluation_added,
    whole_evaluation_summed,
    whole_evaluation_gathered,
]
