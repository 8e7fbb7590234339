"""Query parameters that no endpoint reads are refused: one that is misspelt would otherwise be left out silently."""

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from pavane.parts.spelling import nearest
from pavane_api.auth import Caller
from pavane_api.problems import FieldProblem, Invalid

FREE = frozenset({"query_immortal"})
"""Operations whose parameters are the caller's own: the arguments of an immortal's query."""

PARAMETERS_TOLD_MAX = 20  # a URL has room for thousands, and each costs a search


async def only_known(request: Request) -> None:
    """Raise ``Invalid`` for parameters that the operation does not take; a dependency of every router."""
    route = request.scope["route"]
    if not request.query_params or not isinstance(route, APIRoute) or route.operation_id in FREE:
        return
    known = sorted(_taken(route.dependant))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        errors = [
            FieldProblem(pointer=f"query.{name}", detail=_said(name, known)) for name in unknown[:PARAMETERS_TOLD_MAX]
        ]
        raise Invalid(" ".join(error.detail for error in errors), errors=errors)


async def only_known_of_caller(request: Request, _: Caller) -> None:
    """``only_known`` for authenticated callers; others do not even learn the names."""
    await only_known(request)


def _taken(dependant: Dependant) -> set[str]:
    """The names that an endpoint and what it depends on read; a model stands for those of its fields."""
    names: set[str] = set()
    for parameter in dependant.query_params:
        fields = getattr(parameter.field_info.annotation, "model_fields", None)
        names |= {parameter.alias} if fields is None else {each.alias or name for name, each in fields.items()}
    return names.union(*(_taken(each) for each in dependant.dependencies))


def _said(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    if near is not None:
        return f"There is no parameter {name}; did you mean {near}?"
    taken = f"takes {', '.join(known)}" if known else "takes none"
    return f"There is no parameter {name}; this path {taken}."
