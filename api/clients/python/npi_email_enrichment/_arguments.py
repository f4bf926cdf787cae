"""The checks of what a caller passes. They have the API's rules only where Python would fail."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime

import httpx

from .errors import EnrichmentError

# Host names of this machine.
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]+){3}|::1")
_LARGEST = 1e12
# Paths of the service that people copy with its address.
_COPIED_PATH = re.compile(r"/(api|docs|openapi\.json|llms(-full)?\.txt)(?=/|$)")


def checked_url(base_url: object) -> str:
    """Returns the address of the service. It must not send the key unencrypted over a network."""
    if isinstance(base_url, str):
        problem = _problem_of(base_url)
    else:
        problem = "is not a string. Pass one that begins with https://."
    if problem:
        raise EnrichmentError("base_url_unusable", f"The address of the service {problem}")
    return str(base_url)


def _problem_of(base_url: str) -> str | None:
    """Returns what is wrong with an address and what to do, or None for a usable one."""
    if base_url == "":
        return "is missing. Set NPI_EMAIL_URL or pass base_url."
    try:
        url = httpx.URL(base_url)
        host = url.host
    except (httpx.InvalidURL, ValueError):
        host = ""
    if not host or url.scheme not in ("http", "https"):
        return "is not a URL. Use one that begins with https://."
    if url.scheme == "http" and not _LOOPBACK.fullmatch(host):
        return "would send your API key unencrypted. Use one that begins with https://."
    copied = _COPIED_PATH.search(url.path)
    if copied:
        return f"contains {copied[0]}. Leave out that part and everything after it."
    if re.search("[?#@]", base_url):
        return "contains a ?, a #, or an @. Leave out that part."
    return None


def checked_key(api_key: object) -> str:
    if api_key == "":
        problem = "is missing. Set NPI_EMAIL_API_KEY or pass api_key."
    elif isinstance(api_key, str) and re.fullmatch(r"[\x21-\x7e]+", api_key):
        return api_key
    else:
        problem = "contains other characters than a key. Copy it again."
    raise EnrichmentError("api_key_unusable", f"The API key {problem}")


def checked_npis(npis: object) -> list[str]:
    """Returns the NPIs of a run, each of 10 digits."""
    given = listed(npis)
    for number, npi in enumerate(given, 1):
        if not isinstance(npi, str) or not re.fullmatch("[0-9]{10}", npi):
            raise EnrichmentError("npi_invalid", f"NPI {number} is not a string of 10 digits.")
    return given


def listed(npis: object) -> list[str]:
    if isinstance(npis, (str, bytes, Mapping)) or not isinstance(npis, Iterable):
        raise _invalid("npis", 'a list of strings, such as ["2000000010"]')
    return list(npis)


def text(name: str, value: object) -> str:
    # A lone surrogate cannot be sent.
    if not isinstance(value, str) or re.search("[\ud800-\udfff]", value):
        raise _invalid(name, "a string of Unicode characters")
    return value


def header(name: str, value: object) -> str:
    """Returns a value for a header of the request."""
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]+", value):
        raise _invalid(name, "a string of ASCII characters without spaces")
    return value


def whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _invalid(name, "a whole number")
    return value


def number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _invalid(name, "a number")
    # NaN is not equal to itself, and Python cannot compute with very large numbers and a clock.
    if value != value or _LARGEST < abs(value) < math.inf:
        raise _invalid(name, "a number of usual size")
    return value


def moment(name: str, value: object) -> str:
    """Returns a time as the API takes it."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise _invalid(name, "a datetime with a time zone, such as datetime.now(timezone.utc)")
    return value.isoformat()


def order(type: object, webhook: object, custom_data: object) -> dict[str, object]:
    """Returns the fields of a submit except its NPIs."""
    text("type", type)
    if webhook is not None and not isinstance(webhook, Mapping):
        raise _invalid("webhook", 'a dict, such as {"url": "https://receiver.example/hook"}')
    if custom_data is not None and not isinstance(custom_data, Mapping):
        raise _invalid("custom_data", 'a dict, such as {"order": 17}')
    fields = {"enrichment_email_type": type, "webhook": webhook, "custom_data": custom_data}
    encoded(fields)
    return fields


def encoded(body: Mapping[str, object]) -> bytes:
    """Returns a body as JSON."""
    try:
        compact = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return compact.encode()
    except (TypeError, ValueError, RecursionError) as cause:
        reason = str(cause) or repr(cause)
        problem = f"An argument cannot be sent as JSON: {reason}. Pass text, numbers, and dicts of them."
        raise EnrichmentError("argument_invalid", problem) from cause


def _invalid(name: str, expected: str) -> EnrichmentError:
    return EnrichmentError("argument_invalid", f"{name} is not {expected}.")
