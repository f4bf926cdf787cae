from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from ._connection import PATIENCE, ApiResponse, Connection
from .errors import EnrichmentError
from .types import CustomData, RequestedType, Result, WebhookTarget

# Credits per email found, by requested type.
PRICES: dict[str, int] = json.loads(
    (Path(__file__).parent / "prices.json").read_text(encoding="utf-8")
)
# How a list is submitted. The service's uploads have the same numbers.
_PACING: dict[str, int] = json.loads(
    (Path(__file__).parent / "pacing.json").read_text(encoding="utf-8")
)
# Number of NPIs in a batch.
_BATCH = _PACING["npisPerBatch"]
# A batch is submitted only while fewer NPIs than this are open. The service looks up 100 NPIs of
# an organization at once, and each must end within 15 minutes of its submit. With many more open
# NPIs, some would not be looked up in time and would fail.
_MAX_OPEN = _PACING["openNpis"]
# Maximum number of running batches. Their polls count toward the rate limit of the key.
_MAX_BATCHES = _PACING["runningBatches"]
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


@dataclass(frozen=True)
class Order:
    """What all submits of a run have in common."""

    type: RequestedType
    webhook: WebhookTarget | None
    custom_data: CustomData | None
    max_credits: float


def enrich(
    npis: Iterable[str],
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    type: RequestedType = "any",
    webhook: WebhookTarget | None = None,
    custom_data: CustomData | None = None,
    max_credits: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    patience: float = PATIENCE,
) -> Enrichment:
    """Finds the emails of any number of NPIs, and returns when all NPIs are final.

    An NPI that occurs several times is looked up once. It raises EnrichmentError if retries do not
    help. A lack of credits (`insufficient_credits`, `max_credits`) is raised only after all
    submitted NPIs are final and `on_progress` got their results.

    :param api_key: by default the variable NPI_EMAIL_API_KEY of the environment
    :param base_url: the address of the service, by default the variable NPI_EMAIL_URL
    :param type: the requested type of email
    :param webhook: also gets the results
    :param custom_data: returned with each delivery to the webhook
    :param max_credits: limit on the credits of the run. A batch that could exceed it is not
        submitted
    :param on_progress: called with counts and the newest results
    :param patience: seconds for which a failing call is retried, and for which a batch is polled
        without a new result
    """
    given = list(npis)
    for number, npi in enumerate(given, 1):
        if not isinstance(npi, str) or not re.fullmatch("[0-9]{10}", npi):
            raise EnrichmentError("npi_invalid", f"NPI {number} is not a string of 10 digits.")
    limit = float("inf") if max_credits is None else max_credits
    order = Order(type, webhook, custom_data, limit)
    connection = Connection(api_key, base_url, patience)
    try:
        # Checks the key. The response also shows how much of its rate limit is left.
        connection.call("GET", "/api/v1/credits")
        run = _Run(connection, order, list(dict.fromkeys(given)), on_progress)
        run.finish()
    finally:
        connection.close()
    return Enrichment(*run.counts(), results=[run.results[npi] for npi in given])


class _Chunk:
    """The NPIs of one batch."""

    def __init__(self, idempotency_key: str, npis: Sequence[str]) -> None:
        self.idempotency_key = idempotency_key
        self.npis = npis
        self.batch_id: str | None = None
        self.open = len(npis)
        self.credits_used = 0
        self.changed_at = time.monotonic()


