"""openapi-generator, `python`: one class per tag. Errors are raised with the response."""

from collections.abc import Callable
from datetime import datetime
from uuid import uuid4

import enrichment_api as generated
from settings import API_KEY, BASE_URL, BUSY_KEY, FOUND, NOT_FOUND, POOR_KEY, UNKNOWN, WEBHOOK_URL


def access_of(key: str) -> generated.ApiClient:
    # By default the client would repeat a poll with a 429 after its Retry-After.
    return generated.ApiClient(generated.Configuration(host=BASE_URL, access_token=key, retries=0))


access = access_of(API_KEY)
submits = generated.SubmitApi(access)
results = generated.ResultsApi(access)


def completed(batch_id: str) -> generated.Envelope:
    while True:
        envelope = results.get_batch(batch_id, prefer="wait=55")
        if envelope.batch.status == generated.BatchStatus.COMPLETED:
            return envelope


def refusal(ask: Callable[[], object]) -> generated.ApiException:
    try:
        response = ask()
    except generated.ApiException as error:
        return error
    raise AssertionError(f"not refused: {response}")


single = submits.submit_single(generated.SingleSubmit(npi=FOUND))
alone = completed(single.batch_id)
assert alone.webhook is None
assert alone.custom_data is None

custom_data = {"order": 17, "lines": [{"sku": "a"}]}
bulk = submits.submit_bulk(
    generated.BulkSubmit(
        npis=[FOUND, NOT_FOUND],
        enrichment_email_type=generated.RequestedType.PROFESSIONAL,
        webhook=generated.WebhookTarget(url=WEBHOOK_URL, mode=generated.WebhookMode.BATCH),
        custom_data=custom_data,
    ),
    idempotency_key=str(uuid4()),
)
both = completed(bulk.batch_id)
assert both.custom_data == custom_data
assert isinstance(both.batch.created_at, datetime)
assert [(result.status, result.email_type) for result in both.data] == [
    (generated.RequestStatus.COMPLETED, generated.EmailType.PROFESSIONAL),
    (generated.RequestStatus.NOT_FOUND, None),
]

one = results.get_request(bulk.requests[0].request_id)
assert one.data[0].email_status == generated.EmailStatus.VALID

spelled_out = submits.submit_single(
    generated.SingleSubmit(
        npi=FOUND,
        enrichment_email_type=None,
        webhook=generated.WebhookTarget(url=WEBHOOK_URL, mode=None),
        custom_data=None,
    )
)
told = completed(spelled_out.batch_id)
assert told.webhook is not None and told.webhook.mode == generated.WebhookMode.REAL_MINUS_TIME

assert generated.CreditsApi(access).get_credits().used == 1

page = generated.DeliveriesApi(access).get_deliveries(bulk.batch_id, limit=1)
assert page.deliveries[0].request_id is None

of_the_poor = generated.SubmitApi(access_of(POOR_KEY))
poor = refusal(lambda: of_the_poor.submit_single(generated.SingleSubmit(npi=FOUND)))
assert isinstance(poor.data, generated.InsufficientCreditsProblem) and poor.data.shortfall == 1

unknown = refusal(lambda: results.get_batch(UNKNOWN))
assert isinstance(unknown.data, generated.NotFoundProblem) and unknown.data.code == "batch_not_found"

# This client does not send bodies that the document forbids.
unproven = generated.BulkSubmit.model_construct(npis=["x"])
invalid = refusal(lambda: submits.submit_bulk(unproven))
assert isinstance(invalid.data, generated.Invalid), invalid
assert [part.actual_instance for part in invalid.data.detail[0].loc] == ["body", "npis", 0]

busy = refusal(generated.CreditsApi(access_of(BUSY_KEY)).get_credits)
assert isinstance(busy.data, generated.RateLimitedProblem) and busy.data.code == "rate_limited"
