"""The state of a run of `enrich`, without the sending and the waiting."""

from __future__ import annotations

import inspect
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ._arguments import checked_npis, number, order
from ._exchange import LONGEST_PAUSE, ApiResponse, reading, retry_after
from .errors import EnrichmentError
from .types import Result

# Credits per email found, by requested type.
PRICES: dict[str, int] = json.loads(
    (Path(__file__).parent / "prices.json").read_text(encoding="utf-8")
)
# How a list is submitted. The service's uploads have the same numbers.
PACING: dict[str, int] = json.loads(
    (Path(__file__).parent / "pacing.json").read_text(encoding="utf-8")
)
# Number of NPIs in a batch.
_BATCH = PACING["npisPerBatch"]
# A batch is submitted only while fewer NPIs than this are open. The service looks up 100 NPIs of
# an organization at once, and each must end within 15 minutes of its submit. With many more open
# NPIs, some would not be looked up in time and would fail.
_MAX_OPEN = PACING["openNpis"]
# Maximum number of running batches. Their polls count toward the rate limit of the key.
_MAX_BATCHES = PACING["runningBatches"]
# Seconds for which the service may hold the poll of the only running batch.
_HOLD = 55
# Several running batches are polled in turns of about this many seconds, so that the end of one is
# noticed while the others run.
_TURN = 12
_SHORTEST_HOLD = 2


@dataclass(frozen=True)
class Totals:
    """The number of NPIs per outcome, and the credits used.

    Only `completed` NPIs have an email and cost credits.
    """

    completed: int
    not_found: int
    failed: int
    credits_used: int


@dataclass(frozen=True)
class Progress(Totals):
    """The state of a run that `on_progress` gets."""

    total: int
    """Number of different NPIs in the run."""
    results: Sequence[Result]
    """The results that are new since the last call. Each NPI is passed exactly once."""


@dataclass(frozen=True)
class Enrichment(Totals):
    """The end of a run."""

    results: Sequence[Result]
    """One result for each given NPI, in the given order."""


OnProgress = Callable[[Progress], object]


class Chunk:
    """The NPIs of one batch."""

    def __init__(self, idempotency_key: str, npis: Sequence[str]) -> None:
        self.idempotency_key = idempotency_key
        self.npis = npis
        self.batch_id: str | None = None
        self.open = len(npis)
        self.credits_used = 0
        self.changed_at = time.monotonic()


