"""Each of Triton's kernels compiles for the GPUs that the README names, without spilled registers. With pytest -s, a
table of registers and shared memory."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from lambert.ops import kernels, update_kernels, updates  # noqa: E402

SIZES = {
    "QUADS": 256,
    "BLOCK": 128,
    "ROWS": 16,
    "HEADS": 8,
    "HALF": 32,
    "TABLES": 3,
    "ACTIVATION": "none",
    "PARTS": 256,
}
"""Constants of the kernels in base models; the others are true."""
FLOATS = ("weight_at", "bias_at", "mean_at", "rstd_at", "partial_at", "words_at", "places_at", "kinds_at", "cos_at",
          "sin_at", "loss_at", "log_sum_at", "scale_at", "corrections_at", "numbers_at", "steps_at", "norms_at",
          "ratios_at")  # fmt: skip
INDICES = ("table_at", "parts_at", "firsts_at", "key_at", "ids_at", "positions_at", "types_at", "labels_at")
NUMBERS = ("eps", "scale", "decay", "beta1", "beta2", "low", "high")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
LAUNCHED = ["add_norm", "norm_backward", "embed_norm", "gelu", "gelu_backward_", "column_sums", "gated",
            "gated_backward", "rotate_", "cross_entropy", "cross_entropy_backward_", "adamw", "lamb_steps",
            "trust_ratios", "lamb"]  # fmt: skip


def kind(name: str) -> str:
    """The type of an argument in training in bfloat16."""
    if name.isupper() and name not in ("T", "D", "F", "H", "E", "V"):
        return "constexpr"
    if name.endswith("_at"):
        return "*fp32" if name in FLOATS else "*i64" if name in INDICES else "*bf16"
    return "fp32" if name in NUMBERS else "i32"


@pytest.mark.parametrize("name", LAUNCHED)
@pytest.mark.parametrize("capability", [80, 90])
def test_it_compiles_without_spilling(name: str, capability: int, tmp_path: Path) -> None:
    kernel = getattr(kernels, name, None) or getattr(update_kernels, name)
    if not isinstance(kernel, JITFunction):
        pytest.skip("Triton interprets its kernels in this process")
    signature = {argument: kind(argument) for argument in kernel.arg_names}
    sizes = SIZES | ({"BLOCK": updates.BLOCK} if hasattr(update_kernels, name) else {})
    constants: dict[str, Any] = {one: sizes.get(one, True) for one, type_ in signature.items() if type_ == "constexpr"}
    found = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
    (tmp_path / "cubin").write_bytes(found.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    said = subprocess.run(
        [tool, "--dump-resource-usage", tmp_path / "cubin"], capture_output=True, text=True, check=True
    )
    registers, stack = (int(number) for number in re.findall(r"REG:(\d+) STACK:(\d+)", said.stdout)[0])
    print(f"\nsm_{capability} {name}: {registers} registers, {stack} bytes of stack, {found.metadata.shared} shared")
    assert stack == 0
    assert registers <= 128  # so that 4 programs of 4 warps fit a multiprocessor
