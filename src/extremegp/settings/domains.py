"""Values that users gave, checked against what they may be."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

from extremegp.errors import SettingsError


def number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float = math.inf,
    integer: bool = False,
    open_low: bool = False,
) -> Any:
    """`value` if it is a number in the range, else a SettingsError that names the parameter and the range."""
    kind: type[Any] = numbers.Integral if integer else numbers.Real
    in_range = (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and (low < value if open_low else low <= value)
        and value <= high
        and value != math.inf
    )
    if not in_range:
        what = "an integer" if integer else "a number"
        floor = f"above {low:g}" if open_low else f"at least {low:g}"
        ceiling = "" if high == math.inf else f" and at most {high:g}"
        raise SettingsError(f"{name} must be {what} {floor}{ceiling}; it is {value!r}")
    return int(value) if integer else float(value)


def choice(name: str, value: Any, options: Collection[Any]) -> Any:
    """`value` if it is one of the options, else a SettingsError that lists them."""
    if not isinstance(value, (str, bool)) or value not in options:
        raise SettingsError(f"{name} must be one of {', '.join(map(str, options))}; it is {value!r}")
    return value
