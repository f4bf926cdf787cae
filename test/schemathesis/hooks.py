"""What Schemathesis cannot know from the OpenAPI document."""

import hashlib
import json
import re

import schemathesis
from hypothesis import strategies as st

# Hosts under .example do not exist: nothing that a case submits could ever be delivered to anyone.
schemathesis.openapi.format(
    "uri", st.from_regex(r"https://[a-z][a-z0-9]{0,20}\.example(/[a-z0-9._~-]{0,20}){0,3}", fullmatch=True)
)


@schemathesis.hook
def before_call(ctx, case, kwargs):
    headers = case.headers or {}
    # A poll that is told to wait does so: what test/prefer.test.ts covers would take the time of all else.
    if "wait" in str(headers.get("Prefer", "")):
        case.headers["Prefer"] = "wait=0"
    # A valid key is for one body: with another it is refused (422), which no schema can say. So each body gets a key of
    # its own, and the same body the same again. Invalid keys stay as they are.
    key = headers.get("Idempotency-Key")
    if isinstance(key, str) and is_valid(case, key):
        body = json.dumps(case.body, sort_keys=True, default=repr).encode("utf-8", "replace")
        quote = '"' if re.fullmatch('".+"', key) else ""
        case.headers["Idempotency-Key"] = f"{key[:200].rstrip(quote)}{hashlib.sha256(body).hexdigest()[:32]}{quote}"


def is_valid(case, key):
    parameter = case.operation.schema.raw_schema["components"]["parameters"]["Idempotency-Key"]
    return re.search(parameter["schema"]["pattern"], key) is not None


@schemathesis.check
class EveryOperationSucceeds:
    """A run in which an operation only ever refuses has tested nothing of it."""

    def __init__(self):
        self.statuses = {}

    def after_response(self, ctx, response, case):
        counts = self.statuses.setdefault(case.operation.label, {})
        counts[response.status_code] = counts.get(response.status_code, 0) + 1

    def after_run(self, ctx):
        print()
        for label, counts in sorted(self.statuses.items()):
            print(f"     {label}: " + ", ".join(f"{status} × {counts[status]}" for status in sorted(counts)))
        refused = [label for label, counts in self.statuses.items() if not any(200 <= s < 300 for s in counts)]
        assert not refused, f"never succeeded: {', '.join(sorted(refused))}"


@schemathesis.check
class WhatWasAcceptedIsFound:
    """`ensure_resource_availability` gives no verdict here: it wants every header of a poll to come from the submit."""

    def __init__(self):
        self.accepted = set()

    def after_response(self, ctx, response, case):
        if response.status_code == 202:
            body = response.json()
            ids = [body["batch_id"], *(request["request_id"] for request in body["requests"])]
            self.accepted.update((case.auth_identity, one) for one in ids)
        asked = {(case.auth_identity, one) for one in (case.path_parameters or {}).values() if isinstance(one, str)}
        if response.status_code == 404 and asked & self.accepted:
            raise AssertionError("404 for what was accepted before")
