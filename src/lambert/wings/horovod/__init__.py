"""Horovod's API on `torch.distributed`, and its launcher. Users import `lambert.horovod`."""

from lambert.verb import Verb

VERBS = (
    Verb(
        "horovodrun",
        "Runs a Horovod script in several processes, with Horovod's own options.",
        "wings.horovod.run:main",
        order=160,
        takes="arguments",
    ),
)
