"""How the annotations of the package are checked while tests run, shapes included."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import IO, Any, Self

from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import config

# What users call says in their words what is wrong with arguments of another type, and tests see that it does.
_DOORS = {"data", "estimators", "metrics", "plots", "settings", "testing"}
# A method by itself does not know its class, and the streams of the standard library lack some of what IO has.
_NOT_KNOWN = FrozenDict({Self: Any, IO[bytes]: object, IO[str]: object})
_check: Callable[[Any], Any] = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=_NOT_KNOWN))


# A check costs as much as a small step of training. The first calls of a test see all functions that it runs.
_MOST_CALLS = 300
_calls = 0


def start_checking() -> None:
    """Check the calls of the next test, from its first on."""
    global _calls
    _calls = 0
    config.update("jaxtyping_disable", False)


def checked(function: Any) -> Any:
    """The function with its arguments and result checked; of public functions at the doors the result alone."""
    room = f"{function.__module__}.".split(".")[1]
    private = any(name.startswith("_") and name != "__init__" for name in function.__qualname__.split("."))
    # The command line imports what its annotations name only where it is used.
    if room == "cli":
        return function
    if room in _DOORS and not private:
        function.__annotations__ = {"return": function.__annotations__.get("return", Any)}
    inner = _check(function)

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _calls
        _calls += 1
        if _calls == _MOST_CALLS:
            config.update("jaxtyping_disable", True)
        return inner(*args, **kwargs)

    return counted
