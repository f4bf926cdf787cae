"""The settings that test/clients.ts passes to each program of this folder."""

import os

BASE_URL = os.environ["BASE_URL"]
# API keys of an organization with credits, one without, and one over its rate limit.
API_KEY = os.environ["API_KEY"]
POOR_KEY = os.environ["POOR_KEY"]
BUSY_KEY = os.environ["BUSY_KEY"]
# A receiver that accepts every delivery.
WEBHOOK_URL = os.environ["WEBHOOK_URL"]

FOUND = "2000000010"
NOT_FOUND = "2000000044"
UNKNOWN = "bat_01jd9x6k2tf3r8t0z5q7w4m1ha"
