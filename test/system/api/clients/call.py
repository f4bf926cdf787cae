"""Calls the Python package with the arguments on stdin, and prints the result or the error as JSON."""

import dataclasses
import json
import sys

import npi_email_enrichment as package

given = json.load(sys.stdin)
progress = []


def call():
    if "webhook" in given:
        return {"envelope": package.verify_webhook(**given["webhook"])}
    enriched = package.enrich(**given, on_progress=progress.append)
    return dataclasses.asdict(enriched)


try:
    result = call()
except package.EnrichmentError as error:
    result = {"error": {"message": str(error), **vars(error)}}
result["progress"] = [dataclasses.asdict(one) for one in progress]
print(json.dumps(result))
