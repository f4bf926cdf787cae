from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
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
    key = _key_of(secret)
    content = _content_of(body)
    given = _signing_headers(headers)
    timestamp = given["webhook-timestamp"]
    # Anyone can send a number that is too long to compare.
    if not re.fullmatch("[0-9]{1,12}", timestamp):
        raise _unverified("Its webhook-timestamp is not a number of seconds")
    if abs(time.time() - int(timestamp)) > _TOLERANCE:
        raise _unverified("Its webhook-timestamp is not within 5 minutes of this clock")
    signed = f"{given['webhook-id']}.{timestamp}.".encode() + content
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(digest)
    signatures = given["webhook-signature"].split(" ")
    if not any(hmac.compare_digest(one.encode(), expected) for one in signatures):
        raise _unverified("Its signature does not match the secret and the unparsed body")
    try:
        envelope: Envelope = json.loads(content)
    except (ValueError, RecursionError):
        raise _unverified("Its body is not JSON") from None
    return envelope


def _content_of(body: object) -> bytes:
    if isinstance(body, (bytes, bytearray)):
        return bytes(body)
    try:
        if isinstance(body, str):
            return body.encode()
    except UnicodeEncodeError:
        pass
    raise EnrichmentError(
        "webhook_unverified",
        "The body is not the text or the bytes that arrived. Pass the body before your framework"
        " parses it, because its signature is over the unparsed body.",
    )


def _signing_headers(headers: object) -> dict[str, str]:
    """Returns the three headers with which a webhook is signed."""
    try:
        pairs = list(headers.items())  # type: ignore[attr-defined]
        given = {name.lower(): value for name, value in pairs if isinstance(name, str)}
    except (AttributeError, TypeError, ValueError):
        text = "The headers are not a dict. Pass all headers of the webhook by their names."
        raise EnrichmentError("webhook_unverified", text) from None
    signing = {}
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        value = given.get(name)
        if not isinstance(value, str) or value == "":
            raise _unverified(f"It has no {name}, or you did not pass all its headers")
        if not value.isascii():
            raise _unverified(f"Its {name} contains other characters than ours")
        signing[name] = value
    return signing


def _key_of(secret: object) -> bytes:
    key = b""
    if isinstance(secret, str):
        try:
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            pass
    if key == b"":
        raise EnrichmentError(
            "webhook_unverified", "The secret is not complete. Copy it again, with whsec_."
        )
    return key


def _unverified(reason: str) -> EnrichmentError:
    return EnrichmentError("webhook_unverified", f"The webhook is not from us. {reason}.")
