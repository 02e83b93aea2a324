"""What fitting an estimator takes besides the model and its training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.data import FloatCSR, FloatMatrix, LabelSpace
from extremegp.data._temporary import take_rows
from extremegp.data.validation import is_mapped
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.mean import points_kept
from extremegp.engine.model import VariationalModel
from extremegp.errors import DataError, SettingsError
from extremegp.metrics import TopK, precision_at_k
from extremegp.prediction.instance_noise import estimate_instance_noise
from extremegp.prediction.known_labels import InstanceNoise
from extremegp.prediction.predictor import Predictor
from extremegp.settings.limits import described, memory_left, memory_limit, plan_within
from extremegp.settings.memory import training_memory
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import choice, model_settings, number, regression_points, training_settings
from extremegp.training import NoReporter, ProgressReporter, TrainingSettings, train, world
from extremegp.training.shards import check_shareable
from extremegp.training.start import initialise

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_NOISE_ROWS = 20_000
# A regression on so many points takes longer than a person should wait without a word.
_MANY_POINTS = 2000
# Consecutive rows of mapped inputs that are trained on near each other: some megabytes, as disks like to be read.
_MAPPED_BLOCK = 4096


class FittedModel(NamedTuple):
    """A trained model, and what came of training it.

    Attributes:
        model: the model.
        settings: what it is.
        history: a record per epoch.
        mean_logits: what its mean function scales at the training rows, without the row itself.
        lowered: the parameters that memory made lower, with what they would have been and what they are.
    """

    model: VariationalModel
    settings: ModelSettings
    history: list[dict[str, float]]
    mean_logits: NDArray[np.float32] | None
    lowered: dict[str, tuple[Any, Any]]


def fit_model(
    params: dict[str, Any],
    x: FloatMatrix,
    y: FloatCSR,
    held_out: tuple[FloatMatrix, FloatCSR] | None,
    *,
    rng: np.random.Generator,
    seed: int,
    score_name: str,
    propensities: NDArray[np.float64] | None = None,
) -> FittedModel:
    """Build, start and train the model that an estimator's parameters ask for.

    Args:
        params: the parameters, as `model_settings` and `training_settings` take them.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        held_out: such inputs and labels to choose the best epoch on.
        rng: decides the start.
        seed: decides the training.
        score_name: what P@1 on the held-out rows is called.
        propensities: of the labels, K.

    Raises:
        SettingsError: a parameter is outside its domain.
        MemoryPlanError: the settings need more memory than there is.
        TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        ProcessLostError: of several processes that train together, another one ended.
    """
    sizes = {"n_rows": x.shape[0], "n_features": x.shape[1], "n_labels": y.shape[1]}
    n_points = regression_points(params, **sizes)
    kept = points_kept(x, n_points) if n_points else (0, 0)
    machine = world(checked_device(params["device"]))
    dtype = DTYPES[choice("dtype", params["dtype"], DTYPES)]

    def resolve(params: dict[str, Any]) -> tuple[ModelSettings, TrainingSettings]:
        settings = model_settings(params, **sizes, mean_points=kept)
        training = training_settings(params, model=settings, n_rows=x.shape[0], seed=seed)
        return settings, replace(training, shuffle_rows=_MAPPED_BLOCK) if is_mapped(x) else training

    def needed(settings: ModelSettings, training: TrainingSettings) -> int:
        # Each process holds the whole model once, at the start and at the end, and gradients and moments of its labels.
        of_process = replace(settings, n_labels=-(-y.shape[1] // min(machine.size, 4)))
        return machine.local_size * training_memory(
            of_process,
            n_rows=x.shape[0],
            batch_size=training.batch_size,
            n_stored=stored_in_memory(x) + stored_in_memory(y),
            labels_per_step=labels_per_step(y, training),
            item_size=dtype.itemsize,
            optimizer_state=training.optimizer_state,
            n_copies=(held_out is not None) + (params["checkpoint"] is not None),
        )

    without_mean = ', or set mean_function="zero"' if n_points else ""
    advice = f"n_inducing, n_latent or batch_size (or use fewer features{without_mean})"
    # Processes that start at different moments see different free memory.
    available = machine.said_by_first(memory_left(memory_limit(params["max_memory"]), machine))
    plan = plan_within(available, params, resolve=resolve, needed=needed, advice=advice)
    settings, training = plan.model, plan.training
    reporter = ProgressReporter() if params["verbose"] and machine.leads else NoReporter()
    if plan.lowered:
        reporter.note(described(plan, available))
    if n_points >= _MANY_POINTS:
        reporter.phase(f"fitting the mean function: regression of the labels on {n_points} rows")
    model = settings.build()
    check_shareable(model, machine)
    starts = {name: params[name] for name in ("inducing_start", "loadings_start")}
    mean_logits = initialise(model, x, y, rng=rng, propensities=propensities, **starts)
    model.to(device=machine.device, dtype=dtype)
    history = train(
        model,
        x,
        y,
        training,
        mean_logits=mean_logits,
        reporter=reporter,
        validate=None if held_out is None else validator(model, *held_out),
        score_name=score_name,
        checkpoint=params["checkpoint"],
        fingerprint=fingerprint(
            [x, y, *(held_out or ()), *(() if propensities is None else (propensities,))],
            {**asdict(settings), **asdict(training), **starts, "dtype": params["dtype"]},
        ),
        world=machine,
    )
    return FittedModel(model.requires_grad_(False), settings, history, mean_logits, plan.lowered)


def split(
    x: FloatMatrix, y: FloatCSR, *, fraction: Any, patience: Any, rng: np.random.Generator
) -> tuple[FloatMatrix, FloatCSR, tuple[FloatMatrix, FloatCSR] | None]:
    """Training part and validation part, if any.

    Raises:
        SettingsError: `fraction` is outside its domain, or there is patience without validation.
    """
    held = int(number("validation_fraction", fraction, low=0, high=0.9) * x.shape[0])
    if not held:
        if patience is not None:
            raise SettingsError("patience needs validation data: set validation_fraction, or pass validation")
        return x, y, None
    order = rng.permutation(x.shape[0])
    (x, held_x), (y, held_y) = ((take_rows(m, order[held:]), take_rows(m, order[:held])) for m in (x, y))
    return x, y, (held_x, held_y)


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
    assert isinstance(model.likelihood, BernoulliLabels)
    propensities = model.likelihood.propensities
    return estimate_instance_noise(latents, model.mixing, y[rows], rng=rng, propensities=propensities)


def stored_in_memory(matrix: FloatMatrix) -> int:
    """Entries of a matrix that take memory: none where they are mapped from files."""
    if is_mapped(matrix):
        return 0
    return int(matrix.nnz if scipy.sparse.issparse(matrix) else matrix.size)


def check_lengths(x: Any, y: Any) -> None:
    """Refuse inputs and labels of different numbers of rows.

    Raises:
        DataError: the numbers differ.
    """
    if x.shape[0] != y.shape[0]:
        raise DataError(f"X has {x.shape[0]} rows and Y has {y.shape[0]}: they must be the same rows in the same order")


def labels_per_step(y: FloatCSR, training: TrainingSettings) -> int | None:
    """About how many labels a step looks at, where they are sampled."""
    if training.label_sampling == "pair":
        return 2
    if training.n_sampled_labels is None:
        return None
    hard = training.n_hard_labels if training.label_sampling == "hard" else 0
    return min(y.shape[1], training.n_sampled_labels + hard + -(-training.batch_size * y.nnz // y.shape[0]))


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
