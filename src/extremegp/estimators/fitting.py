"""What fitting an estimator takes besides the model and its training."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.data import FloatCSR, FloatMatrix, LabelSpace
from extremegp.engine.kernels import Kernel
from extremegp.engine.matrices import is_mapped
from extremegp.engine.mean import points_kept
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.selection import Selection
from extremegp.errors import BudgetWarning, DataError, ModelFormatError, SettingsError
from extremegp.estimators.examples import Examples
from extremegp.estimators.origin import content_hash, fingerprint
from extremegp.estimators.weights import check_likelihood, first_gains, weighted_mean
from extremegp.metrics import TopK
from extremegp.prediction.predictor import Predictor
from extremegp.prediction.shared_covariance import share_covariances
from extremegp.progress import spoken
from extremegp.settings.domains import choice
from extremegp.settings.latents import CLOSED, landmark_count, variance_points
from extremegp.settings.memory import Plan, described, memory_left, memory_limit, plan_within, training_memory
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import model_settings, regression_points, training_settings
from extremegp.threads import within_quota
from extremegp.training import NoReporter, ProgressReporter, Reporter, TrainingSettings, World, train, world
from extremegp.training.landmarks import finish_on_landmarks, start_on_landmarks, start_on_points
from extremegp.training.regression import spread_regression, start_on_regression
from extremegp.training.shards import check_alike, check_shareable
from extremegp.training.whole import train_whole

DTYPES = {"float32": torch.float32, "float64": torch.float64}
_VALIDATION_DRAWS = 8
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
        contents: hashes of the training rows, and of those held out if there are any.
        selections: what was tried for hyper-parameters, and what won.
    """

    model: VariationalModel
    settings: ModelSettings
    history: list[dict[str, float]]
    mean_logits: NDArray[np.float32] | None
    lowered: dict[str, tuple[Any, Any]]
    contents: tuple[str, str]
    selections: list[Selection]


