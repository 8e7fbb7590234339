"""Structural schemas: prune, default, validate, CEL (`docs/specs/operator.md` 6.4)."""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, cast

import celpy
import jsonschema
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError

from pavane_local.api.errors import Cause
from pavane_local.store import clone

Schema = Mapping[str, Any]
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
RULES = "x-kubernetes-validations"
STRUCTURAL = "x-pavane-structural"  # in the schema of definitions: this value is a schema itself
COMPILED_RULES = 1024  # kept compiled; the platform's definitions have far fewer
_INVALID = "Invalid value: {value}: {path} in body "
REASONS = {
    "required": ("FieldValueRequired", "Required value"),
    "enum": ("FieldValueNotSupported", "Unsupported value: {value}: supported values: {wanted}"),
    "type": ("FieldValueTypeInvalid", _INVALID + "must be of type {wanted}"),
    INT_OR_STRING: ("FieldValueTypeInvalid", _INVALID + "must be of type integer,string"),
    "minimum": ("FieldValueInvalid", _INVALID + "should be greater than or equal to {wanted}"),
    "maximum": ("FieldValueInvalid", _INVALID + "should be less than or equal to {wanted}"),
    "pattern": ("FieldValueInvalid", _INVALID + "should match '{wanted}'"),
    "maxLength": ("FieldValueTooLong", "Too long: may not be more than {wanted} bytes"),
    **dict.fromkeys(("maxItems", "maxProperties"), ("FieldValueTooMany", "Too many: must have at most {wanted} items")),
    LIST_TYPE: ("FieldValueDuplicate", "Duplicate value: {message}"),
}  # how a real server calls a violation of a keyword, and in which words; all others are `FieldValueInvalid`
_ENVIRONMENT = celpy.Environment()


def _quantity(text: Any) -> Any:
    if (found := re.fullmatch(r"(\d+(?:\.\d+)?)([mkKMGTPE]?)(i?)", text)) is None:
        raise CELEvalError(f"{text} is not a quantity")
    power = "m kMGTPE".index(found[2].replace("K", "k") or " ") - 1
    return Decimal(found[1]) * Decimal(1024 if found[3] else 1000) ** power


def _compare(one: Decimal, other: Decimal) -> celpy.celtypes.IntType:
    return celpy.celtypes.IntType((one > other) - (one < other))


@lru_cache(COMPILED_RULES)
def _program(rule: str) -> celpy.Runner:
    return _ENVIRONMENT.program(_ENVIRONMENT.compile(rule), {"quantity": _quantity, "compareTo": _compare})


def _check_type(validator: Any, kinds: Any, value: Any, schema: Schema) -> Iterator[Any]:
    kinds = ["integer", "string"] if kinds is True else kinds  # the keyword INT_OR_STRING says only that it is so
    if value is not None or not schema.get("nullable"):
        yield from jsonschema.Draft4Validator.VALIDATORS["type"](validator, kinds, value, schema)


def _check_structural(_validator: Any, _wanted: Any, value: Any, _schema: Schema) -> Iterator[Any]:
    # Not by JSON Schema itself: at each of hundreds of fields it asks a dozen questions, which took most of a start.
    yield from (jsonschema.ValidationError(message, path=path) for path, message in _unstructural(value, ()))


