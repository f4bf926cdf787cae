"""Rules that Schemathesis cannot read from the OpenAPI document."""

import hashlib
import itertools
import json
import os
import re

import schemathesis
from hypothesis import strategies as st

# Hosts under .example do not exist, so that no case causes a real delivery.
schemathesis.openapi.format(
    "uri", st.from_regex(r"https://[a-z][a-z0-9]{0,20}\.example(/[a-z0-9._~-]{0,20}){0,3}", fullmatch=True)
)


# Without workers, deliveries of cases stay pending, and only final deliveries can be resent. So every second resend
# uses one of these final deliveries, in turn.
with open(os.environ["DECIDED_FILE"], encoding="utf-8") as file:
    DECIDED = itertools.chain.from_iterable(({}, ids) for ids in itertools.cycle(json.load(file)))


@schemathesis.hook
def before_call(ctx, case, kwargs):
    # An id may come from any entry of an earlier response, so also from one whose id is null, for example from a grant in
    # the ledger. Such an id belongs to no path. Instead, the case gets a valid id that does not exist.
    for name, id in (case.path_parameters or {}).items():
        if id is None:
            case.path_parameters[name] = f"{name[:3]}_{'0' * 26}"
    if case.operation.label.endswith("/resend") and has_valid_ids(case):
        case.path_parameters.update(next(DECIDED))
    # A period ends after it begins, and a period of usage has at most 366 days, which a schema cannot express. So valid
    # cases have no `since` if they have an `until`, and the usage of valid cases is that of the current month.
    if case.meta and case.meta.generation.mode.is_positive:
        query = case.query or {}
        given = ("since", "until") if case.operation.label.endswith("/usage") else ("since",) if "until" in query else ()
        case.query = {name: value for name, value in query.items() if name not in given}
    headers = case.headers or {}
    # Waits are cut short, because waiting polls would take most of the time. test/api/prefer.test.ts tests waiting.
    if "wait" in str(headers.get("Prefer", "")):
        case.headers["Prefer"] = "wait=0"
    # The cases use live keys, with which a valid outcome is a 422 too. A schema cannot express this.
    if headers.get("Test-Outcome") in outcomes(case):
        del case.headers["Test-Outcome"]
    # A valid key belongs to one body, and is a 422 with another body, which a schema cannot express. So each body gets
    # its own key, and the same body gets the same key. Invalid keys are not changed.
    key = headers.get("Idempotency-Key")
    if isinstance(key, str) and is_valid(case, key):
        body = json.dumps(case.body, sort_keys=True, default=repr).encode("utf-8", "replace")
        quote = '"' if re.fullmatch('".+"', key) else ""
        case.headers["Idempotency-Key"] = f"{key[:200].rstrip(quote)}{hashlib.sha256(body).hexdigest()[:32]}{quote}"


def outcomes(case):
    return case.operation.schema.raw_schema["components"]["schemas"]["TestOutcome"]["enum"]


def has_valid_ids(case):
    parameters = case.operation.definition.raw.get("parameters", [])
    schemas = {parameter["name"]: parameter["schema"] for parameter in parameters}
    return all(re.search(schemas[name]["pattern"], str(id)) for name, id in (case.path_parameters or {}).items())


def is_valid(case, key):
    parameter = case.operation.schema.raw_schema["components"]["parameters"]["Idempotency-Key"]
    return re.search(parameter["schema"]["pattern"], key) is not None


@schemathesis.check
class EveryOperationSucceeds:
    """Fails if an operation never succeeds in a run, because such a run does not test it."""

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
    """Replaces `ensure_resource_availability`, which requires all headers of a poll to come from the submit."""

    def __init__(self):
        self.accepted = set()

    def after_response(self, ctx, response, case):
        is_json = "json" in response.headers.get("content-type", [""])[0]
        body = response.json() if response.status_code in (200, 202) and is_json else {}
        self.accepted.update((case.auth_identity, ids) for ids in shown(body, case))
        if response.status_code == 404 and (case.auth_identity, ids_of(case)) in self.accepted:
            raise AssertionError("404 for what was accepted before")


def ids_of(case):
    return tuple(id for _, id in sorted((case.path_parameters or {}).items()))


def shown(body, case):
    """Returns the ids of every path that exists according to a response."""
    yield from ((request["request_id"],) for request in body.get("requests", []))
    if "batch_id" in body:
        yield (body["batch_id"],)
    yield from ((*ids_of(case), delivery["id"]) for delivery in body.get("deliveries", []))
