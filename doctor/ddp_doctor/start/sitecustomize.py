"""Python imports this when it starts, because this folder is on PYTHONPATH.

Some modules are watched right after their import. A sitecustomize.py of the environment runs, too.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class AfterImport:
    """Lets torch be imported as always, and calls install.install() after that."""

    def __init__(self):
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        """A library may only ask whether torch is installed, and import it later or never."""
        if name != "torch" or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            sys.meta_path.remove(self)
            execute(module)
            try:
                sys.path.append(ROOT)
                from ddp_doctor.watch import install

                install.install()
            except Exception as error:
                print("ddp_doctor: nothing can be watched:", repr(error), file=sys.stderr)
            finally:
                sys.path.remove(ROOT)

        spec.loader.exec_module = exec_module
        return spec


def is_torchrun():
    """torchrun never becomes a rank itself, and without the watchers it starts faster."""
    words = sys.orig_argv[1:]
    by_name = bool(words) and os.path.basename(words[0]) == "torchrun"
    return by_name or words[:2] == ["-m", "torch.distributed.run"]


def show_exception(kind, error, traceback, show=sys.excepthook):
    if kind.__name__ == "SignalException":  # torchrun was ended: where it was tells nothing
        traceback = None
        error = error.with_traceback(None)
    show(kind, error, traceback)


sys.excepthook = show_exception
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
if "RANK" in os.environ and not is_torchrun():
    sys.path.append(ROOT)
    try:
        from ddp_doctor.watch import early

        early.install()
    except Exception as error:
        print("ddp_doctor: nothing can be watched:", repr(error), file=sys.stderr)
    finally:
        sys.path.remove(ROOT)
if not is_torchrun():
    sys.meta_path.insert(0, AfterImport())
own = PathFinder.find_spec("sitecustomize")
if own is not None:
    module = importlib.util.module_from_spec(own)
    own.loader.exec_module(module)
