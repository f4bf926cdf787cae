from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from ._arguments import encoded
from ._exchange import ATTEMPT, ApiResponse, Exchange, Session, using_environment

# The rate limit bounds the number of connections. A second bound would let calls fail that only wait
# for a connection.
_LIMITS = httpx.Limits(max_keepalive_connections=20)


class AsyncConnection:
    """Calls the API with one key, within the key's rate limit."""

    def __init__(self, api_key: str | None, base_url: str | None, patience: float) -> None:
        self._session = session = Session(api_key, base_url, patience)
        self.patience = session.patience
        with using_environment():
            self._http = httpx.AsyncClient(
                base_url=session.url, headers=session.headers, timeout=ATTEMPT, limits=_LIMITS
            )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        json: Mapping[str, object] | None = None,
    ) -> ApiResponse:
        """Sends a request, and returns the JSON of a response that is not an error."""
        sent = dict(headers or {})
        content = None
        if json is not None:
            sent["Content-Type"] = "application/json"
            content = encoded(json)
        exchange = Exchange(self._session)
        while True:
            while (pause := exchange.pause_before()) > 0:
                await asyncio.sleep(pause)
            try:
                async with self._http.stream(
                    method, path, headers=sent, params=params, content=content
                ) as response:
                    received = bytearray()
                    async for part in response.aiter_bytes():
                        exchange.check_time()
                        received += part
                return exchange.result_of(response, received)
            except Exception as cause:
                pause = exchange.pause_after(cause)
            await asyncio.sleep(pause)
