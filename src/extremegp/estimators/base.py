"""What every estimator shares: saving, and loading without trust."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from extremegp.data import ClassSpace, Features, FloatMatrix, LabelSpace, Template
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import Part
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.estimators.fitting import DTYPES, Examples, check_dense, fit_model, instance_noise
from extremegp.estimators.parameters import complete_docstring
from extremegp.label_tree import LabelTreeModel, LabelTreeSettings
from extremegp.prediction.known_labels import InstanceNoise
from extremegp.prediction.predictor import Predictor
from extremegp.settings.memory import memory_limit
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import described, made
from extremegp.settings.resolve import model_settings, regression_points, training_settings
from extremegp.storage import models
from extremegp.storage.tensors import copy_state

_NOISE = "instance_noise."
_UNSAVED = ("checkpoint", "device", "max_memory", "verbose")


class GPEstimator(BaseEstimator):
    """A scikit-learn estimator with `save` and `extremegp.load`."""

    _target_kinds: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        complete_docstring(cls)

    def _adopt(
        self,
        model: VariationalModel | LabelTreeModel,
        *,
        settings: ModelSettings | LabelTreeSettings,
        features: Features | SequenceFeatures,
        space: LabelSpace | ClassSpace | None,
        target_kind: str,
        history: list[dict[str, float]],
        label_counts: NDArray[np.int64],
        n_rows: int,
        instance_noise: InstanceNoise | None,
        feature_names: list[str] | None = None,
    ) -> None:
        """Become fitted."""
        self.model_ = model
        self.settings_ = settings
        self.features_ = features
        self.label_space_ = space
        self.target_kind_ = target_kind
        self.history_ = history
        self.label_counts_ = label_counts
        self.n_rows_ = n_rows
        self.instance_noise_ = instance_noise
        if isinstance(space, ClassSpace):
            self.classes_ = space.classes
        else:
            self.classes_ = np.arange(len(label_counts)) if space is None else np.array(space.names, dtype=object)
        if features.kind not in ("text", "sequences", "blocks"):
            self.n_features_in_ = features.n_features_in
        if feature_names is not None:
            self.feature_names_in_ = np.array(feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _transform(self, X: Any) -> FloatMatrix:
        """The features of new inputs, which must have the columns of training if both have names.

        Raises:
            DataError: the names or their order differ, or the features step cannot use X.
        """
        check_is_fitted(self, "model_")
        known = getattr(self, "feature_names_in_", None)
        check_columns(X, None if known is None else known.tolist())
        assert isinstance(self.features_, Features)
        x = self.features_.transform(X)
        if n_unknown := self.features_.n_unknown(x):
            warnings.warn(
                f"{n_unknown} of {x.shape[0]} texts have no word that is known from training: nothing can be told from "
                "them, and they all get the same answer",
                UserWarning,
                stacklevel=3,
            )
        return x

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder: config.json and tensors.safetensors, atomically.

        Raises:
            DataError: the folder cannot be written, or is something other than a saved model.
        """
        check_is_fitted(self, "model_")
        feature_config, feature_arrays = self.features_.to_state()
        params = {name: _plain(value) for name, value in self.get_params(deep=False).items() if name not in _UNSAVED}
        config = {
            "estimator": type(self).__name__,
            "params": {name: value for name, value in params.items() if _is_saved(value)},
            "settings": self.settings_.to_config(),
            "features": feature_config,
            "labels": None if self.label_space_ is None else self.label_space_.to_config(),
            "target_kind": self.target_kind_,
            "history": self.history_,
            "n_rows": self.n_rows_,
            "feature_names": self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None,
        }
        tensors = {f"model.{name}": tensor for name, tensor in self.model_.state_dict().items()}
        tensors |= {f"features.{name}": torch.from_numpy(np.array(array)) for name, array in feature_arrays.items()}
        tensors["label_counts"] = torch.from_numpy(self.label_counts_)
        if self.instance_noise_ is not None:
            tensors |= {f"{_NOISE}{name}": part for name, part in self.instance_noise_._asdict().items()}
        models.write_model(folder, config, tensors)

    @classmethod
    def _from_saved(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        parts: Sequence[type[Part]],
    ) -> Self:
        try:
            estimator = cls(**_known_params(cls, config.get("params"), folder, parts))
            settings = cls._settings_from(config.get("settings"), parts)
        except SettingsError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        model = _model(settings, tensors, folder)
        try:
            arrays = {name: tensor.numpy() for name, tensor in _part(tensors, "features.").items()}
        except TypeError as error:
            raise ModelFormatError(
                f"{folder}: an array of the features step has a type of its own ({error})"
            ) from error
        features = cls._features_from(config.get("features"), arrays)
        label_counts = tensors.get("label_counts")
        n_rows, labels, history = config.get("n_rows"), config.get("labels"), config.get("history")
        if label_counts is None or label_counts.shape != (settings.n_labels,) or label_counts.dtype != torch.int64:
            raise ModelFormatError(f"{folder}: the label counts do not fit {settings.n_labels} labels")
        if (
            not isinstance(n_rows, int)
            or not 1 <= n_rows < 2**63
            or not isinstance(history, list)
            or not all(map(_is_record, history))
            or features.n_features_in != settings.n_features
        ):
            raise ModelFormatError(f"{folder}: the configuration contradicts itself")
        if config.get("target_kind") not in cls._target_kinds:
            raise ModelFormatError(f"{folder}: unknown kind of targets {config.get('target_kind')!r}")
        estimator._adopt(
            model.to(device),
            settings=settings,
            features=features,
            space=cls._space_from(labels, settings.n_labels, folder),
            target_kind=config["target_kind"],
            history=history,
            label_counts=label_counts.numpy(),
            n_rows=n_rows,
            instance_noise=_instance_noise(_part(tensors, _NOISE), model, device, folder),
            feature_names=_feature_names(config.get("feature_names"), features, folder),
        )
        return estimator

    @classmethod
    @abstractmethod
    def _settings_from(cls, values: Any, parts: Sequence[type[Part]]) -> ModelSettings | LabelTreeSettings:
        """The settings as `save` writes them.

        Raises:
            SettingsError: they are others, or outside their domains.
        """

    @classmethod
    def _features_from(cls, config: Any, arrays: dict[str, NDArray[Any]]) -> Features | SequenceFeatures:
        """The features step as `save` writes it."""
        return Features.from_state(config, arrays)

    @classmethod
    def _space_from(cls, labels: Any, n_labels: int, folder: str | Path) -> LabelSpace | ClassSpace | None:
        """The names of labels as `save` writes them."""
        if labels is None:
            return None
        if not isinstance(labels, list) or len(labels) != n_labels:
            raise ModelFormatError(f"{folder}: there are not {n_labels} label names")
        try:
            return LabelSpace(labels)
        except DataError as error:
            raise ModelFormatError(f"{folder}: {error}") from error


