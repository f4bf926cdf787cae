from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any
from urllib.parse import quote

from ._connection import PATIENCE, Connection
from .types import (
    Accepted,
    Batch,
    BatchStatus,
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


class Client:
    """Calls each operation of the API with one key. Several threads may share a client.

    It stays within the key's rate limit, and retries safely. Each method raises EnrichmentError.
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
        self._connection = Connection(api_key, base_url, patience)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def submit_single(
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
        order = {"enrichment_email_type": type, "webhook": webhook, "custom_data": custom_data}
        return self._submit("/api/v1/email", {"npi": npi, **order}, idempotency_key, test_outcome)

    def submit_bulk(
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
        order = {"enrichment_email_type": type, "webhook": webhook, "custom_data": custom_data}
        body = {"npis": list(npis), **order}
        return self._submit("/api/v1/email/bulk", body, idempotency_key, test_outcome)

    def get_request(self, request_id: str, *, wait: int = 0) -> Envelope:
        """Returns one request.

        :param wait: seconds, at most 55, for which the service waits for the final result
        """
        return self._poll(f"/api/v1/email/{quote(request_id, '')}", wait)

    def get_batch(self, batch_id: str, *, wait: int = 0) -> Envelope:
        """Returns all requests of a submit.

        :param wait: seconds, at most 55, for which the service waits for the final results
        """
        return self._poll(f"/api/v1/batch/{quote(batch_id, '')}", wait)

    def batches(
        self,
        *,
        status: BatchStatus | None = None,
        npi: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[Batch]:
        """Yields your batches, newest first.

        :param since: only batches submitted at this time or later. It needs a time zone
        :param until: only batches submitted before this time. It needs a time zone
        """
        filters = _given(since, until, status=status, npi=npi)
        return self._list("/api/v1/batches", "batches", filters)

    def deliveries(self, batch_id: str) -> Iterator[Delivery]:
        """Yields the webhook deliveries of a batch, each with its newest 5 attempts."""
        return self._list(f"/api/v1/batch/{quote(batch_id, '')}/deliveries", "deliveries", {})

    def get_delivery(
        self, batch_id: str, delivery_id: str, *, before: int | None = None
    ) -> Delivery:
        """Returns one delivery with its newest 50 attempts.

        :param before: only attempts with a lower `n`
        """
        params = {} if before is None else {"before": before}
        delivery: Delivery = self._connection.call(
            "GET", _delivery_path(batch_id, delivery_id), params=params
        ).body
        return delivery

    def resend(self, batch_id: str, delivery_id: str) -> Delivery:
        """Sends a webhook delivery again."""
        path = f"{_delivery_path(batch_id, delivery_id)}/resend"
        delivery: Delivery = self._connection.call("POST", path).body
        return delivery

    def all_deliveries(
        self,
        *,
        status: DeliveryStatus | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[Delivery]:
        """Yields the webhook deliveries of all batches, newest first.

        :param since: only those submitted at this time or later. It needs a time zone
        :param until: only those submitted before this time. It needs a time zone
        """
        filters = _given(since, until, status=status)
        return self._list("/api/v1/deliveries", "deliveries", filters)

    def resend_failed(self, failed_since: datetime) -> Resent:
        """Sends the deliveries again that failed at this time or later, at most 500.

        :param failed_since: it needs a time zone
        """
        body = {"failed_since": failed_since.isoformat()}
        resent: Resent = self._connection.call("POST", "/api/v1/deliveries/resend", json=body).body
        return resent

    def credits(self) -> Credits:
        """Returns the credits of your organization."""
        credits: Credits = self._connection.call("GET", "/api/v1/credits").body
        return credits

    def ledger(
        self, *, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[LedgerEntry]:
        """Yields every movement of your credits, newest first.

        :param since: only movements at this time or later. It needs a time zone
        :param until: only movements before this time. It needs a time zone
        """
        return self._list("/api/v1/credits/ledger", "entries", _given(since, until))

    def usage(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: UsageBy = "day",
    ) -> UsageReport:
        """Returns the usage of whole UTC days, by default of the current month."""
        params = _given(since, until, by=by)
        usage: UsageReport = self._connection.call("GET", "/api/v1/usage", params=params).body
        return usage

    def _submit(
        self,
        path: str,
        body: Mapping[str, object],
        idempotency_key: str | None,
        test_outcome: TestOutcome | None,
    ) -> Accepted:
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if test_outcome is not None:
            headers["Test-Outcome"] = test_outcome
        accepted: Accepted = self._connection.call("POST", path, headers=headers, json=body).body
        return accepted

    def _poll(self, path: str, wait: int) -> Envelope:
        headers = {"Prefer": f"wait={wait}"} if wait > 0 else {}
        envelope: Envelope = self._connection.call("GET", path, headers=headers).body
        return envelope

    def _list(self, path: str, name: str, filters: Mapping[str, Any]) -> Iterator[Any]:
        params = {"limit": 100, **filters}
        while True:
            page = self._connection.call("GET", path, params=params).body
            yield from page[name]
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]


def _given(
    since: datetime | None, until: datetime | None, **others: str | None
) -> dict[str, str]:
    """Returns the parameters that have a value."""
    given: dict[str, str | None] = {
        "since": None if since is None else since.isoformat(),
        "until": None if until is None else until.isoformat(),
        **others,
    }
    return {name: value for name, value in given.items() if value is not None}


def _delivery_path(batch_id: str, delivery_id: str) -> str:
    return f"/api/v1/batch/{quote(batch_id, '')}/deliveries/{quote(delivery_id, '')}"
