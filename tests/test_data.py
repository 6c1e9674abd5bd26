"""MNIST is downloaded once and only once, by however many ranks; synthetic digits are drawn."""

import contextlib
import gzip
import hashlib
import http.server
import importlib
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from conftest import NO_NETWORK, record_of
from ranks import torchrun
from torchvision import datasets

from tools import draw_digits

stage1 = importlib.import_module("01_baseline.train")
DRAW = "tools/draw_digits.py"
FILES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]


@pytest.fixture
def mirror(small_data, tmp_path_factory):
    """A mirror of the small data on this machine, and how often each node requested each file."""
    served = tmp_path_factory.mktemp("mirror")
    resources, requests = [], Counter()
    for file in FILES:
        packed = gzip.compress((small_data / "MNIST" / "raw" / f"{file}-ubyte").read_bytes())
        (served / f"{file}-ubyte.gz").write_bytes(packed)
        resources.append((f"{file}-ubyte.gz", hashlib.md5(packed).hexdigest()))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=served)

        def do_GET(self):
            node, _, file = self.path.strip("/").rpartition("/")
            if self.headers["Method"] != "HEAD":  # with which torchvision looks for redirections
                requests[node, file] += 1
            self.path = f"/{file}"
            super().do_GET()

        def copyfile(self, source, outputfile):
            with contextlib.suppress(ConnectionError):  # it hangs up on what it only looked at
                super().copyfile(source, outputfile)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # A sitecustomize.py on PYTHONPATH runs first thing in every Python process of a stage.
    address = f"http://127.0.0.1:{server.server_port}"
    found_at = {"mirrors": [f"{address}/"], "resources": resources}
    code = f"""
import os
from torchvision.datasets import MNIST
MNIST.mirrors, MNIST.resources = ["{address}/" + os.getenv("NODE", "") + "/"], {resources}
"""
    (served / "sitecustomize.py").write_text(code)
    settings = {"PYTHONPATH": str(served), "no_proxy": "127.0.0.1"}
    yield SimpleNamespace(folder=served, settings=settings, requests=requests, found_at=found_at)
    server.shutdown()
    server.server_close()


@pytest.fixture
def mirrored(mirror, monkeypatch):
    """This process, too, downloads from the mirror."""
    for name, value in mirror.found_at.items():
        monkeypatch.setattr(datasets.MNIST, name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return mirror


def test_downloaded_once_and_then_found(mirrored, reader):
    requests = mirrored.requests
    stage1.download_mnist(reader.folder / "fetched")
    assert len(requests) == 4 and set(requests.values()) == {1}, requests
    requests.clear()
    stage1.download_mnist(reader.folder / "fetched")
    assert not requests


def disks(reader, mirror):
    """The variables of two nodes that download to disks of their own."""
    found = []
    for node in "01":
        own = {"NODE": node, "MNIST_ROOT": str(reader.folder / f"disk{node}")}
        found.append({**mirror.settings, "CUDA_VISIBLE_DEVICES": "", **own})
    return found


def test_each_node_downloads_once(reader, mirror):
    result = torchrun(reader, 2, "04_ddp_torchrun/minimal.py", nodes=disks(reader, mirror))
    assert len(mirror.requests) == 8 and set(mirror.requests.values()) == {1}, mirror.requests
    assert result.code == 0, result


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["04_ddp_torchrun", "05_multinode"])
def test_each_node_under_torchrun_downloads_once(reader, mirror, stage):
    nodes = disks(reader, mirror)
    result = reader.finish_all(reader.start_nodes(f"{stage}/train.py -e 1", 2, nodes))
    assert len(mirror.requests) == 8 and set(mirror.requests.values()) == {1}, mirror.requests
    assert result.code == 0, result


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["04_ddp_torchrun", "05_multinode"])
def test_a_node_that_cannot_download_ends_both(reader, stage):
    """The node that has the data waits for the other one, but not longer than --timeout."""
    nodes = [{"MNIST_ROOT": reader.env["MNIST_ROOT"]}, {"MNIST_ROOT": str(reader.folder / "none")}]
    for node in nodes:
        node.update(NO_NETWORK, CUDA_VISIBLE_DEVICES="", no_proxy="127.0.0.1")
    script = f"{stage}/train.py --timeout 20"
    result = reader.finish_all(reader.start_nodes(script, 2, nodes), timeout=150)
    assert result.code != 0 and result.out == "", result
    said = f"MNIST cannot be read from the folder {reader.folder / 'none'} or downloaded: "
    assert said in result.err, result


def test_a_download_that_breaks_is_named(mirrored, called):
    (mirrored.folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"broken on its way")
    result = called("01_baseline/train.py", "--data fetched")
    assert result.code == 1 and "Traceback" not in result.err, result
    said = [line for line in result.err.splitlines() if line.startswith("MNIST cannot be read ")]
    assert len(said) == 1 and "from the folder fetched or downloaded: " in said[0], result


# ---------------------------------------------------------------- synthetic digits


def raw_bytes(folder):
    return {path.name: path.read_bytes() for path in (folder / "MNIST" / "raw").iterdir()}


def test_drawn_digits_come_from_their_seed(called, tmp_path):
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        assert called(DRAW, f"{tmp_path / name} --train 50 --test 20 --seed {seed}").code == 0
    assert raw_bytes(tmp_path / "a") == raw_bytes(tmp_path / "b") != raw_bytes(tmp_path / "c")
    assert sorted(raw_bytes(tmp_path / "a")) == sorted(f"{file}-ubyte" for file in FILES)
    train_set, test_set = stage1.load_mnist(tmp_path / "a")
    assert (len(train_set), len(test_set)) == (50, 20)
    images, _ = train_set.tensors
    assert images.float().mean() > 10 and images.max() > 200


def test_a_folder_says_that_its_digits_are_synthetic(called, reader):
    """The stages and compare.py look for this file. Digits that were drawn before may lack it."""
    said = reader.folder / "drawn/NOT_MNIST.txt"
    assert called(DRAW, "drawn --train 50 --test 20").code == 0
    text = said.read_text()
    assert "tools/draw_digits.py" in text and "not MNIST" in text
    assert called("01_baseline/train.py", "--data drawn -e 1 -b 10 --device cpu").code == 0
    assert record_of(reader.folder)["dataset"] == "synthetic digits"
    said.unlink()
    before = raw_bytes(reader.folder / "drawn")
    assert called(DRAW, "drawn --if-missing").code == 0
    assert said.read_text() == text and raw_bytes(reader.folder / "drawn") == before


def test_existing_data_are_never_overwritten(called, small_data):
    before = raw_bytes(small_data)
    result = called(DRAW, str(small_data))
    assert result.code == 2 and "there already" in result.err
    assert raw_bytes(small_data) == before


def test_digits_that_are_interrupted_leave_no_file(tmp_path, monkeypatch):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)  # as a download that failed leaves it
    write_idx = draw_digits.write_idx

    def interrupted(path, values):
        write_idx(path, values)
        if "t10k" in path.name:
            raise KeyboardInterrupt

    monkeypatch.setattr(draw_digits, "write_idx", interrupted)
    with pytest.raises(KeyboardInterrupt):
        draw_digits.draw_data_set(raw, 20, 20)
    assert list(raw.parent.iterdir()) == [raw] and not list(raw.iterdir())
    monkeypatch.setattr(draw_digits, "write_idx", write_idx)
    draw_digits.draw_data_set(raw, 20, 20)
    assert len(list(raw.iterdir())) == 4 and list(raw.parent.iterdir()) == [raw]
