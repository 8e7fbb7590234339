"""From a pydantic model to a structural schema of Kubernetes (handbook, CRD generation; docs/specs/operator.md 1.1)."""

from typing import Any

from pavane_operator.crds.base import MARK_KEY, NO_DEFAULT_KEY, Model

_DROPPED = frozenset({"$defs", "deprecated", "discriminator", "examples", "propertyNames", "title", MARK_KEY})
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_RULES = "x-kubernetes-validations"


def structural_schema(
    model: type[Model], *, defaults: bool = True, cel: bool = True, marks: bool = False
) -> dict[str, Any]:
    """The structural schema of a model.

    Args:
        model: The source; its docstrings become descriptions.
        defaults: Whether defaults are emitted; a status has none.
        cel: Whether validation rules are emitted; very old servers refuse the key.
        marks: Whether the marks of the fields stay; for readers, no server takes them.

    Raises:
        ValueError: the model has something that no structural schema can say: recursion, or a union.
    """
    source = model.model_json_schema(by_alias=True, mode="validation")
    dropped = _DROPPED - {MARK_KEY} if marks else _DROPPED
    return _Converter(source.get("$defs", {}), dropped, defaults=defaults, cel=cel).convert(source, ())


class _Converter:
    def __init__(self, definitions: dict[str, Any], dropped: frozenset[str], *, defaults: bool, cel: bool) -> None:
        self._definitions = definitions
        self._dropped = dropped
        self._defaults = defaults
        self._cel = cel

    def convert(self, source: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        schema, path = self._resolved(source, path)
        optional = "anyOf" in schema
        if optional:
            schema, path = self._without_null(schema, path)
        schema = {key: value for key, value in schema.items() if key not in self._dropped}
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].split())
        if "const" in schema:
            schema["enum"] = [schema.pop("const")]
        if schema.pop("uniqueItems", False):
            schema["x-kubernetes-list-type"] = "set"
        if schema.get("type") == "integer":
            schema["format"] = "int64"
        for name in ("minimum", "maximum"):
            exclusive = f"exclusive{name.capitalize()}"
            if exclusive in schema:
                schema[name], schema[exclusive] = schema[exclusive], True
        if schema.pop(NO_DEFAULT_KEY, False) or not self._defaults or schema.get("default", ...) is None:
            schema.pop("default", None)
        if not self._cel:
            schema.pop(_RULES, None)
        self._convert_inner(schema, path)
        return schema

    def _convert_inner(self, schema: dict[str, Any], path: tuple[str, ...]) -> None:
        if schema.get(_PRESERVE) or schema.get("additionalProperties") is False:
            schema.pop("additionalProperties", None)
        elif "additionalProperties" in schema:
            schema["additionalProperties"] = self.convert(schema["additionalProperties"], path)
        if "items" in schema:
            # No defaults in there: who applies the list again, as a whole, would find it changed each time.
            items = _Converter(self._definitions, self._dropped, defaults=False, cel=self._cel)
            schema["items"] = items.convert(schema["items"], path)
        if "properties" not in schema:
            return
        required = schema.get("required", [])
        properties = {}
        for name, inner in schema["properties"].items():
            converted = self.convert(inner, path)
            # Pydantic emits no default for a default_factory; the server completes an empty object, but only after
            # it has tried the object's own rules on the default. (Without rules the chart keeps the same default.)
            nested = converted.get("type") == "object" and "properties" in converted and "anyOf" not in inner
            if self._defaults and nested and name not in required:
                inner_defaults = {
                    key: each["default"] for key, each in converted["properties"].items() if "default" in each
                }
                converted["default"] = inner_defaults if _RULES in self._resolved(inner, path)[0] else {}
            properties[name] = converted
        schema["properties"] = properties

    def _resolved(self, schema: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        while "$ref" in schema:
            name = schema["$ref"].removeprefix("#/$defs/")
            if name in path:
                message = f"{name} contains itself; a structural schema cannot be recursive"
                raise ValueError(message)
            path = (*path, name)
            schema = {**self._definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema, path

    def _without_null(self, schema: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        arms = [arm for arm in schema["anyOf"] if arm.get("type") != "null"]
        if len(arms) != 1:
            message = f"a union of {len(arms)} types; use one optional field per type and a rule"
            raise ValueError(message)
        arm, path = self._resolved(arms[0], path)
        return {**arm, **{key: value for key, value in schema.items() if key != "anyOf"}}, path
