"""Finds verified email addresses of US healthcare providers by NPI."""

from ._client import Client
from ._enrich import PRICES, Enrichment, Progress, enrich
from ._webhooks import verify_webhook
from .errors import EnrichmentError
from .types import (
    Accepted,
    Batch,
    Credits,
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
    "Batch",
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
