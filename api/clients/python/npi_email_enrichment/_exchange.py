"""The rules of a call of the API, without the sending and the waiting."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.request import getproxies

import httpx

from ._arguments import checked_key, checked_url, number
from ._pace import Pace
from .errors import EnrichmentError

# How long a failing call is retried, in seconds.
PATIENCE = 1800.0
# The same if the service has never responded. It is short, because then the address is most likely
# wrong.
_FIRST_PATIENCE = 15.0
# Statuses after which a retry may succeed. A retried GET changes nothing, and a retried submit has
# the same Idempotency-Key. A retried resend may send a webhook twice, which receivers must expect.
_WORTH_REPEATING = {408, 409, 429, 500, 502, 503, 504}
# Rejections of a resend that a retry does not change soon.
_REJECTED_RESENDS = {"delivery_pending", "resend_limited", "webhooks_suspended"}
# Time limit of one attempt in seconds. It is longer than the 55 seconds for which the service may
# hold a poll.
ATTEMPT = 90.0
# The longest pause in seconds that does not come from an error's `Retry-After`.
LONGEST_PAUSE = 30.0
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


class ApiResponse(NamedTuple):
    response: httpx.Response
    body: Any


class Session:
    """What the calls with one key have in common."""

    def __init__(self, api_key: str | None, base_url: str | None, patience: float) -> None:
        self.url = checked_url(base_url or os.environ.get("NPI_EMAIL_URL", ""))
        key = checked_key(api_key or os.environ.get("NPI_EMAIL_API_KEY", ""))
        self.patience = number("patience", patience)
        self.headers = {"Authorization": f"Bearer {key}"}
        self.pace = Pace()
        self.has_responded = False


class Exchange:
    """One call with its retries.

    A call is retried if its error may be temporary, and never earlier than `Retry-After` says.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begun = time.monotonic()
        self._tries = 0
        self._sent_at = 0.0
        self._retry_after: float | None = None

    def pause_before(self) -> float:
        """Returns the seconds until the rate limit allows a request, or 0 and counts it."""
        pause = self._session.pace.pause()
        self._sent_at = time.monotonic()
        self._retry_after = None
        return pause

    def check_time(self) -> None:
        """Raises an error if the body of a response arrives too slowly.

        The timeout of httpx limits each read, but not their sum.
        """
        if time.monotonic() > self._sent_at + ATTEMPT:
            raise httpx.ReadTimeout("The body of the response is not complete.")

    def result_of(self, response: httpx.Response, received: bytearray) -> ApiResponse:
        """Returns the JSON of a response, or raises the error in it."""
        self._session.has_responded = True
        self._session.pace.heed(response.headers, self._sent_at)
        self._retry_after = retry_after(response)
        return _api_response_of(response, received)

    def pause_after(self, cause: Exception) -> float:
        """Returns the seconds to wait before a retry, or raises the error if a retry is no use.

        A random time is added so that clients don't all retry at the same moment.
        """
        error = cause
        if not isinstance(cause, EnrichmentError):
            error = _error_without_response(cause, self._session.url)
            error.__cause__ = cause
        if not _is_temporary(cause):
            raise error
        # The exponent is limited, because a float overflows at 2**1024.
        pause = min(LONGEST_PAUSE, 0.5 * 2.0 ** min(self._tries, 6))
        if self._retry_after is not None:
            pause = self._retry_after
        pause *= random.uniform(1, 1.25)
        patience = self._session.patience
        if not self._session.has_responded:
            patience = min(patience, _FIRST_PATIENCE)
        if time.monotonic() + pause > self._begun + patience:
            raise error
        self._tries += 1
        return pause


def _is_temporary(cause: Exception) -> bool:
    if isinstance(cause, EnrichmentError):
        return cause.status in _WORTH_REPEATING and cause.code not in _REJECTED_RESENDS
    if isinstance(cause, (httpx.LocalProtocolError, httpx.UnsupportedProtocol)):
        return False
    if isinstance(_system_error(cause), ssl.SSLCertVerificationError):
        return False
    return isinstance(cause, httpx.TransportError)


def retry_after(response: httpx.Response) -> float | None:
    """Returns the seconds in `Retry-After`, or None without a number in it."""
    value = response.headers.get("retry-after", "")
    return float(value) if re.fullmatch("[0-9]{1,6}", value) else None


def _api_response_of(response: httpx.Response, received: bytearray) -> ApiResponse:
    try:
        body = json.loads(received)
    except (ValueError, RecursionError):
        body = None
    if response.is_success and isinstance(body, dict):
        return ApiResponse(response, body)
    raise _error_in(response, body)


def _error_in(response: httpx.Response, body: object) -> EnrichmentError:
    """Returns the error of a response, with the text of its body."""
    request_id = response.headers.get("x-request-id")
    problem = body if isinstance(body, dict) else {}
    code = problem.get("code")
    text = problem.get("detail")
    if isinstance(text, list):
        code, text = _first_type_and_text(text)
    if not isinstance(code, str) or not isinstance(text, str):
        return _not_the_api(response)
    return EnrichmentError(
        code, text, status=response.status_code, problem=problem, request_id=request_id
    )


