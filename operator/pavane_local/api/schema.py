"""Structural schemas of custom resources: prune, default, validate, CEL (`docs/specs/operator.md` 6.4)."""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import celpy
import jsonschema
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.celtypes import IntType
from celpy.evaluation import CELEvalError

from pavane_local.api.errors import Cause

Schema = Mapping[str, Any]
PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
RULES = "x-kubernetes-validations"
OBJECT_FIELDS = ("apiVersion", "kind", "metadata")
"""Fields of every object, which the server itself describes."""
COMPILED_RULES = 1024
"""CEL programs kept compiled; the platform's definitions have far fewer."""
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_DECIMAL_SUFFIXES = {suffix: Decimal(1000) ** (place - 3) for place, suffix in enumerate("num kMGTPE")} | {
    "": Decimal(1)
}
_BINARY_SUFFIXES = {f"{suffix}i": Decimal(1024) ** (place + 1) for place, suffix in enumerate("KMGTPE")}


def quantity(text: str) -> Decimal:
    """Return the value of a Kubernetes quantity like `64Mi`, `100m` or `1e3`.

    Raises:
        ValueError: the text is no quantity.

    """
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is no quantity; write a number with an optional suffix such as m, k, Mi or Gi")
    number, suffix = match[1], match[2] or ""
    try:
        if suffix[:1] in "eE" and suffix[1:]:
            return Decimal(number + suffix)
        return Decimal(number) * (_BINARY_SUFFIXES.get(suffix) or _DECIMAL_SUFFIXES[suffix])
    except InvalidOperation:
        raise ValueError(f"{text!r} is no quantity") from None


class _Quantity:
    """A quantity inside CEL."""

    def __init__(self, value: Decimal) -> None:
        self.value = value


def _cel_quantity(text: Any) -> Any:
    try:
        return _Quantity(quantity(str(text)))
    except ValueError as error:
        return CELEvalError(str(error))


def _cel_compare(left: Any, right: Any) -> Any:
    return IntType((left.value > right.value) - (left.value < right.value))


@lru_cache(COMPILED_RULES)
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(
        environment.compile(rule), functions={"quantity": _cel_quantity, "compareTo": _cel_compare}
    )


