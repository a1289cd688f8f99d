"""Puts a service together: models, scheduler, application and gate."""

import traceback
from collections.abc import Callable
from typing import Any

from lambert.core.crash import save_traceback
from lambert.core.world import World
from lambert.engine.device import device_named
from lambert.engine.precision import resolved
from lambert.inference.config import InferenceConfig
from lambert.inference.scheduler import OverloadedError, Scheduler
from lambert.inference.text_model import TextModel
from lambert.serving.answering import Answering
from lambert.serving.app import application
from lambert.serving.config import ServeConfig
from lambert.serving.gate import Gate, Limits
from lambert.serving.metrics import Metrics
from lambert.serving.models import Models

_WAIT = 0.5
"""Share of the longest time of a request that it may wait for others. The estimate of that time is not exact, and
others come while it waits."""
WARM_TEXT = "The first batch takes longer, because memory is allocated and kernels are chosen. " * 4


def build(config: ServeConfig, key: str, hosts: frozenset[str], say: Callable[[str], None]) -> tuple[Any, ...]:
    """Returns the fields of `Built`."""
    world = World(device=device_named(config.device, 0))
    precision: Any = resolved(config.precision, world) if config.precision == "auto" else config.precision
    metrics = Metrics()
    scheduler = Scheduler(
        world, workers=config.workers, most_tokens=config.max_waiting_tokens, most_seconds=_WAIT * config.seconds,
        observer=metrics,
    )  # fmt: skip

    def warm(model: TextModel) -> None:
        request = model.vectors([WARM_TEXT] * scheduler.workers)
        try:
            request.finish(scheduler.submit(request.work, request.source).result())
        except OverloadedError:  # only during a reload, when the threads of the scheduler are warm
            model.encode([WARM_TEXT])

    inference = InferenceConfig(precision, device=config.device)
    try:
        models = Models(config.models, inference, config.code, world, warm)
    except BaseException:
        scheduler.close(now=True)
        raise
    metrics.watch(scheduler, models)
    answering = Answering(scheduler)
    app = application(config, models, answering, metrics)
    limits = Limits(hosts, key, int(config.max_body_megabytes * 1e6), config.max_requests, config.seconds)

    def report(error: BaseException) -> None:
        # The message of the error may repeat what a client sent, which is not printed.
        where = save_traceback("serve", "".join(traceback.format_exception(error)))
        say(f"warning: a request failed because of a bug ({type(error).__name__}). {where}")

    return Gate(app, limits, metrics, report), app.state, models, metrics, answering.close
