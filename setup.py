"""Builds the compiled kernels for CPUs, if there is a C++ compiler. All other settings are in pyproject.toml."""

import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/lambert/native")
FLAGS = "-O3 -g0 -std=c++17 -pthread -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni -mfma"
QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
"""Before version 13, GCC warns of its own header at each call of many intrinsics (its bug 105593)."""


class BuildLibrary(build_ext):
    """Builds a library for ctypes, which has no name of a Python version in its file name."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class Wheel(bdist_wheel):
    """Names a wheel that fits every Python, because the library does not depend on Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


# The kernels use instructions of x86-64 only. Other machines get a wheel without them.
supported = sys.platform == "linux" and platform.machine() == "x86_64"
library = Extension(
    "lambert.native.kernels",
    sources=sorted(map(str, FOLDER.glob("*.cpp"))),
    depends=sorted(map(str, FOLDER.glob("*.h"))),
    extra_compile_args=[*FLAGS.split(), *QUIET],
    extra_link_args=["-pthread"],  # a library of its own before glibc 2.34
    language="c++",
    optional=True,  # without a compiler, Lambert runs with torch's own kernels
)
setup(ext_modules=[library] if supported else [], cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel})
