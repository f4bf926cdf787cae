"""The types of the API's JSON. They have the names and fields of the OpenAPI document.

The service may add fields and values at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypedDict

RequestedType = Literal["any", "professional", "personal"]
WebhookMode = Literal["real-time", "batch"]
BatchStatus = Literal["in-progress", "completed"]
RequestStatus = Literal["accepted", "in-progress", "completed", "not_found", "failed"]
TestOutcome = Literal[
    "professional",
    "personal",
    "found",
    "stored",
    "replayed",
    "slow",
    "greylisted",
    "not_found",
    "failed",
    "deadline",
]
EmailType = Literal["professional", "personal"]
EmailStatus = Literal["valid"]
DeliveryStatus = Literal["pending", "delivered", "failed", "none"]
UsageBy = Literal["day", "type"]
LedgerReason = Literal["grant", "adjustment", "hold", "charge", "release"]
AttemptReason = Literal[
    "redirect",
    "http_status",
    "body_timeout",
    "body_broken",
    "blocked_address",
    "blocked_by_operator",
    "unproven_host",
    "secret_unreadable",
    "dns_not_found",
    "dns_failed",
    "refused",
    "unreachable",
    "timeout_connect",
    "timeout_total",
    "reset",
    "closed",
    "tls_certificate",
    "tls_name",
    "tls_handshake",
    "not_http",
    "headers_too_large",
    "network",
]
CustomData = Mapping[str, object]


class _WebhookUrl(TypedDict):
    url: str


class WebhookTarget(_WebhookUrl, total=False):
    """The receiver of the results, an `https` URL. The default mode is `real-time`."""

    mode: WebhookMode | None


class AcceptedRequest(TypedDict):
    npi: str
    request_id: str
    poll_url: str


class Accepted(TypedDict):
    """The response to a submit. `requests` has one entry per NPI, in the given order."""

    batch_id: str
    status: BatchStatus
    requests: list[AcceptedRequest]


class Batch(TypedDict):
    id: str
    status: BatchStatus
    total: int
    completed_count: int
    created_at: str | None
    updated_at: str | None


class WebhookState(TypedDict):
    url: str | None
    mode: WebhookMode | None
    status: DeliveryStatus | None


class Usage(TypedDict):
    credits_used: int | None
    balance: int | None


class Result(TypedDict):
    """The result of one NPI. Without an email, the fields that begin with `email` are None."""

    request_id: str
    npi: str
    status: RequestStatus
    replayed: bool
    email_type: EmailType | None
    email: str | None
    email_last_validated: str | None
    email_status: EmailStatus | None


class Envelope(TypedDict):
    """The body of polls and webhook deliveries."""

    batch: Batch
    webhook: WebhookState | None
    custom_data: CustomData | None
    usage: Usage | None
    data: list[Result]


class Credits(TypedDict):
    balance: int
    total: int
    used: int


class LedgerEntry(TypedDict):
    created_at: str
    reason: LedgerReason
    amount: int
    balance_after: int
    request_id: str | None
    batch_id: str | None
    npi: str | None
    requested_type: RequestedType | None


class UsageTotal(TypedDict):
    found: int
    replayed: int
    not_found: int
    failed: int
    credits_charged: int


class UsageItem(UsageTotal):
    """The usage of one day, or of one requested type. The other one is None."""

    day: str | None
    requested_type: RequestedType | None


class UsageReport(TypedDict):
    since: str
    until: str
    by: UsageBy
    usage: list[UsageItem]
    total: UsageTotal


class DeliveryAttempt(TypedDict):
    n: int
    started_at: str
    duration_ms: int
    status_code: int | None
    reason: AttemptReason | None
    response_excerpt: str | None


class Delivery(TypedDict):
    id: str
    batch_id: str
    request_id: str | None
    npi: str | None
    status: DeliveryStatus
    created_at: str
    decided_at: str | None
    next_attempt_at: str | None
    attempts: list[DeliveryAttempt]


class Resent(TypedDict):
    resent: int
    more: bool
