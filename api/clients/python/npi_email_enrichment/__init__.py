"""Finds verified email addresses of US healthcare providers by NPI."""

from __future__ import annotations

from collections.abc import Iterable

from ._async_client import AsyncClient
from ._enrich import PRICES, Enrichment, OnProgress, Progress
from ._exchange import PATIENCE
from ._sync_client import Client
from ._webhooks import verify_webhook
from .errors import EnrichmentError
from .types import (
    Accepted,
    Batch,
    CheckReport,
    Credits,
    CustomData,
    Delivery,
    Envelope,
    LedgerEntry,
    RequestedType,
    Result,
    TestOutcome,
    UsageReport,
    WebhookTarget,
)

__all__ = [
    "PRICES",
    "Accepted",
    "AsyncClient",
    "Batch",
    "CheckReport",
    "Client",
    "Credits",
    "Delivery",
    "Enrichment",
    "EnrichmentError",
    "Envelope",
    "LedgerEntry",
    "Progress",
    "RequestedType",
    "Result",
    "TestOutcome",
    "UsageReport",
    "WebhookTarget",
    "enrich",
    "verify_webhook",
]


def enrich(
    npis: Iterable[str],
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    type: RequestedType = "any",
    webhook: WebhookTarget | None = None,
    custom_data: CustomData | None = None,
    max_credits: int | None = None,
    on_progress: OnProgress | None = None,
    patience: float = PATIENCE,
) -> Enrichment:
    """Finds the emails of any number of NPIs with a new client, as `Client.enrich` does.

    :param api_key: by default the variable NPI_EMAIL_API_KEY of the environment
    :param base_url: the address of the service, by default the variable NPI_EMAIL_URL
    :param patience: seconds for which a failing call is retried, and for which a batch is polled
        without a new result
    """
    with Client(api_key=api_key, base_url=base_url, patience=patience) as client:
        return client.enrich(
            npis,
            type=type,
            webhook=webhook,
            custom_data=custom_data,
            max_credits=max_credits,
            on_progress=on_progress,
        )
