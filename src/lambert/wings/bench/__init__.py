"""The speed of each kind of work, beside peers."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "bench",
        "Speed of each kind of work, share of this device's ceiling, memory, peers.",
        "wings.bench.verb:run",
        "wings.bench.settings:BenchConfig",
        place=120,
        less_memory="Lower sequences, length or size.",
        computes=True,  # in processes of its own (environments.py)
    ),
)
