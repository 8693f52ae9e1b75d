"""`/metrics`: what the engine and its offload do, for Prometheus, under vLLM's names where vLLM has one.

Source of the names: vLLM 0.33, `vllm/v1/metrics/loggers.py`; those with `offload` are this project's.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.entrypoints.openai.chat_service import Hear
from pyvllm.offloader.base import Place

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest

#: What a scrape is answered with.
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_FIRST_TOKEN_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 600)
_BETWEEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_WHOLE_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self, engine: LLMEngine, model_name: str) -> None:
        """model_name: the label of every number."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(engine, model_name))
        self._model_name = model_name
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts that were answered.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens that were generated.")
        text = "From arrival to first text."
        self.first_token = self._histogram("vllm:time_to_first_token_seconds", text, _FIRST_TOKEN_S)
        self.between_tokens = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens.", _BETWEEN_S)
        text = "From arrival to the last text."
        self.whole_request = self._histogram("vllm:e2e_request_latency_seconds", text, _WHOLE_S)
        labels = ("model_name", "finished_reason")
        text = "Answers, by how they ended."
        self._ends = Counter("vllm:request_success", text, labels, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model_name",), registry=self._registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, ("model_name",), registry=self._registry, buckets=buckets).labels(self._model_name)

    def text(self) -> bytes:
        """Give everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def follow(self, hear: Hear) -> Hear:
        """Take the times of a request's answers, which begins now, and pass on what is heard."""
        return _Clock(self, hear).hear

    def count(self, items: Iterable["EngineRequest"]) -> None:
        """Count the tokens of answers that are given out."""
        for item in items:
            self._prompt_tokens.inc(len(item.request.prompt_token_ids))
            self._generation_tokens.inc(len(item.request.output_token_ids))
            self._ends.labels(self._model_name, item.finish_reason or "error").inc()


class _Clock:
    """The times of one request. Each of its answers is heard of on the engine's thread only."""

    def __init__(self, metrics: Metrics, hear: Hear) -> None:
        self._metrics = metrics
        self._hear = hear
        self._start = time.monotonic()
        self._last: dict[int, tuple[float, int]] = {}

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> None:
        """Take the time of new text, which may stand for several tokens."""
        now = time.monotonic()
        if index not in self._last:
            self._metrics.first_token.observe(now - self._start)
        else:
            then, before = self._last[index]
            for _ in range(num_tokens - before):
                self._metrics.between_tokens.observe((now - then) / (num_tokens - before))
        self._last[index] = now, num_tokens
        if finished:
            self._metrics.whole_request.observe(now - self._start)
        self._hear(index, text, finished, num_tokens)


class _EngineCollector:
    """Asks the engine when it is scraped."""

    def __init__(self, engine: LLMEngine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Give the numbers of this moment."""
        stats = self._engine.stats()
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", stats.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait for the batch.", stats.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Part of the cache in use; 1 is all of it.", stats.cache_usage)
        yield self._counter("vllm:num_preemptions", "Requests taken out of the batch again.", stats.num_preemptions)
        yield self._counter("vllm:num_steps", "Steps that were computed.", stats.num_steps)
        about_bus = "Bytes of weights read across the bus; of routed experts, at most those that a step can reach."
        yield self._counter("vllm:offload_bus_bytes", about_bus, stats.bus_bytes)
        text = "Times that compute came to a streamed layer."
        yield self._counter("vllm:offload_prefetch_waits", text, stats.prefetch_waits)
        text = "Seconds that the engine's thread waited for streamed layers."
        yield self._counter("vllm:offload_prefetch_wait_seconds", text, stats.prefetch_wait_s)
        plan = self._engine.prepared.plan
        places = GaugeMetricFamily("vllm:offload_bytes", "Bytes of weights by place.", labels=["model_name", "place"])
        for place in Place:
            places.add_metric([self._model_name, place.value], plan.bytes_at(place))
        places.add_metric([self._model_name, "buffer"], plan.buffer_bytes)
        yield places

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