class _Run:
    def __init__(
        self,
        connection: Connection,
        order: Order,
        npis: Sequence[str],
        on_progress: Callable[[Progress], object] | None,
    ) -> None:
        self.results: dict[str, Result] = {}
        self._connection = connection
        self._order = order
        self._on_progress = on_progress
        self._total = len(npis)
        run_id = uuid.uuid4()
        parts = [npis[first : first + _BATCH] for first in range(0, len(npis), _BATCH)]
        self._chunks = [_Chunk(f"{run_id}-{index}", part) for index, part in enumerate(parts)]

    def finish(self) -> None:
        """Submits all chunks, and polls their batches until all have ended."""
        waiting = list(self._chunks)
        running: list[_Chunk] = []
        # The last error about missing credits. It is reset when a batch ends, because that batch
        # may have released credits.
        shortage: EnrichmentError | None = None
        while waiting or running:
            while waiting and not shortage and _has_slot(running):
                shortage = self._above_maximum(waiting[0]) or self._submit(waiting[0])
                if not shortage:
                    running.append(waiting.pop(0))
            if shortage and not running:
                raise shortage
            hold = _HOLD if len(running) == 1 else max(_SHORTEST_HOLD, _TURN // len(running))
            for chunk in running:
                self._poll(chunk, hold)
            if any(chunk.open == 0 for chunk in running):
                running = [chunk for chunk in running if chunk.open > 0]
                shortage = None

    def counts(self) -> tuple[int, int, int, int]:
        """Returns the values of Totals."""
        statuses = [result["status"] for result in self.results.values()]
        return (
            statuses.count("completed"),
            statuses.count("not_found"),
            statuses.count("failed"),
            sum(chunk.credits_used for chunk in self._chunks),
        )

    def _above_maximum(self, following: _Chunk) -> EnrichmentError | None:
        """Returns the error if the next batch could exceed the limit on credits, or None."""
        begun = [chunk for chunk in self._chunks if chunk.batch_id or chunk is following]
        # The API rejects an unknown type, unless it is newer than this package.
        price = PRICES.get(self._order.type, max(PRICES.values()))
        most = sum(chunk.credits_used + chunk.open * price for chunk in begun)
        if most <= self._order.max_credits:
            return None
        text = (
            f"With the next submit, the run could cost {most} credits, more than"
            f" {self._order.max_credits}. Continue with a higher max_credits."
        )
        return EnrichmentError("max_credits", text)

    def _submit(self, chunk: _Chunk) -> EnrichmentError | None:
        """Submits a chunk, and returns the error if there are not enough credits for it."""
        body = {
            "npis": chunk.npis,
            "enrichment_email_type": self._order.type,
            "webhook": self._order.webhook,
            "custom_data": self._order.custom_data,
        }
        headers = {"Idempotency-Key": chunk.idempotency_key}
        try:
            response = self._connection.call("POST", "/api/v1/email/bulk", headers=headers, json=body)
        except EnrichmentError as error:
            if error.code == "insufficient_credits":
                return error
            raise
        chunk.batch_id = response.body["batch_id"]
        chunk.changed_at = time.monotonic()
        return None

    def _poll(self, chunk: _Chunk, hold: int) -> None:
        """Polls a batch and reports its new results."""
        headers = {"Prefer": f"wait={hold}"}
        path = f"/api/v1/batch/{chunk.batch_id}"
        response = self._connection.call("GET", path, headers=headers)
        self._note(chunk, response)
        if chunk.open == 0:
            return
        now = time.monotonic()
        if now - chunk.changed_at > self._connection.patience:
            text = f"Batch {chunk.batch_id} has had no new results for too long. Try again later."
            raise EnrichmentError("timed_out", text)
        # Without `Preference-Applied`, the service did not hold the poll. Either too many requests
        # are waiting, or a proxy dropped the `Prefer` header. So we wait here.
        if "preference-applied" not in response.headers:
            time.sleep(float(response.headers.get("retry-after", 1)))

    def _note(self, chunk: _Chunk, response: ApiResponse) -> None:
        batch = response.body["batch"]
        usage = response.body["usage"] or {}
        news: list[Result] = [
            result
            for result in response.body["data"]
            if result["status"] not in ("accepted", "in-progress")
            and result["npi"] not in self.results
        ]
        self.results.update((result["npi"], result) for result in news)
        if news:
            chunk.changed_at = time.monotonic()
        chunk.open = batch["total"] - batch["completed_count"]
        chunk.credits_used = usage.get("credits_used") or 0
        if self._on_progress:
            self._on_progress(Progress(*self.counts(), total=self._total, results=news))


def _has_slot(running: Sequence[_Chunk]) -> bool:
    """Returns true if another batch may be submitted now."""
    return len(running) < _MAX_BATCHES and sum(chunk.open for chunk in running) < _MAX_OPEN
