"""The metrics of a server, for Prometheus; named as in vLLM and Triton where these have the metric."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cellerate.serving.models import Models

# Bucket bounds from 0.2 ms to a minute, each at least twice the one before.
_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)


class Metrics:
    """The metrics of a server.

    Args:
        models: The models whose gauges are read at each scrape.
    """

    def __init__(self, models: Models) -> None:
        registry = self._registry = CollectorRegistry()

        def histogram(name: str, text: str, labels: Iterable[str] = ("model_name",)) -> Histogram:
            return Histogram(name, text, tuple(labels), buckets=_SECONDS, registry=registry)

        def counter(name: str, text: str, labels: Iterable[str] = ("model_name",)) -> Counter:
            return Counter(name, text, tuple(labels), registry=registry)

        self.requests = counter(
            "http_requests", "Requests by route and status.", ("method", "route", "status")
        )
        self.request_s = histogram("http_request_duration_seconds", "Time to the last byte.", ("route",))
        self.running = Gauge("http_requests_running", "Requests that are answered now.", registry=registry)
        self.refused = counter("requests_refused", "Requests for which there was no place.", ("route",))
        self.prompt_tokens = counter("prompt_tokens", "Ids of prompts that were read.")
        self.generation_tokens = counter("generation_tokens", "Ids that were drawn.")
        self.first_token_s = histogram("time_to_first_token_seconds", "From the request to the first ids.")
        self.inter_token_s = histogram(
            "inter_token_latency_seconds", "Between two updates of a text, divided by the ids of the second."
        )
        self.text_s = histogram("e2e_request_latency_seconds", "From the request to the last id of a text.")
        self.pushes = counter("session_pushes", "Pushes to sessions that were read.")
        self.push_errors = counter("session_push_errors", "Pushes to sessions that failed.")
        self.push_s = histogram("session_push_duration_seconds", "From a request of pushes to its outputs.")
        self.call_s = histogram("inference_request_duration_seconds", "Waiting and computing of a call.")
        registry.register(_OfModels(models))

    def text(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return generate_latest(self._registry)


class TextTimes:
    """Measures one text while it is generated.

    Args:
        metrics: The metrics that receive the times.
        model: The name of its model.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._first = metrics.first_token_s.labels(model)
        self._next = metrics.inter_token_s.labels(model)
        self._whole = metrics.text_s.labels(model)
        self._tokens = metrics.generation_tokens.labels(model)
        self._begin = self._last = time.perf_counter()
        self._any = False

    def update(self, tokens: int, ended: bool) -> None:
        """Record that `tokens` ids came, and whether they are the last."""
        now = time.perf_counter()
        if tokens:
            self._tokens.inc(tokens)
            if self._any:
                self._next.observe((now - self._last) / tokens)
            else:
                self._first.observe(now - self._begin)
            self._any, self._last = True, now
        if ended:
            self._whole.observe(now - self._begin)


class _OfModels(Collector):
    """The metrics that the models themselves hold, read at each scrape."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=["model_name"])

        texts = gauge("num_requests_running", "Texts that are drawn or wait.")
        recalled = CounterMetricFamily(
            "prefix_cache_hits", "Ids of prompts that were remembered, and not read.", labels=["model_name"]
        )
        sessions = gauge("sessions", "Sessions, in memory and on disk.")
        waiting = gauge("session_pushes_waiting", "Pushes to sessions that wait.")
        unsaved = gauge("session_states_unsaved", "Sessions whose state on the disk is missing or older.")
        failing = gauge(
            "session_disk_failing_seconds", "For how long the disk has taken no states; 0 while it does."
        )
        calls = gauge("pending_request_count", "Predictions, forecasts and embeddings that wait or run.")
        rows = CounterMetricFamily(
            "inference_count", "Rows that were predicted, forecast or embedded.", labels=["model_name"]
        )
        for served in self._models:
            calls.add_metric([served.name], served.calls.waiting)
            rows.add_metric([served.name], served.calls.totals.rows)
            if served.texts is not None:
                texts.add_metric([served.name], served.texts.sequences)
                recalled.add_metric([served.name], served.texts.recalled)
            if served.sessions is not None:
                sessions.add_metric([served.name], len(served.sessions.sessions))
                waiting.add_metric([served.name], served.sessions.waiting)
                unsaved.add_metric([served.name], served.sessions.sessions.disk.unsaved_count)
                failing.add_metric([served.name], served.sessions.sessions.disk.trouble_s)
        return iter((texts, recalled, sessions, waiting, unsaved, failing, calls, rows))
