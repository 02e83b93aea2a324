"""`--set key=value`: parameters of the estimator as text, read by their types."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from extremegp.cli.common import one_of
from extremegp.cli.inputs import Task
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.cli.common import Classifier
    from extremegp.presets import Preset

ModelKind: TypeAlias = Literal["factor", "tree"]

_OWNED = {
    "checkpoint": "it is always MODEL.checkpoint",
    "verbose": "use --quiet",
    "template": "use --template FILE",
    "labels": "a list of labels can only be given from Python",
}


def parse_settings(pairs: Iterable[str], task: Task = "multilabel", kind: ModelKind = "factor") -> dict[str, Any]:
    """Constructor arguments of the estimator of a task from "key=value" texts.

    Raises:
        SettingsError: no "=", an unknown key (suggests the nearest), or a value that is not of the key's type.
    """
    pairs = list(pairs)
    if not pairs:
        return {}
    estimator = estimator_of(task, kind)
    hints = get_type_hints(estimator.__init__)
    known = [name for name in inspect.signature(estimator).parameters if name not in _OWNED]
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals:
            raise SettingsError(f"--set takes key=value, such as n_inducing=600; it is {pair!r}")
        if key in _OWNED and key in hints:
            raise SettingsError(f"--set cannot set {key}: {_OWNED[key]}")
        one_of("--set: the parameter", key, known)
        parsed[key] = _value(key, text, hints[key])
    return parsed


def parameters(
    task: Task, preset: str | None, options: dict[str, Any], settings: Iterable[str], kind: ModelKind = "factor"
) -> dict[str, Any]:
    """Constructor arguments: what `--set` says beats other options, which beat the preset.

    Raises:
        SettingsError: as `parse_settings`.
    """
    own = {} if preset is None else dict(presets_of(task)[preset].settings)
    return own | options | parse_settings(settings, task, kind)


def presets_of(task: Task) -> Mapping[str, Preset[Any]]:
    """The presets of a task by name."""
    from extremegp.presets import CLASS_PRESETS, PRESETS, SEQUENCE_PRESETS

    presets: dict[Task, Mapping[str, Preset[Any]]] = {
        "multilabel": PRESETS,
        "multiclass": CLASS_PRESETS,
        "sequence": SEQUENCE_PRESETS,
    }
    return presets[task]


def estimator_of(task: Task, kind: ModelKind = "factor") -> type[Classifier]:
    """The estimator that a task is for; of many labels per row, that of a kind of model."""
    from extremegp.estimators import (
        LabelTreeGPClassifier,
        MultiClassGPClassifier,
        MultiLabelGPClassifier,
        SequenceGPClassifier,
    )

    if task == "multilabel" and kind == "tree":
        return LabelTreeGPClassifier
    estimators: dict[Task, type[Classifier]] = {
        "multilabel": MultiLabelGPClassifier,
        "multiclass": MultiClassGPClassifier,
        "sequence": SequenceGPClassifier,
    }
    return estimators[task]


def _value(key: str, text: str, hint: Any) -> Any:
    types = [hint] if get_origin(hint) is Literal or isinstance(hint, type) else list(get_args(hint))
    for candidate in types:
        try:
            return _READERS[candidate](text) if candidate in _READERS else _literal(text, candidate)
        except ValueError:
            continue
    wanted = " or ".join(filter(None, map(_described, types)))
    raise SettingsError(f"--set: {key} must be {wanted}; it is {text!r}")


def _truth(text: str) -> bool:
    values = {"true": True, "false": False}
    if text.lower() not in values:
        raise ValueError
    return values[text.lower()]


def _none(text: str) -> None:
    if text.lower() != "none":
        raise ValueError


def _pair(text: str) -> tuple[float, float]:
    first, second = map(float, text.split(","))
    return first, second


def _literal(text: str, hint: Any) -> str:
    if text not in get_args(hint):
        raise ValueError
    return text


_READERS: dict[Any, Any] = {
    bool: _truth,
    int: int,
    float: float,
    str: str,
    type(None): _none,
    tuple[float, float]: _pair,
}
_DESCRIPTIONS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    type(None): "none",
    tuple[float, float]: "two numbers such as 0.55,1.5",
}


def _described(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    return _DESCRIPTIONS.get(hint, "")
