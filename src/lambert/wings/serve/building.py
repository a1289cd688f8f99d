"""Puts a service together: models, scheduler, application and gate."""

import time
import traceback
from collections.abc import Callable
from typing import Any

from lambert.core.launcher import save_traceback
from lambert.core.world import World
from lambert.engine.device import device_named
from lambert.engine.precision import resolve_precision
from lambert.inference.config import InferenceConfig
from lambert.inference.scheduler import Scheduler
from lambert.inference.text_model import TextModel
from lambert.wings.serve.admission import Admission
from lambert.wings.serve.answering import Answering, characters, with_tokens
from lambert.wings.serve.app import application
from lambert.wings.serve.config import ServeConfig
from lambert.wings.serve.gate import Gate, Limits
from lambert.wings.serve.metrics import Metrics
from lambert.wings.serve.models import Models

_WAIT = 0.25
"""Maximum estimated wait for other requests, as a share of the maximum time of a request. So accepted requests are
answered even if the service becomes three times slower while they wait."""
_WARM_TEXTS = 16
"""Number of texts from which the initial speed is measured."""
WARM_TEXT = "The first batch takes longer, because memory is allocated and kernels are chosen. " * 4


def build(config: ServeConfig, key: str, hosts: frozenset[str], say: Callable[[str], None]) -> tuple[Any, ...]:
    """Returns the fields of `Built`."""
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
        request, tokens = with_tokens(model.vectors(texts))
        admission.expect(characters(texts) / (time.perf_counter() - begin), tokens / characters(texts))
        request.finish(scheduler.submit(request.work, request.source).result())

    inference = InferenceConfig(precision, device=config.device)
    try:
        models = Models(config.models, inference, config.code, world, warm)
    except BaseException:
        scheduler.close(now=True)
        raise
    metrics.watch(scheduler, models)
    app = application(config, models, answering, metrics)
    limits = Limits(hosts, key, config.body_bytes, config.seconds)

    def report(error: BaseException) -> None:
        # The message of the error may contain what a client sent, so it is not printed.
        where = save_traceback("serve", "".join(traceback.format_exception(error)))
        say(f"warning: a request failed because of a bug ({type(error).__name__}). {where}")

    return Gate(app, limits, admission, metrics, report), app.state, models, metrics, answering.close
