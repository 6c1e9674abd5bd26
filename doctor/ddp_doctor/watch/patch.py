"""Puts a watcher in front of a function of PyTorch or Python, or behind it."""

import functools
import sys
from collections import defaultdict

import torch

from .note import PROCESS, quietly


def is_recorded():
    """Would what a watcher computes become a part of a compiled or captured graph?"""
    if torch.compiler.is_compiling():
        return True
    # In a process that has not used a GPU the second question would start one.
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def replace(owner, name, around):
    """owner.name becomes around(original, *args, **kwargs), in ranks and outside of compilers."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args, **kwargs):
        if is_recorded() or not PROCESS.is_rank():
            return original(*args, **kwargs)
        return around(original, *args, **kwargs)

    setattr(owner, name, watched)
    return watched


HEARERS = defaultdict(list)  # kind of an audit event -> the functions that hear it


def listen(hear, *kinds):
    """hear(kind, args) is called at each audit event of these kinds.

    Python calls each of its hooks at all audit events, and id() alone makes thousands of them. So
    all watchers have one hook together.
    """
    if not HEARERS:
        sys.addaudithook(tell)
    for kind in kinds:
        HEARERS[kind].append(hear)


def tell(kind, args, hearers=HEARERS):
    """Call those who listen. While the interpreter shuts down, HEARERS may be deleted already.

    An argument stays.
    """
    for hear in hearers.get(kind, ()):
        hear(kind, args)


def before(observe):
    """For replace(): observe(*args) is called first, and the original in any case."""

    def around(original, *args, **kwargs):
        quietly(observe, *args, **kwargs)
        return original(*args, **kwargs)

    return around


def after(observe):
    """For replace(): observe(result, *args) is called after the original."""

    def around(original, *args, **kwargs):
        result = original(*args, **kwargs)
        quietly(observe, result, *args, **kwargs)
        return result

    return around