def _first_type_and_text(detail: list[Any]) -> tuple[object, str | None]:
    """Returns the type of the first wrong field of a 422, and the text about all of them.

    Both are None if the list is not from the API.
    """
    try:
        texts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail]
        return detail[0]["type"], "; ".join(texts)
    except (IndexError, KeyError, TypeError):
        return None, None


def _not_the_api(response: httpx.Response) -> EnrichmentError:
    status = response.status_code
    text = (
        f"{response.url.host} returned {status}, but not a response of the API."
        " Check the address of the service, and whether a proxy changed the response."
    )
    return EnrichmentError(
        "not_the_api" if response.is_success else f"http_{status}",
        text,
        status=status,
        request_id=response.headers.get("x-request-id"),
    )


@contextmanager
def reading(received: ApiResponse) -> Iterator[None]:
    """Raises EnrichmentError if the code inside misses a field of the response."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise _not_the_api(received.response) from cause


def _error_without_response(cause: Exception, url: str) -> EnrichmentError:
    """Returns the error for what httpx or Python raised instead of a response."""
    reason = str(cause) or repr(cause)
    if isinstance(cause, httpx.InvalidURL):
        text = f"An argument is too long for a URL: {reason}. Pass a shorter one."
        return EnrichmentError("argument_invalid", text)
    if isinstance(cause, (httpx.RequestError, UnicodeError, OSError)):
        return EnrichmentError("unreachable", _failure(cause, reason, url) + _proxy_hint(cause))
    text = (
        f"The request could not be sent: {reason}. Use a client only until it is closed, and an"
        " AsyncClient only in the event loop in which it was made."
    )
    return EnrichmentError("client_unusable", text)


def _failure(cause: Exception, reason: str, url: str) -> str:
    """Returns why the service sent no response, and what to do."""
    system_error = _system_error(cause)
    if isinstance(cause, httpx.TimeoutException):
        return f"{url} did not respond within {ATTEMPT:.0f} seconds. Check the address, or try later."
    if isinstance(system_error, ssl.SSLCertVerificationError):
        return (
            f"The certificate of {url} is not trusted: {reason}. If your network has its own"
            " certificate authority, set SSL_CERT_FILE to the file of its certificates."
        )
    if isinstance(cause, UnicodeError) or isinstance(system_error, socket.gaierror):
        return f"The name in {url} is not known: {reason}. Check the address."
    if isinstance(cause, httpx.DecodingError):
        return f"The response from {url} is damaged: {reason}. Check whether a proxy changed it."
    return f"No response from {url}: {reason}. Check the address."


def _proxy_hint(cause: Exception) -> str:
    names = " and ".join(_set_proxies())
    if not names or not isinstance(cause, httpx.TransportError):
        return ""
    return f" The proxy in {names} may be the reason. Correct it, or add the host to NO_PROXY."


def _system_error(error: BaseException | None) -> OSError | None:
    """Returns the error of the operating system or of TLS behind an error of httpx."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def using_environment() -> Iterator[None]:
    """Raises EnrichmentError if httpx cannot use the proxies or certificates of the environment."""
    try:
        yield
    except Exception as cause:
        raise EnrichmentError("environment_unusable", _environment_problem(cause)) from cause


def _environment_problem(cause: Exception) -> str:
    """Returns which variable httpx cannot use. httpx does not say it, so we try each."""
    for name, address in _set_proxies().items():
        try:
            httpx.HTTPTransport(verify=False, proxy=httpx.Proxy(address)).close()
        except ImportError:
            return f"The proxy in {name} needs a package: pip install httpx[socks]."
        # The reason is left out, because it may contain the password of the proxy.
        except Exception:
            return f"The proxy in {name} cannot be used. Write it as http://host:port."
    if isinstance(cause, OSError):
        names = " or ".join(name for name in _CERTIFICATES if os.environ.get(name))
        return (
            f"The file in {names or 'the package certifi'} cannot be used: {cause}. Set the"
            " variable to a readable file, or delete it."
        )
    return (
        f"The variable NO_PROXY cannot be used: {cause}. Separate names and addresses by commas, and"
        " write IPv6 addresses without brackets."
    )


def _set_proxies() -> dict[str, str]:
    """Returns the address of each proxy that httpx would use, by the name of its variable."""
    proxies = {}
    for scheme, address in getproxies().items():
        if scheme in ("http", "https", "all") and address:
            names = [f"{scheme}_proxy", f"{scheme}_PROXY".upper()]
            name = next((one for one in names if os.environ.get(one)), "the system's settings")
            proxies[name] = address if "://" in address else f"http://{address}"
    return proxies
