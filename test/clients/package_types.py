"""Compares the generated types of the package with the schemas of the OpenAPI document."""

import collections.abc
import json
import types as builtin
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from npi_email_enrichment import types

SCHEMAS: dict[str, Any] = json.loads(Path("openapi.json").read_text())["components"]["schemas"]
NAMES = {"string": "str", "integer": "int", "boolean": "bool", "null": "NoneType", "object": "CustomData"}


def kinds_of_schema(schema: Any) -> set[str]:
    """Returns the names of the types, and the values, that a schema allows."""
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        return {name} if SCHEMAS[name]["type"] == "object" else kinds_of_schema(SCHEMAS[name])
    if "anyOf" in schema:
        return set().union(*map(kinds_of_schema, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return {repr(value) for value in schema.get("enum", [schema.get("const")])}
    if schema["type"] == "array":
        return {f"list of {sorted(kinds_of_schema(schema['items']))}"}
    allowed = schema["type"]
    return {NAMES[name] for name in ([allowed] if isinstance(allowed, str) else allowed)}


def kinds_of_hint(hint: Any) -> set[str]:
    """Returns the same for an annotation of the package."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Literal:
        return {repr(value) for value in arguments}
    if origin in (Union, builtin.UnionType):
        return set().union(*map(kinds_of_hint, arguments))
    if origin is list:
        return {f"list of {sorted(kinds_of_hint(arguments[0]))}"}
    return {"CustomData"} if origin is collections.abc.Mapping else {hint.__name__}


def fields_of_schema(schema: Any) -> dict[str, tuple[bool, set[str]]]:
    required = schema["required"]
    fields = schema["properties"].items()
    return {name: (name in required, kinds_of_schema(field)) for name, field in fields}


def fields_of_type(kind: Any) -> dict[str, tuple[bool, set[str]]]:
    required = kind.__required_keys__
    hints = get_type_hints(kind).items()
    return {name: (name in required, kinds_of_hint(hint)) for name, hint in hints}


for name, schema in SCHEMAS.items():
    kind = getattr(types, name, None)
    if is_typeddict(kind):
        assert fields_of_type(kind) == fields_of_schema(schema), name
    else:
        assert kind is not None and kinds_of_hint(kind) == kinds_of_schema(schema), name