class VariationalEstimator(GPEstimator):
    """A scikit-learn estimator whose model is a `VariationalModel`."""

    model_: VariationalModel
    settings_: ModelSettings
    lowered_: dict[str, tuple[Any, Any]]

    @abstractmethod
    def _translated(self, params: dict[str, Any], data: Examples | None) -> dict[str, Any]:
        """The estimator's parameters as `model_settings` and `training_settings` take them.

        Args:
            params: some of which memory may have lowered.
            data: what is trained on; None to look at the parameters alone.

        Raises:
            SettingsError: one is outside its domain, or two do not go together.
        """

    @classmethod
    @abstractmethod
    def _takes(cls, likelihood: type[Likelihood]) -> bool:
        """Whether the estimator's targets are what this likelihood is of."""

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        params = self._translated(self.get_params(deep=False), None)
        # As many classes as there are functions, where each has one.
        own = params["n_latent"] if params["mixing"] == "identity" else 2
        n_labels = own if isinstance(own, int) else 2
        regression_points(params, n_rows=1, n_features=1, n_labels=n_labels)
        memory_limit(params["max_memory"])
        settings = model_settings(params, n_rows=1, n_features=1, n_labels=n_labels)
        training_settings(params, model=settings, n_rows=1, seed=0)

    def _train(
        self,
        data: Examples,
        held_out: Examples | None,
        *,
        rng: np.random.Generator,
        seed: int,
        score_name: str,
        propensities: NDArray[np.float64] | None = None,
        **known: Any,
    ) -> None:
        """Become fitted; `known` is what `_adopt` takes besides."""
        fitted = fit_model(
            self.get_params(deep=False),
            data,
            held_out,
            translate=lambda params: self._translated(params, data),
            rng=rng,
            seed=seed,
            score_name=score_name,
            propensities=propensities,
        )
        self.lowered_ = fitted.lowered
        noise = instance_noise(fitted.model, data, fitted.mean_logits, np.random.default_rng(seed))
        self._adopt(fitted.model, settings=fitted.settings, history=fitted.history, instance_noise=noise, **known)

    @classmethod
    def _settings_from(cls, values: Any, parts: Sequence[type[Part]]) -> ModelSettings:
        settings = ModelSettings.from_config(values, parts)
        if not cls._takes(settings.likelihood_class):
            raise SettingsError(f"{cls.__name__} has no likelihood {settings.likelihood!r}")
        return settings


