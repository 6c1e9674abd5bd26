"""Lines and files of the reader's code, and which of them led to a watched call."""

import ast
import functools
import gc
import os
import sys
import sysconfig
from itertools import islice
from pathlib import Path
from traceback import walk_stack

import torch

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the package
TORCH = os.path.dirname(torch.__file__)
LIBRARY = ("<", HERE, TORCH, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
LARGEST = 1_000_000  # bytes: a larger file is no script, and no settings


@functools.cache
def is_script(filename):
    """Is this one of the reader's files, and not the standard library's or a package's?"""
    if filename.startswith(LIBRARY) or "-packages" in filename:
        return False
    return not filename.endswith(("/torchrun", "/accelerate"))


@functools.cache
def shown(filename):
    path = os.path.relpath(filename)
    return filename if path.startswith("../..") else path


def script_frames():
    """The frames of the reader's files that led here, the innermost first.

    It runs several times in each step. walk_stack() would look up the line of each frame.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def line_of(frame):
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def function_of(frame):
    code = frame.f_code
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


def here():
    for frame in script_frames():
        return line_of(frame)
    return "?"


def callers(most=4):
    """The lines that led to the innermost one, the nearest first."""
    frames = [*islice(script_frames(), most)]
    return [line_of(frame) for frame in frames[1:]]


def maker_of(thing):
    """The line that constructs this object. The constructor of a subclass only passes it on."""
    for frame in script_frames():
        code = frame.f_code
        is_own = code.co_name == "__init__" and code.co_argcount > 0
        if not is_own or frame.f_locals.get(code.co_varnames[0]) is not thing:
            return line_of(frame)
    return ""


def outside(models):
    """The nearest line that is not in a method of these models: a method only passes a call on."""
    for frame in script_frames():
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if not isinstance(first, torch.nn.Module) or first not in models:
            return line_of(frame)
    return here()


def is_made_by_library(thing):
    """Does a package construct this object, and not a line of the reader? PyTorch passes it on."""
    for frame, _ in walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_filename.startswith((HERE, TORCH)):
            continue
        is_own = code.co_name == "__init__" and code.co_argcount > 0
        if not is_own or frame.f_locals.get(code.co_varnames[0]) is not thing:
            return not is_script(code.co_filename)
    return False


def script_files():
    """The files of the script's own modules that have been imported by now."""
    names = []
    for module in [*sys.modules.values()]:
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and is_script(name):
            names.append(name)
    return names


def text_of(path):
    """The text of a file. It is empty if there is none, or if it is too large for a script."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size > LARGEST:
        return ""
    return file.read_text(errors="replace")


def tree_of(path):
    """The syntax tree of a file. It is empty if the file cannot be read, or is no Python."""
    try:
        return ast.parse(text_of(path))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def without_collection(read):
    """For a function that reads a syntax tree and does not keep it.

    A tree has thousands of objects. If they lived through a garbage collection, Python would sooner
    look through all objects of the process, which takes more than 0.1 s after `import torch`.
    """

    @functools.wraps(read)
    def reader(*args):
        collects = gc.isenabled()
        gc.disable()
        try:
            return read(*args)
        finally:
            if collects:
                gc.enable()

    return reader
