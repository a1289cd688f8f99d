"""The counts and times of a service, in the text format of Prometheus (GET /metrics)."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily, Metric

from lambert.inference.scheduler import Observer, Scheduler
from lambert.wings.serve.models import Served

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics(Observer):
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._requests = counter(
            "lambert_requests", "Requests that were answered; status 499: the client left.", ("path", "model", "status")
        )
        self._request_seconds = histogram(
            "lambert_request_seconds", "Time from a request's headers to the end of its answer.", ("path", "model"),
            buckets=_SECONDS,
        )  # fmt: skip
        self._refusals = counter("lambert_refusals", "Requests that were refused, by reason.", ("reason",))
        self.in_flight = Gauge("lambert_requests_in_flight", "Requests that have begun.", registry=self.registry)
        self._queue_seconds = histogram(
            "lambert_queue_seconds", "Time that a request's first sequences waited to be computed.", buckets=_SECONDS
        )
        self._tokens = counter("lambert_tokens", "Tokens computed.")
        self._sequences = counter("lambert_sequences", "Sequences computed.")
        self._batch_tokens = histogram("lambert_batch_tokens", "Tokens of a batch.", buckets=_TOKENS)
        self._batch_seconds = histogram("lambert_batch_seconds", "Time to compute a batch.", buckets=_SECONDS)
        self._reloads = counter("lambert_reloads", "Reloads of the models, by result.", ("result",))

    def register_gauges(self, scheduler: Scheduler, models: Iterable[Served]) -> None:
        """Adds the metrics that are computed on request."""
        self._gauge("lambert_waiting_tokens", "Tokens that wait to be computed.", lambda: scheduler.waiting_tokens)
        self._gauge("lambert_waiting_tokens_limit", "Most tokens that may wait.", lambda: scheduler.most_tokens)
        self._gauge(
            "lambert_tokens_per_second", "Tokens per second of computing, of all workers.",
            lambda: scheduler.tokens_per_second,
        )  # fmt: skip
        self.registry.register(_ModelInfo(models))

    def count_answer(self, path: str, model: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels(path, model, str(status)).inc()
        self._request_seconds.labels(path, model).observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Counts a refused request."""
        self._refusals.labels(reason).inc()

    def count_reload(self, result: str) -> None:
        """Counts a reload of the models: `changed`, `unchanged` or `failed`."""
        self._reloads.labels(result).inc()

    def record_wait(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def record_batch(self, tokens: int, sequences: int, seconds: float) -> None:
        self._tokens.inc(tokens)
        self._sequences.inc(sequences)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Returns all metrics."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        Gauge(name, description, registry=self.registry).set_function(value)


class _ModelInfo:
    """One info metric for each model that is being served now."""

    def __init__(self, models: Iterable[Served]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        family = InfoMetricFamily("lambert_model", "The models that are served.", labels=["name"])
        for served in self._models:
            values = {"version": served.version, "task": served.task, "precision": served.model.precision}
            family.add_metric([served.name], values)
        yield family
