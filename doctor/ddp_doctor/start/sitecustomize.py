"""Python imports this when it starts, because its folder is on PYTHONPATH.

It lets torch be imported as always and installs the watchers right after that. A sitecustomize.py
of the environment runs, too.
"""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(HERE)
WATCHER = os.environ.get("DDP_DOCTOR_WATCHER", "watch")


def load(name, path, folders=None):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = watched(spec.loader.exec_module)
        return spec


def watched(run):
    def exec_module(module):
        run(module)
        try:
            load("ddp_doctor", os.path.join(PACKAGE, "__init__.py"), [PACKAGE])
            importlib.import_module(f"ddp_doctor.{WATCHER}").install()
        except Exception as error:
            print("ddp-doctor: nothing can be watched here:", repr(error), file=sys.stderr)

    return exec_module


if "DDP_DOCTOR_COPY" in os.environ:
    load("ddp_doctor", os.path.join(PACKAGE, "__init__.py"), [PACKAGE])
    importlib.import_module("ddp_doctor.twin").go_on()
sys.path[:] = [path for path in sys.path if path != HERE]
sys.meta_path.insert(0, Finder())
own = importlib.machinery.PathFinder.find_spec("sitecustomize")
if own is not None:
    load("sitecustomize", own.origin)
