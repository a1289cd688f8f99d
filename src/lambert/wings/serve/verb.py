"""`lambert serve`: an HTTP service of models, with a page for trying them."""

from lambert.runs.result import Say, silent
from lambert.wings.serve.config import ServeConfig

__all__ = ["ServeConfig", "run"]


def run(config: ServeConfig, say: Say = silent) -> None:
    """Serves until a signal ends it. Raises UsageError, DataError or MachineError before it listens."""
    from lambert.wings.serve.server import serve

    serve(config, say)
