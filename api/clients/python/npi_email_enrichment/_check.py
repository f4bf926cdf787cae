from __future__ import annotations

from collections.abc import Iterable

from ._arguments import listed, text
from ._enrich import PACING
from ._exchange import ApiResponse, reading
from .types import Checked, CheckReport, CheckResult, CheckTotals, MaxCredits

# The most NPIs that the service checks in one request.
_CHUNK = PACING["npisPerCheck"]


class Check:
    """A check of any number of NPIs, without the sending.

    Each different NPI is sent once, because the maximum of the credits counts it once.
    """

    def __init__(self, npis: Iterable[str]) -> None:
        self._given = [text(f"NPI {number}", npi) for number, npi in enumerate(listed(npis), 1)]
        self._checked: dict[str, Checked] = {}
        self._results: dict[str, CheckResult] = {}
        self._max_credits: MaxCredits = {"any": 0, "professional": 0, "personal": 0}

    def chunks(self) -> list[list[str]]:
        different = list(dict.fromkeys(self._given))
        return [different[first : first + _CHUNK] for first in range(0, len(different), _CHUNK)]

    def add(self, chunk: list[str], response: ApiResponse) -> None:
        """Adds the response to a chunk."""
        with reading(response):
            for npi, one in zip(chunk, response.body["data"], strict=True):
                self._checked[npi] = one
                self._results[npi] = one["result"]
            most = response.body["max_credits"]
            self._max_credits["any"] += most["any"]
            self._max_credits["professional"] += most["professional"]
            self._max_credits["personal"] += most["personal"]

    def report(self) -> CheckReport:
        results = [self._results[npi] for npi in self._given]
        totals: CheckTotals = {
            "lookup": results.count("lookup"),
            "free_repeat": results.count("free_repeat"),
            "not_an_npi": results.count("not_an_npi"),
            "organization": results.count("organization"),
            "deactivated": results.count("deactivated"),
        }
        data = [self._checked[npi] for npi in self._given]
        return {"data": data, "totals": totals, "max_credits": self._max_credits}
