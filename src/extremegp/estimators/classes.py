"""What estimators of one class per row, or per token, share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extremegp.data import ClassSpace
from extremegp.errors import ModelFormatError
from extremegp.estimators.base import GPEstimator


class ClassEstimator(GPEstimator):
    """A scikit-learn estimator that chooses one of K classes, in the type that `fit` was given."""

    label_space_: ClassSpace
    _target_kinds = ("int", "str", "bool", "float")

    @classmethod
    def _space_from(cls, labels: Any, n_labels: int, folder: str | Path) -> ClassSpace:
        try:
            space = ClassSpace.from_config(labels)
        except ModelFormatError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        if len(space) != n_labels:
            raise ModelFormatError(f"{folder}: there are not {n_labels} classes")
        return space
