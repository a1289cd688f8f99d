"""Loads the compiled kernels for CPUs, the C++ code of this folder, which setup.py builds, with ctypes.

The kernels need AVX512-BF16, so the processor is checked before the library is loaded. Their matrix products use AMX
if the processor has it. On other machines, or without the library, torch's functions compute the same.

The kernels have their own threads (pool.cpp) and do not depend on torch: one library works with every version of Python
and torch. They are called with the addresses of contiguous tensors (`Tensor.data_ptr`), and ctypes releases the
interpreter lock during a call.
"""

import ctypes
import functools
import os
import platform
import sys
from pathlib import Path

_VERSION = 9
"""Version of the interface that this file declares. `lambert_version` of the library must return it."""
_FILE = Path(__file__).with_name("kernels.so")
_NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "fma"}
_REINSTALL = "Install a C++ compiler (apt-get install g++), then install Lambert again."

_TYPES = {
    "p": ctypes.c_void_p, "i": ctypes.c_int64, "u": ctypes.c_uint64, "f": ctypes.c_float, "v": None,
}  # fmt: skip
SIGNATURES = {
    "lambert_version": "i",
    "lambert_use_amx": "v i",
    "lambert_uses_amx": "i",
    "lambert_pack_weight": "v p i i i i p p i",
    "lambert_linear": "v p p p p p i i i i i",
    "lambert_pack_bytes": "v p i i i p p p i",
    "lambert_quantize": "v p i i p p i",
    "lambert_linear_bytes": "v p p p p p p p i i i i i",
    "lambert_linear_input": "v p p p p p i i i i i",
    "lambert_linear_weights": "v p p i i i p i i",
    "lambert_attention": "v p p p i p p u i i i p i i i i",
    "lambert_attention_backward": "v p p p i p p p p p p u i i i p i i i i",
    "lambert_add_norm": "v p p u i p p f i i i i p p p p",
    "lambert_add_norm_backward": "v p p p p p p u i i i i i p p p p",
    "lambert_rotate": "v p p p p i i i i i",
    "lambert_gated": "v p i i u i i i i p",
    "lambert_gated_backward": "v p p i i u i i i i p",
    "lambert_gelu_backward": "v p p i i i p",
    "lambert_embed_norm": "v p p p p p p u i p p f i i i p p p p",
    "lambert_embed_norm_backward": "v p p p p p u i i i i p p p",
    "lambert_add_rows": "v p p i i i p",
    "lambert_cross_entropy": "v p p i i i p p p",
    "lambert_cross_entropy_backward": "v p p p p p i i i",
    "lambert_take_rows": "v p p i i i p",
    "lambert_put_rows": "v p p i i i i p",
    "lambert_tanh": "v p i i p",
    "lambert_tanh_backward": "v p p i i p",
    "lambert_zero": "v p i",
    "lambert_copy": "v p p i",
    "lambert_add": "v p p i",
    "lambert_run": "v p i",
    "lambert_update": "v p i p i p i",
    "lambert_norms": "v p p i p i",
}
"""The types of each function: of its result, then of its arguments. p: an address, i: int64, u: uint64, f: float,
v: no result."""


def library() -> ctypes.CDLL | None:
    """Returns the kernels, or None if torch's functions are used instead (`reason`).

    For comparisons, the environment variable LAMBERT_NATIVE=0 switches the kernels off, and LAMBERT_NATIVE=avx512
    switches AMX off.
    """
    return None if _is_off() else _find()[0]


def reason() -> str:
    """Returns why `library` returns None; empty if the kernels are used."""
    return "LAMBERT_NATIVE=0 is set" if _is_off() else _find()[1]


def advice() -> str:
    """Returns how to enable the kernels; empty if they are used, or if the machine does not support them."""
    return "" if _is_off() else _find()[2]


def instructions() -> str:
    """Returns the instructions of the kernels' matrix products; empty if the kernels are not used."""
    kernels = library()
    if kernels is None:
        return ""
    return "AMX" if kernels.lambert_uses_amx() else "AVX512-BF16"


def _is_off() -> bool:
    return os.environ.get("LAMBERT_NATIVE") == "0"


@functools.cache
def _find() -> tuple[ctypes.CDLL | None, str, str]:
    """Returns the library or None, the reason if it is None, and advice."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None, "the compiled ones are for Linux on x86-64", ""
    found = _processor()
    if not found >= _NEEDED:
        return None, "the processor has no AVX512-BF16", ""
    if not _FILE.is_file():
        return None, "the compiled ones were not built when Lambert was installed", _REINSTALL
    try:
        kernels = ctypes.CDLL(str(_FILE))
        _declare(kernels)
    except (OSError, AttributeError) as error:
        return None, f"the compiled ones cannot be loaded ({error})", _REINSTALL
    if kernels.lambert_version() != _VERSION:
        return None, "the compiled ones are of another version of Lambert", _REINSTALL
    kernels.lambert_use_amx(os.environ.get("LAMBERT_NATIVE") != "avx512")
    return kernels, "", ""


def _processor() -> set[str]:
    """Returns the names of the instruction sets of the first processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return set(next((line for line in lines if line.startswith("flags")), "").split())
    except OSError:
        return set()


def _declare(kernels: ctypes.CDLL) -> None:
    for name, types in SIGNATURES.items():
        result, *arguments = types.split()
        function = getattr(kernels, name)
        function.restype, function.argtypes = _TYPES[result], [_TYPES[letter] for letter in arguments]
