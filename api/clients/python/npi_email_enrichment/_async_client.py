from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

from . import _arguments as check
from ._async_connection import AsyncConnection
from ._check import Check
from ._enrich import Chunk, Enrichment, OnProgress, Run, reporter_async
from ._exchange import PATIENCE, ApiResponse, reading
from .errors import EnrichmentError
from .types import (
    Accepted,
    Batch,
    BatchStatus,
    CheckReport,
    Credits,
    CustomData,
    Delivery,
    DeliveryStatus,
    Envelope,
    LedgerEntry,
    RequestedType,
    Resent,
    TestOutcome,
    UsageBy,
    UsageReport,
    WebhookTarget,
)


class AsyncClient:
    """Calls each operation of the API with one key.

    It stays within the key's rate limit, and retries safely. Each method raises EnrichmentError.
    Threads may share a synchronous client, and the tasks of one event loop an asynchronous one.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Makes a client. It raises EnrichmentError if the key or the address is not usable.

        :param api_key: by default the variable NPI_EMAIL_API_KEY of the environment
        :param base_url: the address of the service, by default the variable NPI_EMAIL_URL
        :param patience: seconds for which a failing call is retried
        """
        self._connection = AsyncConnection(api_key, base_url, patience)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.aclose()

    async def enrich(
        self,
        npis: Iterable[str],
        *,
        type: RequestedType = "any",
        webhook: WebhookTarget | None = None,
        custom_data: CustomData | None = None,
        max_credits: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Enrichment:
        """Finds the emails of any number of NPIs, and returns when all NPIs are final.

        An NPI that occurs several times is looked up once. It raises EnrichmentError if retries do
        not help. A lack of credits (`insufficient_credits`, `max_credits`) is raised only after all
        submitted NPIs are final and `on_progress` got their results.

        :param type: the requested type of email
        :param webhook: also gets the results
        :param custom_data: returned with each delivery to the webhook
        :param max_credits: limit on the credits of the run. A batch that could exceed it is not
            submitted
        :param on_progress: called with counts and the newest results
        """
        report = reporter_async(on_progress)
        run = Run(npis, type, webhook, custom_data, max_credits)
        # Checks the key. The response also shows how much of its rate limit is left.
        await self.credits()
        while run.goes_on():
            while chunk := run.next_chunk():
                await self._submit_chunk(run, chunk)
            hold = run.hold()
            for chunk in run.running:
                response = await self._held_poll(f"/api/v1/batch/{chunk.batch_id}", hold)
                await report(run.polled(chunk, response))
                pause = run.pause_after_poll(chunk, response, self._connection.patience)
                if pause > 0:
                    await asyncio.sleep(pause)
        return run.end()

    async def check(self, npis: Iterable[str]) -> CheckReport:
        """Returns what a submit of each NPI would lead to, and the most that all can cost.

        It costs no credits, and one request for each 1,000 different NPIs.
        """
        wanted = Check(npis)
        for chunk in wanted.chunks():
            response = await self._connection.call("POST", "/api/v1/check", json={"npis": chunk})
            wanted.add(chunk, response)
        return wanted.report()

    async def submit_single(
        self,
        npi: str,
        *,
        type: RequestedType = "any",
        webhook: WebhookTarget | None = None,
        custom_data: CustomData | None = None,
        idempotency_key: str | None = None,
        test_outcome: TestOutcome | None = None,
    ) -> Accepted:
        """Submits one NPI.

        :param idempotency_key: gets the same batch for 24 hours. If your program may repeat the
            submit after a crash, store the key with your order
        :param test_outcome: the outcome in the sandbox
        """
        body = {"npi": check.text("npi", npi), **check.order(type, webhook, custom_data)}
        return await self._submit("/api/v1/email", body, idempotency_key, test_outcome)

    async def submit_bulk(
        self,
        npis: Sequence[str],
        *,
        type: RequestedType = "any",
        webhook: WebhookTarget | None = None,
        custom_data: CustomData | None = None,
        idempotency_key: str | None = None,
        test_outcome: TestOutcome | None = None,
    ) -> Accepted:
        """Submits 1 to 60 NPIs as one batch. The parameters are those of `submit_single`."""
        body = {"npis": check.listed(npis), **check.order(type, webhook, custom_data)}
        return await self._submit("/api/v1/email/bulk", body, idempotency_key, test_outcome)

    async def get_request(self, request_id: str, *, wait: int = 0) -> Envelope:
        """Returns one request.

        :param wait: seconds, at most 55, for which the service waits for the final result
        """
        return await self._poll(f"/api/v1/email/{_id('request_id', request_id)}", wait)

    async def get_batch(self, batch_id: str, *, wait: int = 0) -> Envelope:
        """Returns all requests of a submit.

        :param wait: seconds, at most 55, for which the service waits for the final results
        """
        return await self._poll(_batch_path(batch_id), wait)

    def batches(
        self,
        *,
        status: BatchStatus | None = None,
        npi: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[Batch]:
        """Yields your batches, newest first.

        :param since: only batches submitted at this time or later. It needs a time zone
        :param until: only batches submitted before this time. It needs a time zone
        """
        filters = _given(since, until, status=status, npi=npi)
        return self._list("/api/v1/batches", "batches", filters)

    def deliveries(self, batch_id: str) -> AsyncIterator[Delivery]:
        """Yields the webhook deliveries of a batch, each with its newest 5 attempts."""
        return self._list(f"{_batch_path(batch_id)}/deliveries", "deliveries", {})

    async def get_delivery(
        self, batch_id: str, delivery_id: str, *, before: int | None = None
    ) -> Delivery:
        """Returns one delivery with its newest 50 attempts.

        :param before: only attempts with a lower `n`
        """
        params = {} if before is None else {"before": check.whole("before", before)}
        path = _delivery_path(batch_id, delivery_id)
        delivery: Delivery = (await self._connection.call("GET", path, params=params)).body
        return delivery

    async def resend(self, batch_id: str, delivery_id: str) -> Delivery:
        """Sends a webhook delivery again."""
        path = f"{_delivery_path(batch_id, delivery_id)}/resend"
        delivery: Delivery = (await self._connection.call("POST", path)).body
        return delivery

    def all_deliveries(
        self,
        *,
        status: DeliveryStatus | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> AsyncIterator[Delivery]:
        """Yields the webhook deliveries of all batches, newest first.

        :param since: only those submitted at this time or later. It needs a time zone
        :param until: only those submitted before this time. It needs a time zone
        """
        filters = _given(since, until, status=status)
        return self._list("/api/v1/deliveries", "deliveries", filters)

    async def resend_failed(self, failed_since: datetime) -> Resent:
        """Sends the deliveries again that failed at this time or later, at most 500.

        :param failed_since: it needs a time zone
        """
        body = {"failed_since": check.moment("failed_since", failed_since)}
        path = "/api/v1/deliveries/resend"
        resent: Resent = (await self._connection.call("POST", path, json=body)).body
        return resent

    async def credits(self) -> Credits:
        """Returns the credits of your organization."""
        credits: Credits = (await self._connection.call("GET", "/api/v1/credits")).body
        return credits

    def ledger(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> AsyncIterator[LedgerEntry]:
        """Yields every movement of your credits, newest first.

        :param since: only movements at this time or later. It needs a time zone
        :param until: only movements before this time. It needs a time zone
        """
        return self._list("/api/v1/credits/ledger", "entries", _given(since, until))

    async def usage(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: UsageBy = "day",
    ) -> UsageReport:
        """Returns the usage of whole UTC days, by default of the current month."""
        params = _given(since, until, by=by)
        path = "/api/v1/usage"
        usage: UsageReport = (await self._connection.call("GET", path, params=params)).body
        return usage

    async def _submit(
        self,
        path: str,
        body: Mapping[str, object],
        idempotency_key: str | None,
        test_outcome: TestOutcome | None,
    ) -> Accepted:
        key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
        headers = {"Idempotency-Key": check.header("idempotency_key", key)}
        if test_outcome is not None:
            headers["Test-Outcome"] = check.header("test_outcome", test_outcome)
        response = await self._connection.call("POST", path, headers=headers, json=body)
        accepted: Accepted = response.body
        return accepted

    async def _submit_chunk(self, run: Run, chunk: Chunk) -> None:
        headers = {"Idempotency-Key": chunk.idempotency_key}
        body = run.body_of(chunk)
        path = "/api/v1/email/bulk"
        try:
            response = await self._connection.call("POST", path, headers=headers, json=body)
        except EnrichmentError as error:
            run.rejected(error)
        else:
            run.submitted(chunk, response)

    async def _poll(self, path: str, wait: int) -> Envelope:
        envelope: Envelope = (await self._held_poll(path, check.whole("wait", wait))).body
        return envelope

    async def _held_poll(self, path: str, wait: int) -> ApiResponse:
        headers = {"Prefer": f"wait={wait}"} if wait > 0 else {}
        return await self._connection.call("GET", path, headers=headers)

    async def _list(self, path: str, name: str, filters: Mapping[str, Any]) -> AsyncIterator[Any]:
        params = {"limit": 100, **filters}
        while True:
            page = await self._connection.call("GET", path, params=params)
            with reading(page):
                items = iter(page.body[name])
                params["cursor"] = page.body["next_cursor"]
            for item in items:
                yield item
            if params["cursor"] is None:
                return


def _given(
    since: datetime | None, until: datetime | None, **others: str | None
) -> dict[str, str]:
    """Returns the parameters that have a value."""
    given = {name: check.text(name, value) for name, value in others.items() if value is not None}
    if since is not None:
        given["since"] = check.moment("since", since)
    if until is not None:
        given["until"] = check.moment("until", until)
    return given


def _id(name: str, value: str) -> str:
    """Returns an id as a part of a path."""
    return quote(check.text(name, value), "")


def _batch_path(batch_id: str) -> str:
    return f"/api/v1/batch/{_id('batch_id', batch_id)}"


def _delivery_path(batch_id: str, delivery_id: str) -> str:
    return f"{_batch_path(batch_id)}/deliveries/{_id('delivery_id', delivery_id)}"
