"""Says of each line of stdin, a delivery as JSON, what the public Standard Webhooks library for Python says of it."""

import json
import sys
from datetime import datetime, timezone

from standardwebhooks import Webhook, WebhookVerificationError

for line in sys.stdin:
    given = json.loads(line)
    webhook = Webhook(given["secret"])
    if "sign" in given:
        at = datetime.fromtimestamp(given["sign"]["timestamp"], tz=timezone.utc)
        print(webhook.sign(given["sign"]["id"], at, given["body"]))
        continue
    try:
        webhook.verify(given["body"], given["headers"], json_parse=False)
        print("right")
    except WebhookVerificationError as error:
        print(error)