class Run:
    """The chunks of a run, and what is known about them."""

    def __init__(
        self,
        npis: Iterable[str],
        type: object,
        webhook: object,
        custom_data: object,
        max_credits: float | None,
    ) -> None:
        self._given = checked_npis(npis)
        self._order = order(type, webhook, custom_data)
        self._limit = float("inf") if max_credits is None else number("max_credits", max_credits)
        self._results: dict[str, Result] = {}
        # The last error about missing credits. It is reset when a batch ends, because that batch
        # may have released credits.
        self._shortage: EnrichmentError | None = None
        different = list(dict.fromkeys(self._given))
        self._total = len(different)
        run_id = uuid.uuid4()
        parts = [different[first : first + _BATCH] for first in range(0, self._total, _BATCH)]
        self._chunks = [Chunk(f"{run_id}-{index}", part) for index, part in enumerate(parts)]
        self._waiting = list(self._chunks)
        self.running: list[Chunk] = []

    def next_chunk(self) -> Chunk | None:
        """Returns the chunk to submit now, or None if batches must end before.

        It raises the lack of credits when no batch is running that could release some.
        """
        chunk = None
        if self._waiting and not self._shortage and self._has_slot():
            chunk = self._waiting[0]
            self._shortage = self._above_maximum(chunk)
        if not self._shortage:
            return chunk
        if not self.running:
            raise self._shortage
        return None

    def goes_on(self) -> bool:
        """Forgets the batches that have ended, and returns true if others are left."""
        if any(chunk.open == 0 for chunk in self.running):
            self.running = [chunk for chunk in self.running if chunk.open > 0]
            self._shortage = None
        return bool(self._waiting or self.running)

    def body_of(self, chunk: Chunk) -> Mapping[str, object]:
        return {"npis": chunk.npis, **self._order}

    def submitted(self, chunk: Chunk, response: ApiResponse) -> None:
        with reading(response):
            chunk.batch_id = response.body["batch_id"]
        chunk.changed_at = time.monotonic()
        self._waiting.remove(chunk)
        self.running.append(chunk)

    def rejected(self, error: EnrichmentError) -> None:
        """Keeps the error of a submit if it is a lack of credits, or raises it."""
        if error.code != "insufficient_credits":
            raise error
        self._shortage = error

    def hold(self) -> int:
        """Returns the seconds for which the service may hold the next poll."""
        if len(self.running) == 1:
            return _HOLD
        return max(_SHORTEST_HOLD, _TURN // len(self.running))

    def polled(self, chunk: Chunk, response: ApiResponse) -> Progress:
        """Saves the results of a poll. The returned progress contains those that are new."""
        with reading(response):
            batch = response.body["batch"]
            usage = response.body["usage"] or {}
            news: list[Result] = [
                result
                for result in response.body["data"]
                if result["status"] not in ("accepted", "in-progress")
                and result["npi"] not in self._results
            ]
            self._results.update((result["npi"], result) for result in news)
            chunk.open = batch["total"] - batch["completed_count"]
            chunk.credits_used = int(usage.get("credits_used") or 0)
        if news:
            chunk.changed_at = time.monotonic()
        return Progress(*self._counts(), total=self._total, results=news)

    def pause_after_poll(self, chunk: Chunk, response: ApiResponse, patience: float) -> float:
        """Returns the seconds to wait before the next poll, usually 0.

        It raises EnrichmentError if the batch has had no new results for too long.
        """
        if chunk.open == 0:
            return 0
        if time.monotonic() - chunk.changed_at > patience:
            text = f"Batch {chunk.batch_id} has had no new results for too long. Try again later."
            raise EnrichmentError("timed_out", text)
        # Without `Preference-Applied`, the service did not hold the poll. Either too many requests
        # are waiting, or a proxy dropped the `Prefer` header. So we wait here.
        if "preference-applied" in response.response.headers:
            return 0
        pause = retry_after(response.response)
        return 1 if pause is None else min(pause, LONGEST_PAUSE)

    def end(self) -> Enrichment:
        missing = [npi for npi in self._given if npi not in self._results]
        if missing:
            text = f"The service returned no result for NPI {missing[0]}. Check its address."
            raise EnrichmentError("not_the_api", text)
        return Enrichment(*self._counts(), results=[self._results[npi] for npi in self._given])

    def _counts(self) -> tuple[int, int, int, int]:
        """Returns the values of Totals."""
        statuses = [result["status"] for result in self._results.values()]
        return (
            statuses.count("completed"),
            statuses.count("not_found"),
            statuses.count("failed"),
            sum(chunk.credits_used for chunk in self._chunks),
        )

    def _has_slot(self) -> bool:
        """Returns true if another batch may be submitted now."""
        opened = sum(chunk.open for chunk in self.running)
        return len(self.running) < _MAX_BATCHES and opened < _MAX_OPEN

    def _above_maximum(self, following: Chunk) -> EnrichmentError | None:
        """Returns the error if the next batch could exceed the limit on credits, or None."""
        begun = [chunk for chunk in self._chunks if chunk.batch_id or chunk is following]
        # The API rejects an unknown type, unless it is newer than this package.
        price = PRICES.get(str(self._order["enrichment_email_type"]), max(PRICES.values()))
        most = sum(chunk.credits_used + chunk.open * price for chunk in begun)
        if most <= self._limit:
            return None
        text = (
            f"With the next submit, the run could cost {most} credits, more than"
            f" {self._limit}. Continue with a higher max_credits."
        )
        return EnrichmentError("max_credits", text)


def reporter_sync(on_progress: OnProgress | None) -> Callable[[Progress], None]:
    """Returns a function that rejects an `on_progress` that must be awaited.

    An async function is rejected before the first submit. For other functions, only the returned
    value shows it.
    """
    report = _checked(on_progress)
    text = "on_progress is an async function. Pass an ordinary one, or use AsyncClient."
    if inspect.iscoroutinefunction(on_progress):
        raise EnrichmentError("argument_invalid", text)

    def call(progress: Progress) -> None:
        if inspect.isawaitable(report(progress)):
            raise EnrichmentError("argument_invalid", text)

    return call


def reporter_async(on_progress: OnProgress | None) -> Callable[[Progress], Awaitable[None]]:
    """Returns a function that also waits for an `on_progress` that is an async function."""
    report = _checked(on_progress)

    async def wait(progress: Progress) -> None:
        outcome = report(progress)
        if inspect.isawaitable(outcome):
            await outcome

    return wait


def _checked(on_progress: OnProgress | None) -> OnProgress:
    if on_progress is None:
        return lambda _: None
    if not callable(on_progress):
        raise EnrichmentError("argument_invalid", "on_progress is not a function.")
    return on_progress
