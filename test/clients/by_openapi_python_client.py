"""openapi-python-client: one function per operation. Responses, including errors, are distinguished by their type."""

from uuid import uuid4

import httpx
from enrichment import AuthenticatedClient
from enrichment.api.credits_ import get_credits
from enrichment.api.deliveries import get_deliveries
from enrichment.api.results import get_batch, get_request
from enrichment.api.submit import submit_bulk, submit_single
from enrichment.models import (
    Accepted,
    BatchStatus,
    BulkSubmit,
    Credits,
    CustomData,
    Deliveries,
    EmailType,
    Envelope,
    InsufficientCreditsProblem,
    Invalid,
    NotFoundProblem,
    NotFoundProblemCode,
    RateLimitedProblem,
    RateLimitedProblemCode,
    RequestStatus,
    SingleSubmit,
    RequestedType,
    WebhookMode,
    WebhookTarget,
)
from settings import API_KEY, BASE_URL, BUSY_KEY, FOUND, NOT_FOUND, POOR_KEY, UNKNOWN, WEBHOOK_URL


def client_of(token: str) -> AuthenticatedClient:
    return AuthenticatedClient(base_url=BASE_URL, token=token, timeout=httpx.Timeout(70))


client = client_of(API_KEY)


def completed(batch_id: str) -> Envelope:
    while True:
        envelope = get_batch.sync(batch_id, client=client, prefer="wait=55")
        assert isinstance(envelope, Envelope), envelope
        if envelope.batch.status == BatchStatus.COMPLETED:
            return envelope


single = submit_single.sync(client=client, body=SingleSubmit(npi=FOUND))
assert isinstance(single, Accepted), single
alone = completed(single.batch_id)
assert alone.webhook is None
assert alone.custom_data is None

# The results of a submit: at once if the response is a 200, and by polls after a 202.
PREFER = "wait=55, return=representation"
one_call = submit_single.sync(client=client, body=SingleSubmit(npi=FOUND), prefer=PREFER)
assert isinstance(one_call, Envelope), one_call
assert one_call.data[0].replayed
bulk_call = submit_bulk.sync(client=client, body=BulkSubmit(npis=[FOUND]), prefer=PREFER)
assert isinstance(bulk_call, Envelope), bulk_call
assert bulk_call.data[0].email_status == "valid"

custom_data = {"order": 17, "lines": [{"sku": "a"}]}
bulk = submit_bulk.sync(
    client=client,
    idempotency_key=str(uuid4()),
    body=BulkSubmit(
        npis=[FOUND, NOT_FOUND],
        enrichment_email_type=RequestedType.PROFESSIONAL,
        webhook=WebhookTarget(url=WEBHOOK_URL, mode=WebhookMode.BATCH),
        custom_data=CustomData.from_dict(custom_data),
    ),
)
assert isinstance(bulk, Accepted), bulk
both = completed(bulk.batch_id)
assert both.custom_data is not None and both.custom_data.to_dict() == custom_data
assert [(result.status, result.email_type) for result in both.data] == [
    (RequestStatus.COMPLETED, EmailType.PROFESSIONAL),
    (RequestStatus.NOT_FOUND, None),
]

one = get_request.sync(bulk.requests[0].request_id, client=client)
assert isinstance(one, Envelope)
assert one.data[0].email_status == "valid"

nulls = SingleSubmit(
    npi=FOUND,
    enrichment_email_type=None,
    webhook=WebhookTarget(url=WEBHOOK_URL, mode=None),
    custom_data=None,
)
spelled_out = submit_single.sync(client=client, body=nulls)
assert isinstance(spelled_out, Accepted), spelled_out
told = completed(spelled_out.batch_id)
assert told.webhook is not None and told.webhook.mode == WebhookMode.REAL_TIME

balance = get_credits.sync(client=client)
assert isinstance(balance, Credits) and balance.used == 1

page = get_deliveries.sync(bulk.batch_id, client=client, limit=1)
assert isinstance(page, Deliveries)
assert page.deliveries[0].request_id is None

poor = submit_single.sync(client=client_of(POOR_KEY), body=SingleSubmit(npi=FOUND))
assert isinstance(poor, InsufficientCreditsProblem) and poor.shortfall == 1

unknown = get_batch.sync(UNKNOWN, client=client)
assert isinstance(unknown, NotFoundProblem) and unknown.code == NotFoundProblemCode.BATCH_NOT_FOUND

invalid = submit_bulk.sync(client=client, body=BulkSubmit(npis=[]))
assert isinstance(invalid, Invalid) and invalid.detail[0].loc == ["body", "npis"]

busy = get_credits.sync_detailed(client=client_of(BUSY_KEY))
assert isinstance(busy.parsed, RateLimitedProblem)
assert busy.parsed.code == RateLimitedProblemCode.RATE_LIMITED
assert int(busy.headers["retry-after"]) > 0
