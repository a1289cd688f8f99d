"""The cost model: seconds of an update over the bandwidth of the link, from what calibrate.py measured without a limit.

    python benchmarks/network/model.py --calibration calibration.json [--rates none 1gbit 100mbit]

Computing and sending are two resources of a rank. The backward pass makes buckets ready, each at its time; a thread
sends them one after the other, in order:

    start(b) = max(ready(b), end(b - 1))        end(b) = start(b) + work(b) + max(byte * sent(b), sent(b) / bandwidth)

`sent` is what a rank puts on the wire for the bucket, `byte` what each byte costs the processor on its way through the
kernel, and `work` what the method computes besides (its time on the unlimited link, less that of its bytes). A rank has
one core, which thread and backward pass share evenly: as long as both have something to compute, each holds the other
up. The update ends when the last bucket is there and the optimizer has run; a few small collectives come on top. The
bandwidth is the link's, less the headers.

What no schedule can hide is what is ready only when the pass ends: here the token table, tied to the decoder. The
bound is the largest share of the exchange that can lie within the backward pass, were computing for it free.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baseline import CYCLE_SECONDS, FUSION_BYTES
from lab import bits_per_second

PAYLOAD = 1448 / 1514
"""Share of a full Ethernet frame of 1,500 bytes that TCP with time stamps leaves for data: its header and IP's take 52
bytes and Ethernet's 14, which the token bucket counts too."""

AGREEMENTS = 3
"""Small collectives of an update besides its gradients: targets, losses, and whether to stop."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one update."""

    seconds: float
    exchange: float
    """Seconds that its exchange takes with nothing else under way."""
    computing: float
    """Seconds without any exchange."""

    @property
    def hidden(self) -> float:
        """Share of the exchange that costs the update no time."""
        return 1 - (self.seconds - self.computing) / self.exchange if self.exchange else 1.0


class Timeline:
    """The backward pass of a calibration, and what the thread that exchanges does meanwhile."""

    def __init__(self, calibration: Mapping[str, Any], rate: float, *, free: bool = False) -> None:
        """`rate` in bits a second; `free`: computing for the exchange does not hold the pass up."""
        self._calibration, self._free = calibration, free
        self._byte: float = calibration["byte"]
        self._wire = 8 / (rate * PAYLOAD)
        self._held = 0.0  # what the backward pass was held up
        self.now = self.spent = 0.0

    @property
    def end(self) -> float:
        """Of the backward pass."""
        return float(self._calibration["backward"]) + self._held

    def wait(self, ready: float) -> None:
        """Until the backward pass, undisturbed, would have got to `ready`."""
        self.now = max(self.now, ready + self._held)

    def send(self, work: float, sent: float) -> None:
        """Computes for `work` seconds and sends so many bytes."""
        passing = self._byte * sent
        computed = work + passing
        shared = 0.0 if self._free else min(computed, max(0.0, self.end - self.now))
        self._held += shared
        alone = work + max(passing, self._wire * sent)
        self.now += max(computed + shared, alone)
        self.spent += alone

    def prediction(self, repeats: float = 1.0) -> Prediction:
        """With the exchange made in every `1 / repeats`-th update."""
        found = self._calibration
        computing = found["forward"] + found["backward"] + found["after"] + AGREEMENTS * found["agreement"]
        longer = max(self.now, self.end) - found["backward"]
        return Prediction(computing + repeats * longer, repeats * self.spent, computing)


def predict(calibration: Mapping[str, Any], method: str, rate: float, *, free: bool = False) -> Prediction:
    """An update by a method of the study on a link of `rate` bits a second."""
    timeline = Timeline(calibration, rate, free=free)
    if method.startswith("horovod"):
        _horovod(timeline, calibration, half=method.endswith("fp16"))
        return timeline.prediction()
    local = int(method.removeprefix("local-")) if method.startswith("local-") else 1
    costs = calibration["methods"]["float32" if local > 1 else method]
    byte = calibration["byte"]
    for (low, high), seconds, sent in zip(calibration["buckets"], costs["seconds"], costs["bytes"], strict=True):
        ready = max(entry["ready"] for entry in calibration["parameters"][low:high])
        timeline.wait(calibration["backward"] if local > 1 else ready)
        timeline.send(max(0.0, seconds - byte * sent), sent)
    return timeline.prediction(1 / local)


def bound(calibration: Mapping[str, Any], method: str, rate: float) -> float:
    """The largest share of the exchange that the graph lets the backward pass hide."""
    return predict(calibration, method, rate, free=True).hidden


def _horovod(timeline: Timeline, calibration: Mapping[str, Any], *, half: bool) -> None:
    """In every cycle what is ready by then, fused."""
    left = {place: entry["ready"] for place, entry in enumerate(calibration["parameters"])}
    copy, ranks = calibration["copy"], calibration["ranks"]
    while left:
        timeline.wait(min(left.values()))
        places = [place for place, ready in left.items() if ready <= timeline.now]
        timeline.send(calibration["agreement"], 0.0)
        for fused in _fused([(place, calibration["parameters"][place]["bytes"]) for place in places], half=half):
            size = sum(calibration["parameters"][place]["bytes"] for place in fused)
            copies = (2 if len(fused) > 1 else 0) + (2 if half else 0)
            timeline.send(copies * copy * size, 2 * (ranks - 1) / ranks * size / (2 if half else 1))
            for place in fused:
                del left[place]
        timeline.now += 0.0 if places else CYCLE_SECONDS


def _fused(sizes: list[tuple[int, int]], *, half: bool) -> Iterator[list[int]]:
    fused: list[int] = []
    total = 0
    for place, size in sizes:
        if fused and total + size > FUSION_BYTES * (2 if half else 1):
            yield fused
            fused, total = [], 0
        fused.append(place)
        total += size
    if fused:
        yield fused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--rates", nargs="+", default=["none", "10gbit", "1gbit", "100mbit", "10mbit"])
    args = parser.parse_args()
    calibration = json.loads(args.calibration.read_text(encoding="utf-8"))
    for method in ["horovod", "horovod-fp16", *calibration["methods"], "local-8"]:
        for rate in args.rates:
            found = predict(calibration, method, bits_per_second(rate))
            row = {
                "work": "prediction",
                "method": method,
                "rate": rate,
                "seconds": round(found.seconds, 4),
                "sequences_per_second": round(calibration["batch_size"] / found.seconds, 2),
                "exchange": round(found.exchange, 4),
                "hidden": round(found.hidden, 3),
                "hidden_at_most": round(bound(calibration, method, bits_per_second(rate)), 3),
            }
            print(json.dumps(row))


if __name__ == "__main__":
    main()
