"""Tensors, and states of random generators, as numbers that can be compared between ranks."""

import ctypes
import random
import sys
import zlib

import torch

# Views of a tensor's bits, by the size of its elements in bytes.
WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_plain(tensor):
    """Is this tensor whole, and not a part of one, as a DTensor is?"""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if tensor.is_meta or tensor.is_complex():
        return False
    return tensor.layout == torch.strided and tensor.numel() > 0


def fingerprint(tensor):
    """Equal for equal bits, and another after an exchange of two. It stays on the device."""
    row = tensor.detach().reshape(-1)
    bits = row.view(WHOLE_NUMBERS[row.element_size()])
    if len(bits) > 1_000_000:  # sums of columns first: one pass over it, and no memory
        whole = len(bits) // 1024 * 1024
        columns = bits[:whole].view(-1, 1024).sum(0, dtype=torch.int64)
        bits = torch.cat([columns, bits[whole:].long()])
    weights = torch.arange(1, 2 * len(bits), 2, device=bits.device)
    return (bits * weights).sum()


def random_states():
    """A number for the state of each random generator on the host: equal for equal states."""
    states = {"torch": checksum(torch.get_rng_state()), "random": hash(random.getstate()[1])}
    if "numpy" in sys.modules:
        # The numbers change once in 624 draws, and the position at each of them.
        _, numbers, position, *_ = sys.modules["numpy"].random.get_state()
        states["numpy"] = zlib.crc32(numbers.tobytes(), position)
    return states


def state_of(generator):
    """The same for a generator that the script has made, or None if it is on a GPU."""
    if isinstance(generator, random.Random):
        return hash(generator.getstate()[1])
    if isinstance(generator, torch.Generator):
        return checksum(generator.get_state()) if generator.device.type == "cpu" else None
    return zlib.crc32(str(generator.bit_generator.state).encode())  # of NumPy


def is_generator(value):
    if isinstance(value, (random.Random, torch.Generator)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.random.Generator)


def checksum(state):
    """Of a generator's state, a tensor of bytes on the CPU. Without NumPy it has no numpy()."""
    return zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel()))


def fingerprints(tensors):
    """A number per tensor, together in one tensor. -1 stands for one that cannot be compared."""
    tensors = list(tensors)
    devices = {tensor.device for tensor in tensors if is_plain(tensor)}
    if len(devices) != 1:
        return [-1] * len(tensors)
    # Not torch.tensor(-1, device=...): that copies a number from the host, and waits.
    none = torch.full((), -1, device=devices.pop())
    return torch.stack([fingerprint(one) if is_plain(one) else none for one in tensors])


def weighted_sums(gradients):
    """A number of each gradient: that of the mean of gradients is the mean of their numbers."""
    gradients = list(gradients)
    devices = {gradient.device for gradient in gradients if is_plain(gradient)}
    if len(devices) != 1:
        return [0.0] * len(gradients)
    none = torch.zeros((), dtype=torch.double, device=devices.pop())
    return torch.stack([weighted_sum(one) if is_plain(one) else none for one in gradients])


def weighted_sum(gradient):
    row = gradient.detach().reshape(-1)[:1000].double()
    weights = torch.arange(1.0, len(row) + 1, dtype=row.dtype, device=row.device)
    return row @ weights
