"""Variational Gaussian processes for classification at extreme scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extremegp import threads  # what uses threads must know of forks
from extremegp.__about__ import __version__
from extremegp._lazy import lazily

if TYPE_CHECKING:
    from extremegp import datasets
    from extremegp.estimators import (
        LabelTreeGPClassifier,
        MultiClassGPClassifier,
        MultiLabelGPClassifier,
        SequenceGPClassifier,
        load,
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

# The command line answers `--help` without loading PyTorch.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "extremegp.datasets": (),
        "extremegp.estimators": tuple(name for name in __all__ if name not in ("__version__", "datasets", "threads")),
    },
)
