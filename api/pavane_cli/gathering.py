"""Arguments and options that many commands have in common, written once."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


def gathering(make: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that gives a command the parameters of ``make``; its own first one is what that returns.

    Parameters of ``make`` without a default stand before those of the command, the others behind them.
    """
    shared = inspect.signature(make).parameters
    first = [each for each in shared.values() if each.default is inspect.Parameter.empty]
    last = [each for each in shared.values() if each.default is not inspect.Parameter.empty]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            made = make(**{key: value for key, value in given.items() if key in shared})
            command(made, **{key: value for key, value in given.items() if key not in shared})

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*first, *own, *last)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        hints = typing.get_type_hints(make, include_extras=True) | typing.get_type_hints(command, include_extras=True)
        run.__annotations__ = {each.name: hints[each.name] for each in parameters}
        return run

    return decorate