@within_quota()
def fit_model(
    params: dict[str, Any],
    data: Examples,
    held_out: Examples | None,
    *,
    translate: Callable[[dict[str, Any]], dict[str, Any]],
    rng: np.random.Generator,
    seed: int,
    score_name: str,
    propensities: NDArray[np.float64] | None = None,
    judge: Callable[[float, float, float], None] | None = None,
    spent: float = 0.0,
    known: VariationalModel | None = None,
) -> FittedModel:
    """Build, start and train the model that an estimator's parameters ask for.

    Args:
        params: the estimator's parameters.
        data: what to train on.
        held_out: what to choose the best epoch on.
        translate: from the estimator's parameters to those that `model_settings` and `training_settings` take.
        rng: decides the start.
        seed: decides the training.
        score_name: what P@1 on the held-out rows is called.
        propensities: of the labels, K.
        judge: as `train` takes it.
        spent: likewise.
        known: a model of such rows, whose hyper-parameters are taken where posteriors are closed or have landmarks;
            None to choose them.

    Raises:
        DataError: the kernel needs dense inputs.
        SettingsError: a parameter is outside its domain.
        MemoryPlanError: the settings need more memory than there is.
        TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        ProcessLostError: of several processes that train together, another one ended.
    """
    machine = world(checked_device(params["device"]))
    dtype = DTYPES[choice("dtype", params["dtype"], DTYPES)]
    validated = held_out is not None
    reporter: Reporter = NoReporter()
    if params["verbose"] and machine.leads:
        reporter = ProgressReporter(
            time_budget=params["time_budget"], early_stopping=params["patience"] if validated else None
        )
    plan = _planned(params, data, translate, machine, dtype.itemsize, seed=seed, validated=validated, reporter=reporter)
    settings, training = plan.model, plan.training
    for inputs in (data.x, *(() if held_out is None else (held_out.x,))):
        check_dense(settings, inputs)
    if settings.n_mean_points >= _MANY_POINTS:
        what = "" if settings.is_closed else "the mean function: "
        reporter.phase(f"fitting {what}regression of the labels on {settings.n_mean_points} rows")
    model = settings.build()
    check_shareable(model, machine)
    check_likelihood(model.likelihood, data.y, data.weights, by_pairs=training.label_sampling == "pair")
    translated = translate(params)
    starts = {name: translated[name] for name in ("inducing_start", "loadings_start")}
    start = TrainingData(data.x, data.y, rng, propensities=propensities, weights=data.row_weights, **starts)
    if data.lengths is not None:
        start.sample  # noqa: B018 (drawn first, whatever the latents)
    trained, inputs, mean_logits, started = model, data.x, None, time.monotonic()
    if settings.is_closed:
        _check_unfinished(params["checkpoint"])
        start_on_regression(model, start, known)
    elif settings.latents == "landmarks":
        if data.x.shape[0] >= _MANY_POINTS:
            learning = "learning the kernel, and" if known is None else "working out"
            reporter.phase(f"{learning} features of all rows by {settings.n_inducing} of them")
        inputs, mean_logits = start_on_landmarks(model, start, known)
        trained = model.of_features()
    elif settings.latents == "landmarks-point":
        inputs = start_on_points(model, start, translated["kernel"], translated["lengthscale"])
        trained = model.of_features()
    else:
        mean_logits, trained = model.start(start), model.without_regression_variance()
    model.to(device=machine.device, dtype=dtype)
    contents = content_hash(data.arrays()), content_hash([] if held_out is None else held_out.arrays())
    validate = None if held_out is None else validator(model, held_out)
    if settings.is_closed:
        seconds = spent + time.monotonic() - started
        if params["time_budget"] is not None and seconds > params["time_budget"]:
            told = f"took {spoken(seconds)}, for a closed posterior is not had in part: lower n_mean_points"
            told = f"training within a time budget of {spoken(params['time_budget'])} {told}"
            warnings.warn(told, BudgetWarning, stacklevel=4)
        record = {"epoch": 1.0, "seconds": seconds}
        history = [record if validate is None else record | {f"validation_{score_name}": validate()}]
        return FittedModel(
            model.requires_grad_(False), settings, history, None, plan.lowered, contents, start.selections
        )
    if training.optimizer == "lbfgs":
        check_alike(machine, contents, settings, training)
        _check_unfinished(params["checkpoint"])
        options: dict[str, Any] = {"lengths": data.lengths, "weights": data.weights, "spent": spent, "world": machine}
        history = train_whole(trained, inputs, data.y, training, reporter=reporter, **options)
        if validate is not None:
            history[0][f"validation_{score_name}"] = validate()
        model.requires_grad_(False)
        settings = _with_covariances(trained, settings, inputs, data, translated, seed)
        return FittedModel(model, settings, history, None, plan.lowered, contents, start.selections)
    history = train(
        trained,
        inputs,
        data.y,
        training,
        lengths=data.lengths,
        weights=data.weights,
        mean_logits=mean_logits,
        reporter=reporter,
        validate=validate,
        score_name=score_name,
        checkpoint=params["checkpoint"],
        fingerprint=fingerprint(
            contents if propensities is None else (*contents, content_hash([propensities])),
            {**settings.to_config(), **asdict(training), **starts, "dtype": params["dtype"]},
        ),
        world=machine,
        judge=judge,
        spent=spent,
    )
    if settings.latents == "landmarks":
        finish_on_landmarks(trained, inputs, data.y, data.row_weights)
    if mean_logits is not None and model.regression_variance is not None:
        spread_regression(model, start, mean_logits)
    model.requires_grad_(False)
    settings = _with_covariances(trained, settings, inputs, data, translated, seed)
    return FittedModel(model, settings, history, mean_logits, plan.lowered, contents, start.selections)


def _with_covariances(
    model: VariationalModel,
    settings: ModelSettings,
    inputs: FloatMatrix,
    data: Examples,
    translated: dict[str, Any],
    seed: int,
) -> ModelSettings:
    """What a trained model is, once the functions of sequences share a covariance, if they are to.

    Args:
        model: of the inputs, changed in place.
        settings: what it is.
        inputs: of the training tokens.
        data: what it was trained on.
        translated: its parameters.
        seed: decides the draws.
    """
    if data.lengths is None or translated["weight_covariance"] == "factorised":
        return settings
    return share_covariances(
        model,
        settings,
        inputs,
        data.lengths,
        kl_weight=translated["covariance_kl_weight"],
        rng=np.random.default_rng(seed),
        weights=data.row_weights,
        exactly=translated["weight_covariance"] == "auto",
        y=data.y,
    )


def _check_unfinished(checkpoint: str | Path | None) -> None:
    """Refuse a checkpoint: what is had at once has none."""
    if checkpoint is not None and Path(checkpoint).exists():
        raise ModelFormatError(
            f"{checkpoint}: this checkpoint was written with other data or settings; repeat the original command, or "
            "start anew without resuming"
        )


