"""How far states and gradients in bfloat16 are from those in float32, for each family.

    python -m benchmarks.precision.families [--layers 12] [--hidden 768] [--factor 2]

"kernels" are the compiled kernels, whose states between blocks are bfloat16, "autocast" is torch's, whose residual
states are float32 where norms are before the layers. Prints a line of JSON for each family: relative L2 distances of
the states after the last block, and of all gradients together, of a weighted sum of these states. Weights are fresh and
multiplied by `--factor`, since those of trained models are larger. 8 sequences of 128 random tokens, no dropout.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

FORMS = {"kernels": {}, "autocast": {"LAMBERT_NATIVE": "0"}}


def measure(family: str, layers: int, hidden: int, factor: float) -> dict[str, float]:
    """The distances in this process, of the form that its environment chooses."""
    import numpy as np
    import torch

    from lambert.core.batch import Batch
    from lambert.measure.batches import draw_batch
    from lambert.model import weights
    from lambert.model.config import EncoderConfig
    from lambert.model.families import reads_segments

    config = EncoderConfig(
        layers=layers, hidden=hidden, heads=hidden // 64, intermediate=4 * hidden, vocabulary=30_522, positions=514,
        dropout=0.0, attention_dropout=0.0, block=family,
    )  # fmt: skip
    if not reads_segments(config):
        config = replace(config, segment_types=1 if family in ("gte", "roberta") else 0)
    model = weights.draw(config, {"span": 0}, seed=1).train()
    for parameter in model.parameters():
        parameter.data *= factor if parameter.ndim > 1 else 1
    batch: Batch = draw_batch(config, np.array([128] * 8), 0, ())

    def run(*, bfloat16: bool) -> Any:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            states_TD = model.encoder(batch).float()
        slope_TD = torch.randn(states_TD.shape, generator=torch.Generator().manual_seed(1))
        (states_TD * slope_TD).sum().backward()
        grads = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        return states_TD.detach(), torch.cat(grads).double()

    exact, found = run(bfloat16=False), run(bfloat16=True)
    names = ("states", "gradients")
    return {
        name: float((one - other).norm() / other.norm()) for name, one, other in zip(names, found, exact, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = options.layers, options.hidden, options.factor
    if options.measure:
        print(json.dumps(measure(options.measure, *shape)))
        return
    from lambert.model.families import FAMILIES

    for family in options.families or FAMILIES:
        row: dict[str, Any] = {"family": family, "layers": shape[0], "hidden": shape[1], "factor": shape[2]}
        for form, environment in FORMS.items():
            command = [sys.executable, __file__, "--measure", family, f"--layers={shape[0]}", f"--hidden={shape[1]}"]
            done = subprocess.run(
                [*command, f"--factor={shape[2]}"],
                env=os.environ | environment,
                check=True,
                capture_output=True,
                text=True,
            )
            row[form] = {name: round(value, 6) for name, value in json.loads(done.stdout).items()}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