class RowEstimator(VariationalEstimator):
    """A scikit-learn estimator with a `VariationalModel` of rows."""

    features_: Features

    def _transform(self, X: Any) -> FloatMatrix:
        x = super()._transform(X)
        check_dense(self.settings_, x)
        return x

    def predictor(self) -> Predictor:
        """What predicts, a block of rows at a time."""
        check_is_fitted(self, "model_")
        return Predictor(self.model_, self.instance_noise_)

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Posterior means and variances of the P latent functions, two arrays of N x P."""
        x, predictor = self._transform(X), self.predictor()
        blocks = [utilities.latents for _, utilities in predictor.utilities(x)]
        means, variances = (part.cpu().numpy().astype(np.float32) for part in Marginals.concatenate(blocks))
        return means, variances


def column_names(X: Any) -> list[str] | None:
    """The names of the columns of a data frame, if all of them are strings, as scikit-learn takes them."""
    names = list(getattr(X, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


def check_columns(X: Any, known: list[str] | None) -> None:
    """Refuse a data frame whose columns are not those of training in their order, where both have names.

    Raises:
        DataError: they differ.
    """
    names = column_names(X)
    if names is not None and known is not None and names != known:
        differ = sorted(set(names).symmetric_difference(known))
        raise DataError(
            "The feature names should match those that were passed during fit, in their order (feature_names_in_); "
            + (f"only one of the two has {', '.join(map(repr, differ[:5]))}" if differ else "their order differs")
        )


def _part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _plain(value: Any) -> Any:
    """NumPy's numbers, as from a grid, to Python's, templates to their text, and parts to their descriptions."""
    if isinstance(value, Template):
        return str(value)
    if isinstance(value, Part):
        return described(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _known_params(cls: type[Any], params: Any, folder: str | Path, parts: Sequence[type[Part]]) -> dict[str, Any]:
    known = inspect.signature(cls).parameters.keys() - set(_UNSAVED)
    if not isinstance(params, dict) or not params.keys() <= known:
        raise ModelFormatError(f"{folder}: parameters that {cls.__name__} does not have")
    # JSON knows no tuples; the only ones among the parameters are pairs of numbers.
    values = {name: tuple(value) if _is_pair(value) else value for name, value in params.items()}
    values = {name: made(value, parts) if _is_part(value) else value for name, value in values.items()}
    if not all(_is_saved(value) or isinstance(value, Part) for value in values.values()):
        raise ModelFormatError(f"{folder}: a parameter is neither a number nor a string")
    return values


def _is_part(value: Any) -> bool:
    """Whether it is the description of a part, and not the kinds of blocks of features by name."""
    return isinstance(value, dict) and not all(isinstance(entry, str) for entry in value.values())


def _is_saved(value: Any) -> bool:
    """Whether a parameter is of those that models are saved with; the others decide nothing once a model is fitted."""
    return isinstance(value, (str, int, float, dict, type(None))) or (isinstance(value, tuple) and _is_pair([*value]))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, (int, float)) for part in value)


def _model(
    settings: ModelSettings | LabelTreeSettings,
    tensors: dict[str, torch.Tensor],
    folder: str | Path,
) -> VariationalModel | LabelTreeModel:
    state = _part(tensors, "model.")
    dtypes = {tensor.dtype for tensor in state.values() if tensor.dtype not in (torch.int64, torch.int32)}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES.values()):
        raise ModelFormatError(f"{folder}: the model's tensors are not all float32 or all float64")
    # Sizes in the configuration are only believed once the tensors have them: no memory is taken before.
    try:
        with torch.device("meta"):
            model = settings.build().to(dtypes.pop())
    except RuntimeError as error:
        raise ModelFormatError(f"{folder}: the sizes in the configuration are beyond any tensor's") from error
    copy_state(model, state, source=folder)
    return model.requires_grad_(False)


def _instance_noise(
    parts: dict[str, torch.Tensor],
    model: VariationalModel | LabelTreeModel,
    device: torch.device,
    folder: str | Path,
) -> InstanceNoise | None:
    """The scatter of instances, which models may lack."""
    if not parts:
        return None
    if isinstance(model, LabelTreeModel):
        raise ModelFormatError(f"{folder}: a model of label trees has no scatter of instances")
    n_functions, dtype = model.latents.n_functions, model.mixing.bias.dtype
    shapes = {name: tuple(part.shape) for name, part in parts.items()}
    if (
        shapes != {"weight": (), "factor": (n_functions, n_functions)}
        or not all(part.dtype == dtype and torch.isfinite(part).all() for part in parts.values())
        or parts["weight"] < 0
    ):
        raise ModelFormatError(f"{folder}: the scatter of instances does not fit {n_functions} latent functions")
    return InstanceNoise(**{name: part.to(device) for name, part in parts.items()})


def _feature_names(names: Any, features: Features | SequenceFeatures, folder: str | Path) -> list[str] | None:
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


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and {"epoch", "elbo", "seconds"} <= record.keys()
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in record.values())
    )
