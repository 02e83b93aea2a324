"""Text of the command line as parameters: `--set key=value` by the types of an estimator's parameters, and times."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin

from extremegp.cli.parameters import parameter_types
from extremegp.errors import SettingsError

OWNED = {
    "checkpoint": "it is always MODEL.checkpoint",
    "verbose": "use --quiet",
    "template": "use --template FILE",
    "labels": "a list of labels can only be given from Python",
}
"""Parameters that --set leaves alone, and what to do instead."""
_SHOWN = 12
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_settings(pairs: Iterable[str], estimator: str = "MultiLabelGPClassifier") -> dict[str, Any]:
    """Constructor arguments of an estimator, which is named, from "key=value" texts.

    Raises:
        SettingsError: no "=", an unknown key (suggests the nearest), or a value that is not of the key's type.
    """
    hints = parameter_types(estimator)
    known = [name for name in hints if name not in OWNED]
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals:
            raise SettingsError(f"--set takes key=value, such as n_inducing=600; it is {pair!r}")
        if key in OWNED and key in hints:
            raise SettingsError(f"--set cannot set {key}: {OWNED[key]}")
        one_of("--set: the parameter", key, known)
        parsed[key] = _value(key, text, hints[key])
    return parsed


def duration(text: str) -> float:
    """Seconds of "90s", "10m", "1h30m" or a plain number of seconds.

    Raises:
        SettingsError: none of these, or not positive.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        if match and any(match.groups()):
            hours, minutes, seconds = (float(part or 0) for part in match.groups())
            value = 3600 * hours + 60 * minutes + seconds
        else:
            value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"--time-budget must be a time such as 90s, 10m, 1h30m or 600 (seconds); it is {text!r}")
    return value


def one_of(name: str, value: str, options: Iterable[str], *, listed_by: str = "") -> str:
    """`value` if it is one of the options.

    Raises:
        SettingsError: it is not; suggests the nearest, and says what others there are, or what lists them.
    """
    options = list(options)
    if value in options:
        return value
    near = nearest(value, options, cutoff=0.3 if listed_by else 0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    known = f"{listed_by} lists all {len(options)}" if listed_by else f"known are {', '.join(options)}"
    if near and not listed_by and len(options) > _SHOWN:
        known = ""
    raise SettingsError(f"{name} {value!r} is unknown; {hint}{known}".rstrip())


def nearest(value: str, options: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """At most three options that look like a value, the most alike first, whether in capitals or not."""
    written = {option.lower(): option for option in options}
    return [written[near] for near in difflib.get_close_matches(value.lower(), written, n=3, cutoff=cutoff)]


def _value(key: str, text: str, hint: Any) -> Any:
    types = [hint] if get_origin(hint) is Literal or isinstance(hint, type) else list(get_args(hint))
    for candidate in types:
        if get_origin(candidate) is Literal and text in get_args(candidate):
            return text
        try:
            if candidate in _READERS:
                return _READERS[candidate][0](text)
        except (KeyError, ValueError):
            continue
    wanted = " or ".join(filter(None, map(_described, types)))
    raise SettingsError(f"--set: {key} must be {wanted}; it is {text!r}")


def _described(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return _READERS[hint][1] if hint in _READERS else ""


def _pair(of: type[Any]) -> Callable[[str], tuple[Any, Any]]:
    def read(text: str) -> tuple[Any, Any]:
        first, second = map(of, text.split(","))
        return first, second

    return read


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
    int: (int, "an integer"),
    float: (float, "a number"),
    str: (str, ""),
    type(None): (lambda text: {"none": None}[text.lower()], "none"),
    tuple[float, float]: (_pair(float), "two numbers such as 0.55,1.5"),
    tuple[int, int]: (_pair(int), "two integers such as 1,2"),
}
"""How values of a type are read, and what they are called."""
