"""Calls the Python package with the arguments on stdin, and prints the result or the error as JSON.

The error is the one that another process would get, and `via` is the asynchronous client if the
arguments have it. `cases` are expressions that use the package, each with its environment.
"""

import asyncio
import dataclasses
import json
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from unittest.mock import patch

import npi_email_enrichment as package
from npi_email_enrichment import AsyncClient, Client, enrich, verify_webhook

given = json.load(sys.stdin)
progress = []


async def enrich_async(npis, api_key, base_url, patience, **options):
    async def save(one):
        await asyncio.sleep(0)
        progress.append(one)

    async with AsyncClient(api_key=api_key, base_url=base_url, patience=patience) as client:
        return await client.enrich(npis, **options, on_progress=save)


def call():
    if "webhook" in given:
        return {"envelope": verify_webhook(**given["webhook"])}
    if "cases" in given:
        return {"cases": [outcome_of(lambda: evaluate(**case)) for case in given["cases"]]}
    if given.pop("via", None) == "AsyncClient":
        return dataclasses.asdict(asyncio.run(enrich_async(**given)))
    return dataclasses.asdict(enrich(**given, on_progress=progress.append))


def evaluate(expression, variables):
    with patch.dict(os.environ, variables, clear=True):
        return {"value": repr(eval(expression))}


def outcome_of(function):
    try:
        return function()
    except package.EnrichmentError as raised:
        error = pickle.loads(pickle.dumps(raised))
        return {"error": {"message": str(error), **vars(error)}}


result = outcome_of(call)
result["progress"] = [dataclasses.asdict(one) for one in progress]
print(json.dumps(result))
