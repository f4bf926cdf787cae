"""The package that the API serves: its operations, errors, and the verification of webhooks."""

import asyncio
import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable
from unittest.mock import patch

from npi_email_enrichment import (
    AsyncClient,
    Client,
    EnrichmentError,
    Envelope,
    WebhookTarget,
    enrich,
    verify_webhook,
)
from settings import API_KEY, BASE_URL, BUSY_KEY, FOUND, NOT_FOUND, POOR_KEY, UNKNOWN, WEBHOOK_URL

# NPI_EMAIL_URL and NPI_EMAIL_API_KEY have the same values.
client = Client(base_url=BASE_URL, api_key=API_KEY)


def completed(batch_id: str) -> Envelope:
    while True:
        envelope = client.get_batch(batch_id, wait=55)
        if envelope["batch"]["status"] == "completed":
            return envelope


def error_of(call: Callable[[], object]) -> EnrichmentError:
    try:
        call()
    except EnrichmentError as error:
        assert str(error) != "" and error.request_id is not None
        return error
    raise AssertionError("no error")


begun = datetime.now(timezone.utc)
enriched = enrich([FOUND, NOT_FOUND, FOUND], type="professional", max_credits=2)
assert (enriched.completed, enriched.not_found, enriched.credits_used) == (1, 1, 1)
assert [result["status"] for result in enriched.results] == ["completed", "not_found", "completed"]
assert enriched.results[0]["email_type"] == "professional"

single = client.submit_single(FOUND, idempotency_key="order-1")
assert client.submit_single(FOUND, idempotency_key="order-1") == single
alone = client.get_request(single["requests"][0]["request_id"], wait=55)
assert alone["data"][0]["replayed"]
assert alone["webhook"] is None

webhook: WebhookTarget = {"url": WEBHOOK_URL, "mode": "batch"}
order = {"order": 17}
bulk = client.submit_bulk([FOUND, NOT_FOUND], webhook=webhook, custom_data=order)
both = completed(bulk["batch_id"])
assert both["custom_data"] == order
assert both["webhook"] is not None and both["webhook"]["mode"] == "batch"

batches = list(client.batches(npi=FOUND, since=begun, status="completed"))
assert [batch["id"] for batch in batches][:2] == [bulk["batch_id"], single["batch_id"]]
assert list(client.batches(until=begun)) == []

[delivery] = client.deliveries(bulk["batch_id"])
while delivery["status"] == "pending":
    time.sleep(0.2)
    delivery = client.get_delivery(bulk["batch_id"], delivery["id"])
assert delivery["attempts"][0]["status_code"] == 200
assert client.get_delivery(bulk["batch_id"], delivery["id"], before=1)["attempts"] == []
assert client.resend(bulk["batch_id"], delivery["id"])["status"] == "pending"
assert delivery["id"] in [one["id"] for one in client.all_deliveries(since=begun)]
assert client.resend_failed(datetime.now(timezone.utc)) == {"resent": 0, "more": False}

assert client.credits()["used"] == 1
reasons = [entry["reason"] for entry in client.ledger()]
assert client.usage(since=begun, by="type")["total"]["found"] > 0
assert reasons.count("charge") == 1 and reasons[-1] == "grant"

poor = error_of(lambda: enrich([FOUND], api_key=POOR_KEY))
assert (poor.code, poor.status) == ("insufficient_credits", 402)
assert poor.problem is not None and poor.problem["shortfall"] == 1

assert error_of(lambda: client.get_batch(UNKNOWN)).code == "batch_not_found"
assert "without spaces" in str(error_of(lambda: client.submit_single(f" {FOUND}")))

busy = Client(base_url=BASE_URL, api_key=BUSY_KEY, patience=0)
assert error_of(busy.credits).code == "rate_limited"



checked = client.check([FOUND, "2000000011", FOUND])
assert [one["result"] for one in checked["data"]] == ["free_repeat", "not_an_npi", "free_repeat"]


async def use_async_client() -> None:
    async with AsyncClient() as same:
        assert (await same.check([FOUND, "2000000011", FOUND])) == checked
        run = await same.enrich([FOUND], max_credits=1, on_progress=print)
        assert (run.completed, run.credits_used) == (1, 0)
        found = [batch["id"] async for batch in same.batches(npi=FOUND)]
        assert single["batch_id"] in found
        assert (await same.get_batch(single["batch_id"]))["data"] == alone["data"]


asyncio.run(use_async_client())

paths: dict[str, Any] = json.loads(Path("openapi.json").read_text())["paths"]
callbacks = paths["/api/v1/email"]["post"]["callbacks"]
signed = callbacks["result"]["{$request.body#/webhook/url}"]["post"]["x-test-vector"]
with patch("time.time", return_value=float(signed["webhook-timestamp"])):
    received = verify_webhook(signed["body"], signed, signed["secret"])
assert received["data"][0]["status"] == "completed"