def join(path: str, step: str | int) -> str:
    """Return the field path one step deeper: `spec.list[0]`."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def children(schema: Schema, value: Any) -> Iterator[tuple[str | int, Schema]]:
    """Yield key or index and schema of every described part of a value."""
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in value:
            if name in properties:
                yield name, properties[name]
            elif isinstance(others, dict):
                yield name, others
    elif isinstance(value, list) and "items" in schema:
        yield from ((index, schema["items"]) for index in range(len(value)))


class CustomSchema:
    """The schema of one custom resource version. Works on whole objects, in the order prune, default, problems."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._validator = jsonschema.Draft4Validator(_draft4(schema))

    def prune(self, body: dict[str, Any]) -> list[str]:
        """Remove in place what the schema does not know; returns the paths removed."""
        return list(_prune(self.schema, body, "", root=True))

    def default(self, body: dict[str, Any]) -> None:
        """Fill in defaults in place, also inside defaulted objects."""
        _default(self.schema, body)

    def problems(self, body: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
        """Return all that is wrong with an object; rules that compare with `oldSelf` need the object before."""
        causes = [cause for error in self._validator.iter_errors(body) for cause in _causes(error)]
        causes += _list_problems(self.schema, body, "")
        if causes:  # As a real server: rules assume that the shape is right.
            return sorted(set(causes), key=lambda cause: cause.field)
        return list(_rule_problems(self.schema, body, old, ""))


def _draft4(schema: Schema) -> dict[str, Any]:
    """Translate OpenAPI's `nullable` and `x-kubernetes-int-or-string` to plain JSON schema."""
    plain = {key: value for key, value in schema.items() if key not in ("default", "description", RULES)}
    if schema.get(INT_OR_STRING):
        plain["type"] = ["integer", "string"]
        plain.pop("anyOf", None)
    if schema.get("nullable") and "type" in plain:
        kinds = plain["type"] if isinstance(plain["type"], list) else [plain["type"]]
        plain["type"] = [*kinds, "null"]
    for key in ("properties", "patternProperties"):
        if key in plain:
            plain[key] = {name: _draft4(each) for name, each in plain[key].items()}
    for key in ("items", "additionalProperties", "not"):
        if isinstance(plain.get(key), dict):
            plain[key] = _draft4(plain[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in plain:
            plain[key] = [_draft4(each) for each in plain[key]]
    return plain


def _prune(schema: Schema, value: Any, path: str, *, root: bool = False) -> Iterator[str]:
    keep = schema.get(PRESERVE, False)
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in list(value):
            own = (root or schema.get("x-kubernetes-embedded-resource")) and name in OBJECT_FIELDS
            if not (own or keep or others or name in properties):
                del value[name]
                yield join(path, name)
    for step, part in children(schema, value):
        if not (root and step in OBJECT_FIELDS):
            yield from _prune(part, value[step], join(path, step))


def _default(schema: Schema, value: Any) -> None:
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            absent = name not in value or (value[name] is None and not part.get("nullable"))
            if absent and "default" in part:
                value[name] = json.loads(json.dumps(part["default"]))
            elif name in value and absent:
                del value[name]  # A real server drops a null where none is allowed, as if nothing had been written.
    for step, part in children(schema, value):
        _default(part, value[step])


def _text(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, dict | list) else json.dumps(value, separators=(",", ":"))


def _causes(error: jsonschema.ValidationError) -> Iterator[Cause]:
    path = ""
    for step in error.absolute_path:
        path = join(path, step)
    value: Any = error.instance
    limit: Any = error.validator_value
    rule = str(error.validator)
    if rule == "required":
        missing = [name for name in limit if name not in value]
        yield from (Cause("FieldValueRequired", "Required value", join(path, name)) for name in missing)
        return
    if rule == "enum":
        supported = ", ".join(_text(each) for each in limit)
        yield Cause("FieldValueNotSupported", f"Unsupported value: {_text(value)}: supported values: {supported}", path)
        return
    if rule == "maxLength":
        yield Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", path)
        return
    if rule in ("maxItems", "maxProperties"):
        yield Cause("FieldValueTooMany", f"Too many: {len(value)}: must have at most {limit} items", path)
        return
    exclusive = error.schema.get(f"exclusive{rule[:1].upper()}{rule[1:]}") if isinstance(error.schema, dict) else False
    kinds = limit if isinstance(limit, list) else [limit]
    said = {
        "minimum": f"should be greater than {'' if exclusive else 'or equal to '}{limit}",
        "maximum": f"should be less than {'' if exclusive else 'or equal to '}{limit}",
        "minLength": f"should be at least {limit} chars long",
        "minItems": f"should have at least {limit} items",
        "minProperties": f"should have at least {limit} properties",
        "multipleOf": f"should be a multiple of {limit}",
        "pattern": f"should match '{limit}'",
        "type": f"must be of type {' or '.join(str(kind) for kind in kinds)}: {_text(_type_name(value))}",
        "not": "must not validate the schema (not)",
        "uniqueItems": "shouldn't contain duplicates",
    }.get(rule, f"must validate the schema ({rule})")
    shown = _type_name(value) if rule == "type" else value
    yield Cause("FieldValueInvalid", f"Invalid value: {_text(shown)}: {path} in body {said}", path)


def _type_name(value: Any) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def list_keys(schema: Schema) -> tuple[str, ...]:
    """Return the keys that tell the entries of a list map apart."""
    return tuple(schema.get("x-kubernetes-list-map-keys", ()))


def _list_problems(schema: Schema, value: Any, path: str) -> Iterator[Cause]:
    kind = schema.get("x-kubernetes-list-type")
    if isinstance(value, list) and kind in ("set", "map"):
        seen = set()
        for index, item in enumerate(value):
            keys = (
                {key: item.get(key) for key in list_keys(schema)} if kind == "map" and isinstance(item, dict) else item
            )
            told = json.dumps(keys, sort_keys=True)
            if told in seen:
                yield Cause("FieldValueDuplicate", f"Duplicate value: {_text(keys)}", join(path, index))
            seen.add(told)
    for step, part in children(schema, value):
        yield from _list_problems(part, value[step], join(path, step))


def _rule_problems(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Cause]:
    for rule in schema.get(RULES, ()):
        if ("oldSelf" in rule["rule"] and old is None) or value is None:
            continue
        if problem := _broken(rule, value, old):
            field = path + rule.get("fieldPath", "")
            reason = rule.get("reason", "FieldValueInvalid")
            shown = "Forbidden" if reason == "FieldValueForbidden" else f"Invalid value: {_text(_type_name(value))}"
            yield Cause(reason, f"{shown}: {problem}", field.removeprefix(".") or "<nil>")
    for step, part in children(schema, value):
        yield from _rule_problems(part, value[step], _before(schema, value, old, step), join(path, step))


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
        activation = {"self": json_to_cel(value)}
        if old is not None:
            activation["oldSelf"] = json_to_cel(old)
        holds = bool(_program(rule["rule"]).evaluate(activation))
    except CELEvalError as error:
        return f"rule {rule['rule']!r} cannot be evaluated: {error.args[0]}"
    return None if holds else rule.get("message") or f"failed rule: {rule['rule']}"


def structural_problems(schema: Schema, path: str) -> Iterator[Cause]:
    """Yield what makes a schema not structural, or its rules unusable; `path` names the schema in the definition."""
    if "type" not in schema and not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
        yield Cause(
            "FieldValueRequired", "Required value: must not be empty for specified object fields", f"{path}.type"
        )
    if "properties" in schema and schema.get("additionalProperties"):
        yield Cause("FieldValueForbidden", "Forbidden: additionalProperties and properties are mutual exclusive", path)
    if "$ref" in schema or schema.get("uniqueItems"):
        yield Cause("FieldValueForbidden", "Forbidden: $ref and uniqueItems are not supported", path)
    if schema.get("type") == "array" and "items" not in schema:
        yield Cause("FieldValueRequired", "Required value: must be specified", f"{path}.items")
    if schema.get("x-kubernetes-list-type") == "map" and not list_keys(schema):
        yield Cause("FieldValueRequired", "Required value: must not be empty", f"{path}.x-kubernetes-list-map-keys")
    for index, rule in enumerate(schema.get(RULES, ())):
        try:
            _program(rule["rule"])
        except CELParseError as error:
            text = f"Invalid value: {_text(rule['rule'])}: compilation failed: {error.args[0]}"
            yield Cause("FieldValueInvalid", text, f"{path}.{RULES}[{index}].rule")
    for name, part in schema.get("properties", {}).items():
        yield from structural_problems(part, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from structural_problems(schema[key], f"{path}.{key}")
