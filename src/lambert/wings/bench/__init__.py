"""The speed of each kind of work, beside peers."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "bench",
        "Measures the speed and the memory of each kind of work, also of other libraries.",
        "wings.bench.verb:run",
        "wings.bench.settings:BenchConfig",
        order=120,
        less_memory="Lower sequences, length or size.",
        computes=True,  # in processes of its own (environments.py)
    ),
)
