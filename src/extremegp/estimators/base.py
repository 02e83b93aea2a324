"""What every estimator shares: saving, and loading without trust."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from extremegp.data import ClassSpace, Features, FloatMatrix, LabelSpace
from extremegp.data.frames import column_names, shortened
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import Part
from extremegp.engine.selection import Selection
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.estimators.budget import fit_within_budget
from extremegp.estimators.distances import TellsNovelty
from extremegp.estimators.examples import Examples
from extremegp.estimators.fitting import check_dense
from extremegp.estimators.kept import Kept
from extremegp.estimators.origin import Origin, split_history
from extremegp.estimators.parameters import complete_docstring
from extremegp.estimators.saved import (
    UNSAVED,
    history_and_origin,
    is_saved,
    known_params,
    label_titles,
    part_of,
    plain,
    saved_feature_names,
    saved_hyperparameters,
    saved_instance_noise,
    saved_model,
    saved_novelty,
)
from extremegp.estimators.scatter import instance_noise
from extremegp.estimators.uncertainty import TellsUncertainty
from extremegp.label_tree import LabelTreeModel, LabelTreeSettings
from extremegp.prediction.known_labels import InstanceNoise
from extremegp.prediction.label_scatter import LabelScatter
from extremegp.prediction.novelty import Novelty
from extremegp.prediction.predictor import Predictor
from extremegp.settings.memory import memory_limit
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import model_settings, regression_points, training_settings
from extremegp.storage import models

_NOISE, _NOVELTY = "instance_noise.", "novelty."


class GPEstimator(TellsNovelty, BaseEstimator):
    """A scikit-learn estimator with `save` and `extremegp.load`.

    Attributes:
        hyperparameters_: what was tried for hyper-parameters beside training, and what won: empty where a model takes
            all from its settings or learns them in training, None in models that earlier versions saved.
    """

    _target_kinds: ClassVar[tuple[str, ...]]
    # How the names of tensors start that a loaded model maps from its file: those of no arithmetic whose rounding
    # depends on where they lie in memory.
    _mapped_tensors: ClassVar[tuple[str, ...]] = ()
    origin_: Origin | None
    hyperparameters_: list[Selection] | None
    format_version_: int
    label_titles_: list[str] | None
    _kept: Kept

    def shown_labels(self, titles: Sequence[str] | None = None) -> list[str]:
        """The names of all labels for people to read: what they are called, and beside it what they are.

        Args:
            titles: what they are called; by default as the vocabulary of training has it.
        """
        names = [str(name) for name in self.classes_]
        titles = names if titles is None and self.label_titles_ is None else titles or self.label_titles_
        assert titles is not None
        pairs = zip(titles, names, strict=True)
        return [name if title == name else f"{title} ({name})" for title, name in pairs]

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
        instance_noise: InstanceNoise | LabelScatter | None,
        novelty: Novelty | None,
        hyperparameters: list[Selection] | None,
        feature_names: list[str] | None = None,
    ) -> None:
        """Become fitted."""
        self._kept = Kept()
        self.model_ = model
        self.settings_ = settings
        self.features_ = features
        self.label_space_ = space
        self.target_kind_ = target_kind
        self.history_ = history
        self.label_counts_ = label_counts
        self.n_rows_ = n_rows
        self.instance_noise_ = instance_noise
        self.novelty_ = novelty
        self.hyperparameters_ = hyperparameters
        self.label_titles_ = None
        if isinstance(space, ClassSpace):
            self.classes_ = space.classes
        else:
            self.classes_ = np.arange(len(label_counts)) if space is None else np.array(space.names, dtype=object)
        if features.kind not in ("text", "sequences", "blocks"):
            self.n_features_in_ = features.n_features_in
        if feature_names is not None and features.kind != "text":
            self.feature_names_in_ = np.array(feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Estimators of earlier versions were pickled without it.
        super().__setstate__({"_kept": Kept(), "novelty_": None, "hyperparameters_": None} | state)

    def _transform(self, X: Any) -> FloatMatrix:
        """The features of new inputs, which must have the columns of training if both have names.

        Raises:
            DataError: the names or their order differ, or the features step cannot use X.
        """
        check_is_fitted(self, "model_")
        known = getattr(self, "feature_names_in_", None)
        check_columns(X, None if known is None else known.tolist())
        assert isinstance(self.features_, Features)
        return self.features_.transform_new(X, stacklevel=4)

    def save(self, folder: str | Path) -> None:
        """Write the fitted estimator to a folder: config.json and tensors.safetensors, atomically.

        Raises:
            DataError: the folder cannot be written, or is something other than a saved model.
        """
        check_is_fitted(self, "model_")
        self._settle()
        feature_config, feature_arrays = self.features_.to_state()
        history, seconds = split_history(self.history_)
        origin, selections = getattr(self, "origin_", None), self.hyperparameters_
        params = {name: plain(value) for name, value in self.get_params(deep=False).items() if name not in UNSAVED}
        config = {
            "estimator": type(self).__name__,
            "params": {name: value for name, value in params.items() if is_saved(value)},
            "settings": self.settings_.to_config(),
            "features": feature_config,
            "labels": None if self.label_space_ is None else self.label_space_.to_config(),
            "target_kind": self.target_kind_,
            "history": history,
            "n_rows": self.n_rows_,
            "feature_names": self.feature_names_in_.tolist() if hasattr(self, "feature_names_in_") else None,
            "label_titles": self.label_titles_,
            "hyperparameters": None if selections is None else [asdict(each) for each in selections],
            "origin": origin and origin.to_config(),
            # All that differs between two runs with one seed.
            "run": {"trained": origin and origin.trained, "seconds": seconds},
        }
        tensors = {f"model.{name}": tensor for name, tensor in self.model_.state_dict().items()}
        tensors |= {f"features.{name}": torch.from_numpy(np.array(array)) for name, array in feature_arrays.items()}
        tensors["label_counts"] = torch.from_numpy(self.label_counts_)
        if self.instance_noise_ is not None:
            tensors |= {f"{_NOISE}{name}": part for name, part in self.instance_noise_._asdict().items()}
        if self.novelty_ is not None:
            tensors |= {f"{_NOVELTY}{name}": part for name, part in self.novelty_.to_tensors().items()}
        more_config, more_tensors = self._more()
        models.write_model(folder, config | more_config, tensors | more_tensors)

    def _settle(self) -> None:
        """What is to be done before the model is saved."""

    def _more(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What `save` writes beside what all estimators have."""
        return {}, {}

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
            estimator = cls(**known_params(cls, config.get("params"), folder, parts))
            settings = cls._settings_from(config.get("settings"), parts)
        except SettingsError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        model = saved_model(settings, tensors, folder)
        try:
            arrays = {name: tensor.numpy() for name, tensor in part_of(tensors, "features.").items()}
        except TypeError as error:
            raise ModelFormatError(
                f"{folder}: an array of the features step has a type of its own ({error})"
            ) from error
        features = cls._features_from(config.get("features"), arrays)
        label_counts = tensors.get("label_counts")
        n_rows, labels = config.get("n_rows"), config.get("labels")
        history, origin = history_and_origin(config, folder)
        if label_counts is None or label_counts.shape != (settings.n_labels,) or label_counts.dtype != torch.int64:
            raise ModelFormatError(f"{folder}: the label counts do not fit {settings.n_labels} labels")
        if not isinstance(n_rows, int) or not 1 <= n_rows < 2**63 or features.n_features_in != settings.n_features:
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
            instance_noise=saved_instance_noise(part_of(tensors, _NOISE), model, device, folder),
            novelty=saved_novelty(part_of(tensors, _NOVELTY), features, folder),
            hyperparameters=saved_hyperparameters(config.get("hyperparameters"), folder),
            feature_names=saved_feature_names(config.get("feature_names"), features, folder),
        )
        estimator.origin_, estimator.format_version_ = origin, config["format_version"]
        estimator.label_titles_ = label_titles(config.get("label_titles"), settings.n_labels, folder)
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

    def _instead(self) -> list[dict[str, Any]]:
        """Parameters of quicker methods, the better first, for a time budget that is too small for this one."""
        return []

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        params = self._translated(self.get_params(deep=False), None)
        # As many classes as there are functions, where each has one.
        own = params["n_latent"] if params["mixing"] == "identity" else 2
        n_labels = own if isinstance(own, int) else 2
        points = regression_points(params, n_rows=1, n_features=1, n_labels=n_labels)
        memory_limit(params["max_memory"])
        settings = model_settings(params, n_rows=1, n_features=1, n_labels=n_labels, mean_points=(points, None))
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
        start_from: VariationalModel | None = None,
        chosen: dict[str, Any] | None = None,
        **known: Any,
    ) -> None:
        """Become fitted, perhaps with the hyper-parameters of a model, or with parameters that were chosen.

        `known` is what `_adopt` takes besides.
        """
        params = self.get_params(deep=False) | (chosen or {})
        if params.get("features") == "auto":
            params["features"] = known["features"].kind
        if not getattr(params["kernel"], "needs_dense", False):
            data, held_out = data.in_suited_form(), held_out and held_out.in_suited_form()
        # What was kept of another model takes memory.
        self._kept = Kept()
        fitted = fit_within_budget(
            params,
            data,
            held_out,
            instead=[] if chosen else self._instead(),
            translate=lambda params: self._translated(params, data),
            rng=rng,
            seed=seed,
            score_name=score_name,
            propensities=propensities,
            known=start_from,
        )
        self.lowered_ = fitted.lowered
        noise = instance_noise(fitted.model, data, fitted.mean_logits, np.random.default_rng(seed))
        self._adopt(
            fitted.model,
            settings=fitted.settings,
            history=fitted.history,
            instance_noise=noise,
            hyperparameters=fitted.selections,
            **known,
        )
        training, validation = (
            part and part.origin(content) for part, content in zip((data, held_out), fitted.contents, strict=True)
        )
        assert training is not None
        self.origin_ = Origin.now(self, drawn_seed=seed, training=training, validation=validation)

    def predictor(self) -> Predictor:
        """What predicts, a block of rows or sequences at a time; the same one until `model_` changes."""
        check_is_fitted(self, "model_")
        model, noise = self.model_, self.instance_noise_
        return self._kept.get("predictor", lambda: Predictor(model, noise), model, noise)

    @classmethod
    def _settings_from(cls, values: Any, parts: Sequence[type[Part]]) -> ModelSettings:
        settings = ModelSettings.from_config(values, parts)
        if not cls._takes(settings.likelihood_class):
            raise SettingsError(f"{cls.__name__} has no likelihood {settings.likelihood!r}")
        return settings


class RowEstimator(VariationalEstimator, TellsUncertainty):
    """A scikit-learn estimator with a `VariationalModel` of rows."""

    features_: Features

    def _transform(self, X: Any) -> FloatMatrix:
        x = super()._transform(X)
        check_dense(self.settings_, x)
        return x

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Posterior means and variances of the P latent functions, two arrays of N x P."""
        x, predictor = self._transform(X), self.predictor()
        blocks = [utilities.latents for _, utilities in predictor.utilities(x)]
        means, variances = (part.cpu().numpy().astype(np.float32) for part in Marginals.concatenate(blocks))
        return means, variances


def check_columns(X: Any, known: list[str] | None) -> None:
    """Refuse a data frame whose columns are not those of training in their order, where both have names.

    Raises:
        DataError: they differ.
    """
    names = column_names(X)
    if names is not None and known is not None and names != known:
        differ = sorted(map(repr, set(names).symmetric_difference(known)))
        raise DataError(
            "The feature names should match those that were passed during fit, in their order (feature_names_in_); "
            + (f"only one of the two has {shortened(differ)}" if differ else "their order differs")
        )
