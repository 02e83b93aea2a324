"""Variational Gaussian processes for classification at extreme scale."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from extremegp import threads  # what uses threads must know of forks
from extremegp.__about__ import __version__

if TYPE_CHECKING:
    from extremegp import datasets
    from extremegp.estimators import (
        LabelTreeGPClassifier,
        MultiClassGPClassifier,
        MultiLabelGPClassifier,
        SequenceGPClassifier,
        load,
    )

_ESTIMATORS = (
    "LabelTreeGPClassifier",
    "MultiClassGPClassifier",
    "MultiLabelGPClassifier",
    "SequenceGPClassifier",
    "load",
)
__all__ = [
    "LabelTreeGPClassifier",
    "MultiClassGPClassifier",
    "MultiLabelGPClassifier",
    "SequenceGPClassifier",
    "__version__",
    "datasets",
    "load",
    "threads",
]

# Public names and their homes, imported at first use: the command line answers `--help` without loading PyTorch.
_HOMES = dict.fromkeys(_ESTIMATORS, "extremegp.estimators")


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return importlib.import_module("extremegp.datasets")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
