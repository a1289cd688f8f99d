"""Which back-end computes on a device."""

import os
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from lambert.native import library
from lambert.ops import native
from lambert.ops.reference import Ops


def choose(tensor: Tensor) -> Ops | None:
    """Returns the back-end for products of this tensor; None: torch's own functions with autograd.

    A back-end computes in bfloat16, so None is returned unless autocast to bfloat16 is enabled on the tensor's device.
    """
    if torch.compiler.is_compiling():  # first, as a graph cannot contain the rest
        return None
    if not in_bfloat16(tensor.device.type):
        return None
    return of_device(tensor.device)


def in_bfloat16(device_type: str) -> bool:
    """Returns whether autocast to bfloat16 is enabled on devices of this type."""
    return torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) == torch.bfloat16


def of_device(device: torch.device) -> Ops | None:
    """Returns the back-end of a device, or None if it has none.

    On CPUs these are the compiled kernels. On GPUs these are Triton's kernels, if the environment variable
    LAMBERT_TRITON=1 switches them on: their speed was not measured yet.
    """
    if device.type == "cpu":
        return native.OPS if library() is not None else None
    if device.type == "cuda" and os.environ.get("LAMBERT_TRITON") == "1":
        return _of_gpu(device)[0]
    return None


def find_updates(device: torch.device) -> ModuleType | None:
    """Returns the module whose kernels take the steps of optimizers on a GPU, `ops/updates.py`, or None as for
    `of_device`. On CPUs, steps are taken by `ops/native.py`."""
    if device.type != "cuda" or of_device(device) is None:
        return None
    from lambert.ops import updates

    return updates


def triton_problem(device: torch.device) -> str:
    """Returns why LAMBERT_TRITON=1 has no effect on this device; empty if it has, or is not set."""
    if os.environ.get("LAMBERT_TRITON") != "1":
        return ""
    return _of_gpu(device)[1] if device.type == "cuda" else "the device is no GPU"


@cache
def _of_gpu(device: torch.device) -> tuple[Ops | None, str]:
    """Returns Triton's kernels, or None and the reason."""
    major = torch.cuda.get_device_properties(device).major
    if major < 8:
        return None, f"they need a GPU of compute capability 8.0 or more, and this one has {major}"
    try:
        from lambert.ops.cuda import CudaOps
    except ImportError as error:
        return None, f"Triton cannot be imported ({error})"
    return CudaOps(), ""
