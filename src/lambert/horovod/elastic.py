"""Elastic training under the name that Horovod's users import (`lambert.wings.horovod.elastic`)."""

from lambert.wings.horovod import elastic
from lambert.wings.horovod.elastic import *  # noqa: F403

__all__ = elastic.__all__
