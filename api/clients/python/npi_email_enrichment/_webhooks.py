from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterable
from typing import Protocol

from .errors import EnrichmentError
from .types import Envelope

# A webhook whose timestamp is further from now is rejected, in seconds.
_TOLERANCE = 300


class Headers(Protocol):
    """A dict, or the headers of a web framework."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def verify_webhook(body: bytes | str, headers: Headers, secret: str) -> Envelope:
    """Returns the content of a webhook, after checking that it is signed and at most 5 minutes old.

    It raises EnrichmentError `webhook_unverified` if the check fails. Then respond 400.

    :param body: the body exactly as received, not parsed
    :param secret: `whsec_…`
    """
    content = body.encode() if isinstance(body, str) else bytes(body)
    given = {name.lower(): value for name, value in headers.items()}
    webhook_id = given.get("webhook-id", "")
    timestamp = given.get("webhook-timestamp", "")
    if not timestamp.isdecimal():
        raise _unverified("It has no webhook-timestamp")
    if abs(time.time() - int(timestamp)) > _TOLERANCE:
        raise _unverified("Its webhook-timestamp is not within 5 minutes of this clock")
    signed = f"{webhook_id}.{timestamp}.".encode() + content
    digest = hmac.new(_key_of(secret), signed, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(digest)
    signatures = given.get("webhook-signature", "").split(" ")
    if not any(hmac.compare_digest(one.encode(), expected) for one in signatures):
        raise _unverified("Its signature does not match the secret and the unparsed body")
    envelope: Envelope = json.loads(content)
    return envelope


def _key_of(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if key == b"":
        raise EnrichmentError(
            "webhook_unverified", "The secret is not complete. Copy it again, with whsec_."
        )
    return key


def _unverified(reason: str) -> EnrichmentError:
    return EnrichmentError("webhook_unverified", f"The webhook is not from us. {reason}.")
