"""Counters for Prometheus, under the names of vLLM, so that its dashboards show them."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specdec.interfaces.results import StepRecord
from specdec.serving.ticket import Report, Ticket, Update
from specdec.serving.ticket_queue import TicketQueue
from specdec.serving.usage import add_positions

LABELS = ("model_name", "engine")

SHORT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Metrics:
    """Those of one server; a registry of its own, so that several may live in a process. Used in the event loop's thread."""

    def __init__(self, model: str, queue: TicketQueue) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model, "0")
        self._at: list[int] = []
        self._positions = self._counter("spec_decode_num_accepted_tokens_per_pos", "by position", ("position",))
        self._drafts = self._counter("spec_decode_num_drafts", "steps with a draft").labels(*self._labels)
        self._drafted = self._counter("spec_decode_num_draft_tokens", "drafted tokens").labels(*self._labels)
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "accepted tokens").labels(*self._labels)
        self._prompt = self._counter("prompt_tokens", "tokens of prompts").labels(*self._labels)
        self._generated = self._counter("generation_tokens", "tokens of answers").labels(*self._labels)
        self._success = self._counter("request_success", "finished answers", ("finished_reason",))
        self._iteration = self._histogram("iteration_tokens_total", "tokens of a step of the whole batch", SIZES)
        self._first = self._histogram("time_to_first_token_seconds", "from arrival", LONG)
        self._waited = self._histogram("request_queue_time_seconds", "from arrival to prefill", LONG)
        self._decode = self._histogram("request_decode_time_seconds", "from the first token to the last", LONG)
        self._inference = self._histogram("request_inference_time_seconds", "from prefill to the last token", LONG)
        self._prefill = self._histogram("request_prefill_time_seconds", "from prefill to the first token", LONG)
        self._whole = self._histogram("e2e_request_latency_seconds", "from arrival to the last token", LONG)
        self._per_token = self._histogram("request_time_per_output_token_seconds", "decode time by token", SHORT)
        self._between = self._histogram("inter_token_latency_seconds", "step time by committed token", SHORT)
        self._prompts = self._histogram("request_prompt_tokens", "tokens of a prompt", SIZES)
        self._answers = self._histogram("request_generation_tokens", "tokens of an answer", SIZES)
        self._gauge("num_requests_running", "sequences in the batch", lambda: queue.places - queue.free_places)
        self._gauge("num_requests_waiting", "prompts that wait", lambda: len(queue))
        self._gauge("kv_cache_usage_perc", "share of the KV memory that is reserved", lambda: queue.used_share)

    def _counter(self, name: str, what: str, more: tuple[str, ...] = ()) -> Counter:
        return Counter(f"vllm:{name}", what, (*LABELS, *more), registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", what, LABELS, registry=self.registry, buckets=buckets).labels(*self._labels)

    def _gauge(self, name: str, what: str, value: Callable[[], float]) -> None:
        Gauge(f"vllm:{name}", what, LABELS, registry=self.registry).labels(*self._labels).set_function(value)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        for position, count in enumerate(self._at):
            self._positions.labels(*self._labels, str(position)).inc(count)
        self._at = []
        return generate_latest(self.registry)

    def take(self, report: Report) -> None:
        """Count a round."""
        for ticket in report.begun:
            self._prompt.inc(len(ticket.request.prompt))
            self._generated.inc(ticket.samples)
        for records in report.steps:
            self._count_step(records)
        if report.steps:
            self._count_drafts([record for records in report.steps for record in records])
        for update in report.updates:
            if update.ends:
                self._count_end(update)

    def _count_step(self, records: Sequence[StepRecord]) -> None:
        committed = sum(record.committed for record in records)
        self._iteration.observe(committed)
        self._between.observe(sum(records[0].seconds.values()) * len(records) / max(committed, 1))

    def _count_drafts(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            if record.drafted:
                add_positions(self._at, record.accepted)
        self._drafts.inc(sum(record.drafted > 0 for record in records))
        self._drafted.inc(sum(record.drafted for record in records))
        self._accepted.inc(sum(record.accepted for record in records))
        self._generated.inc(sum(record.committed for record in records))

    def _count_end(self, update: Update) -> None:
        if isinstance(update.news, BaseException) or update.news.generation is None:
            self._success.labels(*self._labels, "error").inc()
            return
        generation, ticket, now = update.news.generation, update.ticket, time.monotonic()
        self._success.labels(*self._labels, generation.finish_reason).inc()
        self._answers.observe(len(generation.tokens))
        self._prompts.observe(len(generation.prompt_tokens))
        self._whole.observe(now - ticket.submitted)
        self._count_times(ticket, now, len(generation.tokens))

    def _count_times(self, ticket: Ticket, now: float, tokens: int) -> None:
        if ticket.began is None or ticket.first_token is None:
            return
        self._waited.observe(ticket.began - ticket.submitted)
        self._prefill.observe(ticket.first_token - ticket.began)
        self._first.observe(ticket.first_token - ticket.submitted)
        self._decode.observe(now - ticket.first_token)
        self._inference.observe(now - ticket.began)
        if tokens > 1:
            self._per_token.observe((now - ticket.first_token) / (tokens - 1))