def _unstructural(schema: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield path and fault of all that is not structural: a type everywhere, no field described twice."""
    if not isinstance(schema, dict):
        yield path, f"must be an object: {json.dumps(schema)}"
        return
    if not schema.keys() & {"type", INT_OR_STRING, PRESERVE}:
        yield path, "must have a type"
    if schema.get("type") == "array" and "items" not in schema:
        yield path, "an array must have items"
    if "$ref" in schema or schema.keys() >= {"properties", "additionalProperties"}:
        yield path, "must have neither $ref nor both properties and additionalProperties"
    rules, parts = schema.get(RULES, []), schema.get("properties", {})
    if not isinstance(rules, list) or not isinstance(parts, dict):
        yield path, f"{RULES} must be a list, properties an object"
        return
    for index, rule in enumerate(rules):
        yield from (((*path, RULES, index), fault) for fault in _faults_of_rule(rule))
    for name, part in parts.items():
        yield from _unstructural(part, (*path, "properties", name))
    if "items" in schema:
        yield from _unstructural(schema["items"], (*path, "items"))
    if not isinstance(others := schema.get("additionalProperties", True), bool):
        yield from _unstructural(others, (*path, "additionalProperties"))


def _faults_of_rule(rule: Any) -> Iterator[str]:
    if not isinstance(rule, dict) or not isinstance(rule.get("rule"), str):
        yield "must be an object with a rule"
        return
    if rule.get("reason", "FieldValueInvalid") != "FieldValueInvalid" or rule.get("fieldPath"):
        yield "has a reason or fieldPath that is not supported"
    try:
        _program(rule["rule"])
    except CELParseError as error:
        yield f"compilation failed: {rule['rule']}: {error.args[0]}"


def _check_list(_validator: Any, kind: Any, value: Any, schema: Schema) -> Iterator[Any]:
    keys, seen = list_keys(schema), []
    for index, item in enumerate(value if isinstance(value, list) and kind != "atomic" else ()):
        told = {key: item[key] for key in keys if key in item} if keys and isinstance(item, dict) else item
        if told in seen:
            yield jsonschema.ValidationError(json.dumps(told), path=[index])
        seen.append(told)


Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft4Validator,
    {"type": _check_type, INT_OR_STRING: _check_type, STRUCTURAL: _check_structural, LIST_TYPE: _check_list},
)  # OpenAPI 3.0 schemas are draft 4 but for these


def join(path: str, step: str | int) -> str:
    """Return the field path one step deeper: `spec.list[0]`."""
    return f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}".removeprefix(".")


def child(schema: Schema, name: str) -> Schema:
    """Return the schema of a field, empty if nothing is said about it."""
    others = schema.get("additionalProperties")
    found: Schema = schema.get("properties", {}).get(name) or (others if isinstance(others, dict) else {})
    return found


def _children(schema: Schema, value: Any) -> Iterator[tuple[str | int, Schema]]:
    """Yield key or index and schema of every described part of a value."""
    if isinstance(value, dict):
        yield from ((name, part) for name in value if (part := child(schema, name)))
    elif isinstance(value, list) and "items" in schema:
        yield from ((index, schema["items"]) for index in range(len(value)))


def list_keys(schema: Schema) -> tuple[str, ...]:
    """Return the keys that tell the entries of a list map apart; none for other lists."""
    return tuple(schema.get("x-kubernetes-list-map-keys", ()))


def problems(schema: Schema, validator: Any, body: Any, old: Any) -> list[Cause]:
    """Return all that is wrong with an object; rules about what did not change since `old` are passed over."""
    causes = {cause for error in validator.iter_errors(body) for cause in _causes(error)}
    # As in a real server: rules assume that the shape is right.
    return sorted(causes, key=lambda cause: cause.field) or list(_broken_rules(schema, body, old, ""))


def prune(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Remove in place what the schema does not know; yields the paths removed."""
    if isinstance(value, dict) and not schema.get(PRESERVE) and not schema.get("additionalProperties"):
        for name in [name for name in value if name not in schema.get("properties", {})]:
            del value[name]
            yield join(path, name)
    for step, part in _children(schema, value):
        yield from prune(part, value[step], join(path, step))


def default(schema: Schema, value: Any) -> None:
    """Fill in defaults in place, also inside defaulted objects."""
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if value.get(name) is None and not (name in value and part.get("nullable")):
                value.pop(name, None)  # A null where none is allowed counts as nothing written.
                if "default" in part:
                    value[name] = clone(part["default"])
    for step, part in _children(schema, value):
        default(part, value[step])


def _causes(error: jsonschema.ValidationError) -> Iterator[Cause]:
    path = reduce(join, error.absolute_path, "")
    reason, words = REASONS.get(str(error.validator), ("FieldValueInvalid", "Invalid value: {message}"))
    wanted, given = cast("Any", error.validator_value), cast("Any", error.instance)
    if error.validator == "required":
        yield from (Cause(reason, words, join(path, name)) for name in wanted if name not in given)
        return
    wanted = ", ".join(map(json.dumps, wanted)) if isinstance(wanted, list) else wanted
    yield Cause(reason, words.format(value=json.dumps(given), wanted=wanted, path=path, message=error.message), path)


def _broken_rules(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Cause]:
    if value is None or value == old:
        return
    for rule in schema.get(RULES, ()):
        if ("oldSelf" not in rule["rule"] or old is not None) and (problem := _broken(rule, value, old)):
            yield Cause("FieldValueInvalid", f"Invalid value: {problem}", path or "<nil>")
    for step, part in _children(schema, value):
        yield from _broken_rules(part, value[step], _before(schema, value, old, step), join(path, step))


def _before(schema: Schema, value: Any, old: Any, step: str | int) -> Any:
    """Return what stood here before; entries of list maps are found by their keys, other entries have no past."""
    if isinstance(step, str):
        return old.get(step) if isinstance(old, dict) else None
    keys = list_keys(schema)
    if not keys or not isinstance(old, list):
        return None
    return next((each for each in old if all(each.get(key) == value[step].get(key) for key in keys)), None)


def _broken(rule: Mapping[str, Any], value: Any, old: Any) -> str | None:
    """Evaluate one rule; returns its message if it is broken."""
    try:
        known = {"self": json_to_cel(value)} | ({} if old is None else {"oldSelf": json_to_cel(old)})
        holds = bool(_program(rule["rule"]).evaluate(known))
    except CELEvalError as error:
        return f"rule {rule['rule']!r} cannot be evaluated: {error.args[0]}"
    return None if holds else rule.get("message") or f"failed rule: {rule['rule']}"
