from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import httpx

from ._pace import Pace
from .errors import EnrichmentError

# How long a failing call is retried, in seconds.
PATIENCE = 1800.0
# The same if the service has never responded. It is short, because then the address is most likely
# wrong.
_FIRST_PATIENCE = 15.0
# Statuses after which a retry may succeed. Retrying is safe: a GET changes nothing, and a retried
# submit has the same Idempotency-Key.
_WORTH_REPEATING = {408, 409, 429, 500, 502, 503, 504}
# Rejections of a resend that a retry does not change soon.
_REJECTED_RESENDS = {"delivery_pending", "resend_limited", "webhooks_suspended"}
# Time limit of one attempt in seconds. It is longer than the 55 seconds for which the service may
# hold a poll.
_ATTEMPT = 90.0
_LONGEST_PAUSE = 30.0
# Host names of this machine.
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]+){3}|::1")
# Paths of the service that people copy with its address.
_COPIED_PATH = re.compile(r"/(api|docs|openapi\.json|llms(-full)?\.txt)(?=/|$)")


class ApiResponse(NamedTuple):
    headers: Mapping[str, str]
    body: Any


class Connection:
    """Calls the API with one key, within the key's rate limit.

    It retries if an error may be temporary, and never earlier than `Retry-After` says.
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self.patience = patience
        self._pace = Pace()
        self._has_responded = False
        url = _checked_url(base_url or os.environ.get("NPI_EMAIL_URL", ""))
        key = _checked_key(api_key or os.environ.get("NPI_EMAIL_API_KEY", ""))
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=_ATTEMPT)

    def close(self) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        json: object = None,
    ) -> ApiResponse:
        """Sends a request, and returns the JSON of a response that is not an error."""
        begun = time.monotonic()
        tries = 0
        while True:
            sent_at = self._pace.turn()
            retry_after = None
            try:
                response = self._http.request(
                    method, path, headers=headers, params=params, json=json
                )
                self._has_responded = True
                self._pace.heed(response.headers, sent_at)
                retry_after = response.headers.get("retry-after")
                return _api_response_of(response)
            except httpx.RequestError as cause:
                reason = str(cause) or repr(cause)
                text = f"No response from {self._http.base_url}: {reason}. Check the address."
                error = EnrichmentError("unreachable", text)
                error.__cause__ = cause
            except EnrichmentError as refusal:
                error = refusal
            if not _is_temporary(error):
                raise error
            pause = _pause_after(retry_after, tries)
            patience = self.patience if self._has_responded else min(self.patience, _FIRST_PATIENCE)
            if time.monotonic() + pause > begun + patience:
                raise error
            time.sleep(pause)
            tries += 1


def _is_temporary(error: EnrichmentError) -> bool:
    if error.status is None:
        return True
    return error.status in _WORTH_REPEATING and error.code not in _REJECTED_RESENDS


def _pause_after(retry_after: str | None, tries: int) -> float:
    """Returns the seconds to wait before a retry.

    A random time is added so that clients don't all retry at the same moment.
    """
    pause = min(_LONGEST_PAUSE, 0.5 * 2.0**tries)
    if retry_after and retry_after.isdecimal():
        pause = float(retry_after)
    return pause * random.uniform(1, 1.25)


def _api_response_of(response: httpx.Response) -> ApiResponse:
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.is_success and isinstance(body, dict):
        return ApiResponse(response.headers, body)
    _refuse(response, body)


def _refuse(response: httpx.Response, body: Any) -> NoReturn:
    """Raises the error of a response, with the text of its body."""
    status = response.status_code
    code = "not_the_api" if response.is_success else f"http_{status}"
    text = (
        f"{response.url.host} returned {status}, but not a response of the API."
        " Check the address of the service."
    )
    problem = body if isinstance(body, dict) else {}
    detail = problem.get("detail")
    if isinstance(detail, str) and "code" in problem:
        code = problem["code"]
        text = detail
    elif isinstance(detail, list) and detail:
        code = "request_invalid"
        text = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail)
    else:
        problem = {}
    raise EnrichmentError(
        code,
        text,
        status=status,
        problem=problem or None,
        request_id=response.headers.get("x-request-id"),
    )


def _checked_url(base_url: str) -> str:
    """Returns the address of the service. It must not send the key unencrypted over a network."""
    problem = _problem_of(base_url)
    if problem:
        raise EnrichmentError("base_url_unusable", f"The address of the service {problem}")
    return base_url


def _problem_of(base_url: str) -> str | None:
    """Returns what is wrong with an address and what to do, or None for a usable one."""
    if base_url == "":
        return "is missing. Set NPI_EMAIL_URL or pass base_url."
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        return "is not a URL. Use one that begins with https://."
    if url.scheme == "http" and not _LOOPBACK.fullmatch(url.host):
        return "would send your API key unencrypted. Use one that begins with https://."
    copied = _COPIED_PATH.search(url.path)
    if copied:
        return f"contains {copied[0]}. Leave out that part and everything after it."
    if re.search("[?#@]", base_url):
        return "contains a ?, a #, or an @. Leave out that part."
    return None


def _checked_key(api_key: str) -> str:
    if api_key == "":
        problem = "is missing. Set NPI_EMAIL_API_KEY or pass api_key."
    elif re.fullmatch(r"[\x21-\x7e]+", api_key):
        return api_key
    else:
        problem = "contains other characters than a key. Copy it again."
    raise EnrichmentError("api_key_unusable", f"The API key {problem}")
