"""What fitting an estimator takes besides the model and its training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.conditional import InstanceNoise
from extremegp.data import FloatCSR, FloatMatrix, LabelSpace
from extremegp.errors import DataError, SettingsError
from extremegp.instance_noise import estimate_instance_noise
from extremegp.latents import Marginals
from extremegp.metrics import TopK, precision_at_k
from extremegp.model import VariationalModel
from extremegp.prediction import Predictor
from extremegp.training import TrainingSettings

_NOISE_ROWS = 20_000


def instance_noise(
    model: VariationalModel,
    x: FloatMatrix,
    y: FloatCSR,
    mean_logits: NDArray[np.float32] | None,
    rng: np.random.Generator,
) -> InstanceNoise:
    """The scatter of instances, estimated on at most 20,000 rows with labels."""
    rows = np.flatnonzero(np.diff(y.indptr))
    rows = np.sort(rng.choice(rows, min(_NOISE_ROWS, len(rows)), replace=False))
    logits = None if mean_logits is None else mean_logits[rows]
    latents = Marginals.concatenate([block for _, block in Predictor(model).latents(x[rows], logits)])
    propensities = model.likelihood.propensities
    return estimate_instance_noise(latents, model.mixing, y[rows], rng=rng, propensities=propensities)


def check_lengths(x: Any, y: Any) -> None:
    """Refuse inputs and labels of different numbers of rows.

    Raises:
        DataError: the numbers differ.
    """
    if x.shape[0] != y.shape[0]:
        raise DataError(f"X has {x.shape[0]} rows and Y has {y.shape[0]}: they must be the same rows in the same order")


def labels_per_step(y: FloatCSR, training: TrainingSettings) -> int | None:
    """About how many labels a step looks at, where they are sampled."""
    if training.n_sampled_labels is None:
        return None
    return min(y.shape[1], training.n_sampled_labels + -(-training.batch_size * y.nnz // y.shape[0]))


def checked_device(name: Any) -> torch.device:
    """A device that tensors can be made on.

    Raises:
        SettingsError: there is none of that name.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"device {name!r} cannot be used here ({reason}); use 'cpu'") from error
    return device


def validator(model: VariationalModel, x: FloatMatrix, y: FloatCSR) -> Callable[[], float]:
    """P@1 of the current parameters; what the mean function says does not change with them."""
    logits = Predictor(model).mean_logits(x)

    def score() -> float:
        blocks = Predictor(model).latents(x, logits)
        with torch.no_grad():
            best = [TopK.from_scores(model.mixing.mean_utilities(block).cpu().numpy(), 1) for _, block in blocks]
        return float(precision_at_k(y, TopK.concatenate(best), (1,))[0])

    return score


def named_columns(names: Sequence[str | int], y: FloatCSR, space: LabelSpace | None) -> LabelSpace:
    """Names for the columns of an indicator.

    Raises:
        DataError: the labels have names already, or there are not as many names as columns.
    """
    if space is not None:
        raise DataError("Y holds label names already; leave out label_names")
    if len(names) != y.shape[1]:
        raise DataError(f"there are {len(names)} label names for the {y.shape[1]} columns of Y")
    return LabelSpace(names)


def fingerprint(matrices: Iterable[FloatMatrix], settings: dict[str, Any]) -> str:
    """Equal for runs on equal data with equal settings; how often progress is saved makes no difference."""
    settings = {name: value for name, value in settings.items() if name != "checkpoint_seconds"}
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for matrix in matrices:
        arrays = (matrix.indptr, matrix.indices, matrix.data) if scipy.sparse.issparse(matrix) else (matrix,)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
