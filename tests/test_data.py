"""MNIST is downloaded once and only once, by however many ranks; the stand-in is drawn."""

import contextlib
import gzip
import hashlib
import http.server
import importlib
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch
from conftest import ROOT

FILES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]


@pytest.fixture
def mirror(small_data, tmp_path_factory):
    """A mirror of the small data on this machine -> settings for a stage, requests by file."""
    served = tmp_path_factory.mktemp("mirror")
    resources, requests = [], Counter()
    for file in FILES:
        packed = gzip.compress((small_data / "MNIST" / "raw" / f"{file}-ubyte").read_bytes())
        (served / f"{file}-ubyte.gz").write_bytes(packed)
        resources.append((f"{file}-ubyte.gz", hashlib.md5(packed).hexdigest()))

    class Handler(http.server.SimpleHTTPRequestHandler):
        delay = 0.0  # seconds, for a slow network

        def __init__(self, *args):
            super().__init__(*args, directory=served)

        def do_GET(self):
            time.sleep(Handler.delay)
            if self.headers["Method"] != "HEAD":  # with which torchvision looks for redirections
                requests[self.path.strip("/")] += 1
            super().do_GET()

        def copyfile(self, source, outputfile):
            with contextlib.suppress(ConnectionError):  # it hangs up on what it only looked at
                super().copyfile(source, outputfile)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # A sitecustomize.py on PYTHONPATH runs first thing in every Python process of a stage.
    code = "from torchvision.datasets import MNIST\n"
    code += f"MNIST.mirrors = ['http://127.0.0.1:{server.server_port}/']\n"
    code += f"MNIST.resources = {resources}\n"
    (served / "sitecustomize.py").write_text(code)
    yield {"PYTHONPATH": str(served), "no_proxy": "127.0.0.1"}, requests, Handler
    server.shutdown()
    server.server_close()


# One process, and several on several nodes.


@pytest.mark.parametrize(
    "stage", ["01_baseline", pytest.param("05_multinode", marks=pytest.mark.slow)]
)
def test_downloaded_once_and_only_once(reader, mirror, stage):
    settings, requests, _ = mirror
    result = reader.stage(stage, "-e 1 -b 24 --device cpu --data fetched", ranks=4, **settings)
    assert result.code == 0, result
    assert len(requests) == 4 and set(requests.values()) == {1}, requests
    requests.clear()
    again = reader.stage(stage, "-e 1 -b 24 --device cpu --data fetched", ranks=4, **settings)
    assert again.code == 0 and not requests, "the second run finds it there"


@pytest.mark.parametrize(
    "stage", ["04_ddp_torchrun", pytest.param("05_multinode", marks=pytest.mark.slow)]
)
def test_a_download_may_take_longer_than_the_timeout(reader, mirror, stage):
    settings, requests, handler = mirror
    handler.delay = 1.0  # for each request, and torchvision makes two for each of four files
    result = reader.stage(stage, "-e 1 -b 24 --device cpu --data fetched --timeout 3", **settings)
    assert result.code == 0, result
    assert len(requests) == 4


def test_a_download_that_breaks_is_one_line(reader, mirror):
    settings, _, _ = mirror
    served = settings["PYTHONPATH"]
    (ROOT / served / "t10k-labels-idx1-ubyte.gz").write_bytes(b"broken on its way")
    result = reader.stage("01_baseline", "--data fetched", **settings)
    assert result.code == 2, result
    errors = [line for line in result.err.splitlines() if line.startswith("01_baseline: ")]
    assert len(errors) == 1 and "--data fetched: no MNIST (" in errors[0], result


def test_one_batch_is_one_indexing(small_data):
    stage = importlib.import_module("01_baseline.train")
    train_set, _ = stage.load_mnist(small_data)
    images, labels = train_set.__getitems__([3, 1, 4])
    assert images.dtype == torch.uint8 and images.shape == (3, 28, 28)
    assert torch.equal(images[2], train_set.data[4]) and labels[0] == train_set.targets[3]
    x, y = stage.to_device(images, labels, torch.device("cpu"))
    assert x.shape == (3, 1, 28, 28) and x.dtype == torch.float32 and 0.9 < x.max() <= 1
    assert torch.equal(y, labels)


# ---------------------------------------------------------------- the stand-in


def draw(*flags):
    command = [sys.executable, ROOT / "tools/draw_digits.py", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def raw_bytes(folder):
    return {path.name: path.read_bytes() for path in (folder / "MNIST" / "raw").iterdir()}


def test_drawn_digits_come_from_their_seed(tmp_path):
    small = ("--train", "50", "--test", "20")
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert draw(tmp_path / name, *small, "--seed", seed).returncode == 0
    assert raw_bytes(tmp_path / "a") == raw_bytes(tmp_path / "b") != raw_bytes(tmp_path / "c")
    assert sorted(raw_bytes(tmp_path / "a")) == sorted(f"{file}-ubyte" for file in FILES)
    stage = importlib.import_module("01_baseline.train")
    train_set, test_set = stage.load_mnist(tmp_path / "a")
    assert (len(train_set), len(test_set)) == (50, 20)
    assert train_set.data.float().mean() > 10 and train_set.data.max() > 200


def test_every_digit_is_drawn_in_every_font():
    sys.path.insert(0, str(ROOT / "tools"))
    import draw_digits

    glyphs = draw_digits.render_glyphs(draw_digits.find_fonts())
    assert len(glyphs) >= 15
    assert (glyphs.amax((2, 3)) > 0.9).all(), "a font lacks a digit"
    ink = glyphs.flatten(2)
    assert (torch.cdist(ink, ink) + 100 * torch.eye(10) > 1).all(), "two digits look the same"


def test_existing_data_are_never_overwritten(small_data):
    before = raw_bytes(small_data)
    result = draw(small_data)
    assert result.returncode == 2 and "there already" in result.stderr
    assert raw_bytes(small_data) == before


@pytest.mark.parametrize("flags", [("--train", "0"), ("--test", "-1"), ("--seed", "x")])
def test_bad_flags_draw_nothing(tmp_path, flags):
    result = draw(tmp_path / "new", *flags)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    result = draw(tmp_path / "file" / "drawn", "--train", "10", "--test", "10")
    assert result.returncode == 2 and "cannot write to" in result.stderr
    assert "Traceback" not in result.stderr
