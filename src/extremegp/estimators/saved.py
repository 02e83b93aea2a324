"""What is in the folders of saved estimators, taken out without trust."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from extremegp.data import Features, Template
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import Part, expect_tensors
from extremegp.engine.selection import Selection
from extremegp.errors import ModelFormatError
from extremegp.estimators.fitting import DTYPES
from extremegp.estimators.origin import Origin, joined_history
from extremegp.label_tree import LabelTreeModel, LabelTreeSettings
from extremegp.prediction.known_labels import InstanceNoise
from extremegp.prediction.label_scatter import LabelScatter
from extremegp.prediction.novelty import Novelty
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import described, made
from extremegp.storage.tensors import copy_state

UNSAVED = ("checkpoint", "device", "max_memory", "verbose")
"""Parameters that are of a run, not of a model."""


def part_of(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The tensors whose names start so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def plain(value: Any) -> Any:
    """NumPy's numbers, as from a grid, to Python's, templates to their text, and parts to their descriptions."""
    if isinstance(value, Template):
        return str(value)
    if isinstance(value, Part):
        return described(value)
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, np.generic) else value


def known_params(cls: type[Any], params: Any, folder: str | Path, parts: Sequence[type[Part]]) -> dict[str, Any]:
    """The parameters of an estimator's constructor."""
    known = inspect.signature(cls).parameters.keys() - set(UNSAVED)
    if not isinstance(params, dict) or not params.keys() <= known:
        raise ModelFormatError(f"{folder}: parameters that {cls.__name__} does not have")
    # JSON knows no tuples; the only ones among the parameters are pairs of numbers.
    values = {name: tuple(value) if _is_pair(value) else value for name, value in params.items()}
    values = {name: made(value, parts) if _is_part(value) else value for name, value in values.items()}
    if not all(is_saved(value) or isinstance(value, Part) for value in values.values()):
        raise ModelFormatError(f"{folder}: a parameter is neither a number nor a string")
    return values


def _is_part(value: Any) -> bool:
    """Whether it is the description of a part, and not the kinds of blocks of features by name."""
    return isinstance(value, dict) and not all(isinstance(entry, str) for entry in value.values())


def is_saved(value: Any) -> bool:
    """Whether a parameter is of those that models are saved with; the others decide nothing once a model is fitted."""
    return isinstance(value, (str, int, float, dict, type(None))) or (isinstance(value, tuple) and _is_pair([*value]))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, (int, float)) for part in value)


def saved_model(
    settings: ModelSettings | LabelTreeSettings,
    tensors: dict[str, torch.Tensor],
    folder: str | Path,
) -> VariationalModel | LabelTreeModel:
    """The model with its tensors."""
    state = part_of(tensors, "model.")
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES.values()):
        raise ModelFormatError(f"{folder}: the model's tensors are not all float32 or all float64")
    # Sizes in the configuration are only believed once the tensors have them: no memory is taken before.
    try:
        with torch.device("meta"):
            model = settings.build().to(dtypes.pop())
    except RuntimeError as error:
        raise ModelFormatError(f"{folder}: the sizes in the configuration are beyond any tensor's") from error
    expect_tensors(model, state.keys())
    copy_state(model, state, source=folder)
    return model.requires_grad_(False)


def saved_instance_noise(
    parts: dict[str, torch.Tensor],
    model: VariationalModel | LabelTreeModel,
    device: torch.device,
    folder: str | Path,
) -> InstanceNoise | LabelScatter | None:
    """The scatter of instances, which models may lack."""
    if not parts:
        return None
    if isinstance(model, LabelTreeModel):
        raise ModelFormatError(f"{folder}: a model of label trees has no scatter of instances")
    if parts.keys() == {"loadings"}:
        loadings, bias = parts["loadings"], model.mixing.bias
        fits = loadings.ndim == 2 and len(loadings) == len(bias) and loadings.dtype == bias.dtype
        if not fits or not torch.isfinite(loadings).all() or not model.mixing.independent:
            raise ModelFormatError(f"{folder}: the scatter of instances does not fit {len(bias)} labels")
        return LabelScatter(loadings.to(device))
    n_functions, dtype = model.latents.n_functions, model.mixing.bias.dtype
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    if (
        shapes != {"weight": (), "factor": (n_functions, n_functions)}
        or not all(part.dtype == dtype and torch.isfinite(part).all() for part in parts.values())
        or parts["weight"] < 0
    ):
        raise ModelFormatError(f"{folder}: the scatter of instances does not fit {n_functions} latent functions")
    return InstanceNoise(**{name: part.to(device) for name, part in parts.items()})


def saved_novelty(
    parts: dict[str, torch.Tensor], features: Features | SequenceFeatures, folder: str | Path
) -> Novelty | None:
    """What rows are compared with to tell whether they are new, which models of earlier versions lack."""
    if not parts:
        return None
    widths = [block.n_features for block in features.layout] or [features.n_features_in]
    return Novelty.from_tensors(parts, widths, folder)


def saved_hyperparameters(values: Any, folder: str | Path) -> list[Selection] | None:
    """What was tried for hyper-parameters, which models of earlier versions do not say."""
    if values is None:
        return None
    if not isinstance(values, list) or not all(map(_is_selection, values)):
        raise ModelFormatError(f"{folder}: what it says of its hyper-parameters is damaged")
    return [Selection(**each) for each in values]


def _is_selection(values: Any) -> bool:
    if not isinstance(values, dict) or values.keys() != {entry.name for entry in fields(Selection)}:
        return False
    chosen, tried = values["chosen"], values["tried"]
    return (
        isinstance(values["by"], str)
        and _are_values(chosen)
        and isinstance(tried, list)
        and all(_are_values(each) and each.keys() == {*chosen, "score"} for each in tried)
    )


def _are_values(values: Any) -> bool:
    """Whether they are numbers or words by name, and at least one."""
    found = values.values() if isinstance(values, dict) else ()
    return len(found) > 0 and all(
        (isinstance(each, str) and each.isprintable()) or (type(each) in (int, float) and math.isfinite(each))
        for each in found
    )


def label_titles(titles: Any, n_labels: int, folder: str | Path) -> list[str] | None:
    """What labels are called beside what they are, which models may lack."""
    if titles is None:
        return None
    if not isinstance(titles, list) or len(titles) != n_labels or not all(isinstance(title, str) for title in titles):
        raise ModelFormatError(f"{folder}: there are not {n_labels} titles of labels")
    return titles


def saved_feature_names(names: Any, features: Features | SequenceFeatures, folder: str | Path) -> list[str] | None:
    """The names of the columns of X, which models may lack."""
    if names is None:
        return None
    if (
        not isinstance(names, list)
        or len(names) != features.n_features_in
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) != len(names)
        or features.kind in ("text", "sequences", "blocks")
    ):
        raise ModelFormatError(f"{folder}: the feature names are not {features.n_features_in} different strings")
    return names


def history_and_origin(config: dict[str, Any], folder: str | Path) -> tuple[list[dict[str, float]], Origin | None]:
    """How training went, and what made the model, which those of format version 1 do not say."""
    run, origin = config.get("run", {}), config.get("origin")
    try:
        if not isinstance(run, dict):
            raise ModelFormatError("what it says of its run is damaged")
        history = joined_history(config.get("history"), run.get("seconds"))
        return history, None if origin is None else Origin.from_config(origin, run.get("trained"))
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder}: {error}") from error
