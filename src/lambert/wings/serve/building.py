"""Puts a service together: models, scheduler, application and gate."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lambert.core.launcher import save_traceback
from lambert.core.world import World
from lambert.engine.device import device_named
from lambert.engine.precision import resolve_precision
from lambert.inference.config import InferenceConfig
from lambert.inference.scheduler import Scheduler
from lambert.inference.text_model import TextModel
from lambert.runs.result import Say
from lambert.wings.serve.admission import Admission
from lambert.wings.serve.answering import Answering, add_token_count, count_characters
from lambert.wings.serve.app import create_application
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.gate import Gate
from lambert.wings.serve.metrics import Metrics
from lambert.wings.serve.models import Models

_WAIT = 0.25
"""Maximum estimated wait for other requests, as a share of the maximum time of a request. So accepted requests are
answered even if the service becomes three times slower while they wait."""
_WARM_TEXTS = 16
"""Number of texts from which the initial speed is measured."""
WARM_TEXT = "The first batch takes longer, because memory is allocated and kernels are chosen. " * 4


@dataclass(frozen=True, slots=True)
class Service:
    """A service that is not running yet."""

    app: Gate
    """The ASGI application."""
    state: Any
    """`ready`: whether it takes requests."""
    models: Models
    metrics: Metrics
    close: Callable[..., None]
    """Computes the accepted requests, or with `now=True` only the present batches, then ends the threads."""


def build(config: ServeConfig, key: str, say: Say) -> Service:
    """Loads the models, computes a batch with each, and returns the service."""
    world = World(device=device_named(config.device, 0))
    precision: Any = resolve_precision(config.precision, world) if config.precision == "auto" else config.precision
    metrics = Metrics()
    scheduler = Scheduler(
        world, workers=config.workers, most_tokens=config.max_waiting_tokens, most_seconds=_WAIT * config.seconds,
        observer=metrics,
    )  # fmt: skip

    answering = Answering(scheduler)
    admission = Admission(scheduler, answering.turns, config.max_requests, config.body_bytes)

    def warm(model: TextModel) -> None:
        texts = [WARM_TEXT] * max(_WARM_TEXTS, scheduler.workers)
        model.vectors(texts)
        begin = time.perf_counter()
        request, tokens = add_token_count(model.vectors(texts))
        admission.expect(count_characters(texts) / (time.perf_counter() - begin), tokens / count_characters(texts))
        request.finish(scheduler.submit(request.ready, request.source).result())

    inference = InferenceConfig(precision, device=config.device)
    try:
        models = Models(config.models, inference, config.code, world, warm)
    except BaseException:
        scheduler.close(now=True)
        raise
    metrics.register_gauges(scheduler, models)
    app = create_application(config, models, answering, metrics)

    def report(error: BaseException) -> None:
        # The message of the error may contain what a client sent, so it is not printed.
        where = save_traceback("serve", "".join(traceback.format_exception(error)))
        say(f"warning: a request failed because of a bug ({type(error).__name__}). {where}")

    gate = Gate(app, config, key, admission, metrics, report)
    return Service(gate, app.state, models, metrics, answering.close)
