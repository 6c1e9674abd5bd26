"""docs/failures/nccl_timeout.md: its variables and messages are those of the installed libraries.

A build for CPUs has neither NCCL nor libtorch_cuda.so. What needs them is skipped there.
"""

import importlib.util
import mmap
import re
from pathlib import Path

import pytest
import torch
from conftest import ROOT

PAGE = (ROOT / "docs/failures/nccl_timeout.md").read_text()
VARIABLES = sorted(set(re.findall(r"\b(?:TORCH_NCCL|TORCH_FR|NCCL)_[A-Z_]+[A-Z]\b", PAGE)))
TORCH_SAYS = [
    "Watchdog caught collective operation timeout: ",
    " failure detected by watchdog at work sequence id: ",
    " PG status: last enqueued work: ",
    "Stack trace of the failed collective: ",
    "Observed flight recorder dump signal from another rank via TCPStore.",
    "Received a dump signal due to a collective timeout from ",
    "Last enqueued NCCL work: ",
    "ProcessGroupNCCL's watchdog got stuck for ",
    "Could not acquire GIL within 300 ms on exit, possible GIL induced hang",
    "Terminating the process after attempting to dump debug info, due to ",
    "Process group watchdog thread terminated with exception: ",
    "the lagging/dead/mismatched ranks that caused the desync are:",
]
NCCL_SAYS = [
    "Got completion from peer ",
    "IBV_WC_RETRY_EXC_ERR",
    "Bootstrap: Using",
    "NET/IB : Using",
    "NET/IB : No device found.",
    "NET/Socket : Using",
    "/GDRDMA",
    "via SHM/direct",
    "via P2P/IPC",
    "Connected all rings, use ring PXN ",
    " - Init COMPLETE",
    "Got non-fatal async event: ",
    "verbose status",
    "Missing communicator data from ",
    "considered dead (unreachable via the RAS network)",
    "has launched up to operation ",
]


def nccl():
    """The library that the wheel of PyTorch depends on, or None."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        for library in Path(folder).glob("nccl/lib/libnccl.so*"):
            return library
    return None


def has(library, text):
    """Do the bytes of a library contain this text?"""
    if library is None or not library.exists():
        pytest.skip("this build of PyTorch has no NCCL")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text.encode()) >= 0


def torch_library(name):
    return Path(torch.__file__).parent / "lib" / name


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_is_one_that_the_libraries_read(name):
    if name.startswith("NCCL_"):
        library = nccl()
    elif name.startswith("TORCH_FR_") or name.endswith("_TEMP_FILE"):
        library = torch_library("libtorch_cpu.so")
    else:
        library = torch_library("libtorch_cuda.so")
    assert has(library, name)


@pytest.mark.parametrize("text", TORCH_SAYS)
def test_a_message_is_one_that_this_torch_prints(text):
    assert text.strip() in re.sub(r"\s+", " ", PAGE)
    assert has(torch_library("libtorch_cuda.so"), text)


@pytest.mark.parametrize("text", NCCL_SAYS)
def test_a_message_is_one_that_this_nccl_prints(text):
    assert text.strip() in re.sub(r"\s+", " ", PAGE)
    assert has(nccl(), text)
