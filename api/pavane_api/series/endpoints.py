"""``/api/v1/…/PLURAL/NAME/series`` of each kind with pods."""

import math
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from pavane.parts.spelling import nearest
from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.problems import FieldProblem, Invalid, responses
from pavane_api.series.catalogue import CATALOGUE, Series
from pavane_api.series.schemas import OneSeries, ResourceSeries, SeriesMark
from pavane_api.series.store import Place
from pavane_operator.crds.descriptor import Definition
from pavane_operator.kube.resources import custom

STEPS_MAX = 1500  # per series in one answer: more than a screen has columns for
FROM_S = 3600  # how far back an answer goes when nothing is said
TIME_MAX = 1 << 40  # seconds since 1970; SQLite adds to them

From = Annotated[int | None, Query(alias="from", ge=0, le=TIME_MAX, description="Seconds since 1970; default: an hour")]
Step = Annotated[int, Query(ge=1, le=86_400, description="Seconds from one value to the next")]
Names = Annotated[str, Query(max_length=1000, description="Which, separated by commas; default: all of the kind")]


def router_of(kind: Definition) -> APIRouter:
    """Return the route of one kind."""
    resource = custom(kind.name, kind.plural)
    router = APIRouter(tags=[kind.plural])

    @router.get(
        f"/namespaces/{{namespace}}/{kind.plural}/{{name}}/series",
        operation_id=f"get_{kind.name.lower()}_series",
        dependencies=[Depends(may("get", resource))],
        response_model=ResourceSeries,
        responses=responses(problems.NotFound),
    )
    async def series(
        control: Shared, namespace: str, name: str, names: Names = "", since: From = None, step: Step = 15
    ) -> ResourceSeries:
        """Return numbers of a resource over time, as its pods told them, and what happened to the pods meanwhile.

        A step shows the mean of what was read in it, of times and lags the greatest. Numbers are kept for a day.
        """
        chosen = _chosen(kind.plural, names)
        await control.kube.get(resource, name, namespace)
        kept, now = control.series, int(time.time())
        begin = max(now - FROM_S if since is None else since, now - int(kept.retention_s))
        step = max(step, math.ceil((now - begin) / STEPS_MAX))
        begin -= begin % step  # the same steps, whenever it is asked
        place = Place(kind.plural, namespace, name)
        folded = await kept.folded(place, chosen, begin, step, max(0, now - begin) // step + 1)
        return ResourceSeries(
            from_=begin,
            step=step,
            retention=int(kept.retention_s),
            series=[
                OneSeries(name=one.name, title=one.title, unit=one.unit, values=values)
                for one, values in zip(chosen, folded, strict=True)
            ],
            marks=[SeriesMark(at=mark.at_s, text=mark.text) for mark in await kept.marks(place, begin)],
        )

    return router


def _chosen(plural: str, names: str) -> list[Series]:
    """Return the series that were named; raises ``Invalid``."""
    known = {one.name: one for one in CATALOGUE[plural]}
    wanted = names.split(",") if names else list(known)
    unknown = sorted(set(wanted) - known.keys())
    if unknown:
        guesses = {name: nearest(name, sorted(known)) for name in unknown}
        errors = [
            FieldProblem(
                pointer="query.names",
                detail=f"{plural} have no series {name}; "
                + (f"did you mean {near}?" if near else f"they have {', '.join(sorted(known))}."),
            )
            for name, near in guesses.items()
        ]
        raise Invalid(" ".join(error.detail for error in errors), errors=errors)
    return [known[name] for name in dict.fromkeys(wanted)]
