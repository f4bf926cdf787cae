from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class EnrichmentError(Exception):
    """An error from the API or from this package. Its message says what to do.

    Every exception of this package has this class, so that your program can handle it in one
    place. It can be pickled and copied, as worker processes need.
    """

    code: str
    """A stable code: one of the API, or one of this package."""
    message: str
    """What is wrong and what to do."""
    status: int | None
    """The HTTP status, or None if the service sent no response."""
    problem: Mapping[str, Any] | None
    """The error body of the API, if there is one."""
    request_id: str | None
    """The `X-Request-Id` of the response. Quote it to support."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        problem: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        # Pickle calls the class with the arguments that Exception gets here, and then sets the
        # attributes.
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status
        self.problem = problem
        self.request_id = request_id

    def __str__(self) -> str:
        return self.message