def _planned(
    params: dict[str, Any],
    data: Examples,
    translate: Callable[[dict[str, Any]], dict[str, Any]],
    machine: World,
    item_size: int,
    *,
    seed: int,
    validated: bool,
    reporter: Reporter,
) -> Plan:
    """Settings of the model and its training that fit into memory."""
    x, y = data.x, data.y
    sizes = {"n_rows": x.shape[0], "n_features": x.shape[1], "n_labels": y.shape[1]}
    kept = lru_cache(partial(points_kept, x, blocks=data.blocks))

    def resolve(params: dict[str, Any]) -> tuple[ModelSettings, TrainingSettings]:
        params = translate(params)
        n_points = regression_points(params, **sizes)
        points: dict[str, Any] = {}
        if n_points:
            points["mean_points"] = kept(n_points=n_points)
        if n_variance := variance_points(params, n_points):
            points["variance_points"] = kept(n_points=n_variance)
        if params["latents"] in (*CLOSED, "landmarks-point"):
            points["landmarks"] = kept(n_points=landmark_count(params, n_rows=x.shape[0], n_labels=y.shape[1]))
        settings = model_settings(params, **sizes, **points, blocks=data.blocks)
        training = training_settings(params, model=settings, n_rows=data.n_units, seed=seed)
        return settings, replace(training, shuffle_rows=_MAPPED_BLOCK) if is_mapped(x) else training

    def needed(settings: ModelSettings, training: TrainingSettings) -> int:
        of_process = settings
        if settings.likelihood_class.labels_independent and settings.mixing == "factor":
            # Each process holds the whole model once, and gradients and moments of its labels.
            of_process = replace(settings, n_labels=-(-y.shape[1] // min(machine.size, 4)))
        return machine.local_size * training_memory(
            of_process,
            n_rows=x.shape[0],
            n_stored=stored_in_memory(x) + stored_in_memory(y),
            labels_per_step=labels_per_step(y, training),
            item_size=item_size,
            optimizer_state=training.optimizer_state,
            n_copies=validated + (params["checkpoint"] is not None),
            weight_covariance=params.get("weight_covariance", "factorised"),
            **_batch_sizes(data, training, has_classes=settings.likelihood_class.has_classes),
        )

    asked = translate(params)
    without_mean = ', or set mean_function="zero"' if regression_points(asked, **sizes) else ""
    advice = f"n_inducing, n_latent or batch_size (or use fewer features{without_mean})"
    if data.lengths is not None:
        advice = "n_random_features, n_reduced, n_inducing or batch_size"
    elif asked["latents"] in CLOSED:
        first = "n_mean_points" if asked["latents"] == "regression" else "batch_size"
        advice = f'{first} or n_inducing, or set latents="gp"'
    # Processes that start at different moments see different free memory.
    available = machine.said_by_first(memory_left(memory_limit(params["max_memory"]), machine.local_size))
    plan = plan_within(available, params, resolve=resolve, needed=needed, advice=advice)
    if plan.lowered:
        reporter.note(described(plan, available))
    return plan


def _batch_sizes(data: Examples, training: TrainingSettings, *, has_classes: bool) -> dict[str, int]:
    """What the sizes of a batch are to `training_memory`."""
    if data.lengths is None:
        of_classes = training.label_sampling != "pair" and has_classes
        return {"batch_size": training.batch_size, "n_classes": -(-data.y.nnz // data.n_units) if of_classes else 1}
    # A batch of the longest sequences.
    tokens = int(np.sort(data.lengths)[-training.batch_size :].sum())
    return {
        "batch_size": tokens,
        "n_sequences": training.batch_size,
        "batch_stored": tokens * stored_in_memory(data.x) // data.x.shape[0],
        "n_draws": training.n_draws,
    }


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


def check_dense(settings: ModelSettings, x: FloatMatrix) -> None:
    """Refuse sparse inputs of a kernel that needs arrays.

    Raises:
        DataError: they are sparse.
    """
    if isinstance(settings.kernel, Kernel) and settings.kernel.needs_dense and scipy.sparse.issparse(x):
        raise DataError(f"the kernel {type(settings.kernel).__name__} needs dense inputs: pass X as an array")


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


def validator(model: VariationalModel, held_out: Examples) -> Callable[[], float]:
    """P@1 of the current parameters: of classes, accuracy. What the mean function says does not change with them.

    It is the mean over weighted rows, of soft labels the expected one.
    """
    x, y, lengths, *_ = held_out
    y = y.sign() if model.likelihood.has_counts else y

    def of_sequences() -> Iterator[NDArray[Any]]:
        assert lengths is not None
        for block in Predictor(model, n_draws=_VALIDATION_DRAWS).blocks(x, lengths):
            yield block.marginals().mean(0).cpu().numpy()

    logits = None if lengths is not None else Predictor(model).mean_logits(x)

    def of_rows() -> Iterator[NDArray[Any]]:
        for _, utilities in Predictor(model).utilities(x, logits):
            yield utilities.means().cpu().numpy()

    def score() -> float:
        with torch.no_grad():
            best = [TopK.from_scores(block, 1) for block in (of_rows() if lengths is None else of_sequences())]
        return weighted_mean(first_gains(y, TopK.concatenate(best)), held_out.counted)

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
