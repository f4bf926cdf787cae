"""What test/clients.ts tells each program of this folder."""

import os

BASE_URL = os.environ["BASE_URL"]
# Of an organization with credits, of one without, and of one that has used up its rate.
API_KEY = os.environ["API_KEY"]
POOR_KEY = os.environ["POOR_KEY"]
BUSY_KEY = os.environ["BUSY_KEY"]
# Takes every delivery.
WEBHOOK_URL = os.environ["WEBHOOK_URL"]

FOUND = "2000000010"
NOT_FOUND = "2000000044"
UNKNOWN = "bat_01jd9x6k2tf3r8t0z5q7w4m1ha"
