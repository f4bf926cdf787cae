"""Reads Kubernetes manifests from stdin. Reports violations of their schemas, including unknown fields, and rights that
our pods must not have. Ends with 1 if there are any."""

import json
import os
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

VERSION = "1.34"
# The definitions of the Prometheus Operator's resources.
CRDS = Path(os.environ["CRDS"])
OTHERS = {"ScaledObject": json.loads(Path(__file__).with_name("scaledobject.json").read_text())}
POD = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def closed(schema):
    """Returns the schema without room for unknown fields, and without patterns, which are in Go's syntax."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items() if not isinstance(value, str) or key != "pattern"}
    if schema.get("type") == "object" and "properties" in schema:
        result.setdefault("additionalProperties", False)
    return result


for name in ("prometheusrules", "scrapeconfigs"):
    crd = yaml.safe_load((CRDS / f"monitoring.coreos.com_{name}.yaml").read_text())["spec"]
    for version in crd["versions"]:
        schema = closed(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        schema["properties"]["apiVersion"] = {"const": f"{crd['group']}/{version['name']}"}
        OTHERS[crd["names"]["kind"]] = schema


def problems(manifest: dict) -> list[str]:
    try:
        if manifest["kind"] in OTHERS:
            jsonschema.validate(manifest, OTHERS[manifest["kind"]])
        else:
            kubernetes_validate.validate(manifest, VERSION, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    spec = manifest.get("spec", {})
    pod = spec.get("jobTemplate", {"spec": spec})["spec"].get("template", {}).get("spec")
    return [] if pod is None else list(looseness(pod))


def looseness(pod: dict):
    if pod.get("securityContext") != POD:
        yield "the pod's securityContext is not the usual one"
    if pod.get("automountServiceAccountToken") is not False:
        yield "the pod has a token of Kubernetes"
    for container in pod["containers"]:
        if container.get("securityContext") != CONTAINER:
            yield "the container's securityContext is not the usual one"
        if "memory" not in container.get("resources", {}).get("limits", {}):
            yield "the container has no limit of memory"


found = 0
for document in yaml.safe_load_all(sys.stdin):
    for problem in problems(document):
        found += 1
        print(f"{document['kind']} {document['metadata']['name']}: {problem}")
sys.exit(min(found, 1))
