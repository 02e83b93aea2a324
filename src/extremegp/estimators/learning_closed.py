"""How models with a regression in closed form learn rows, and forget them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents.regression import RegressionGP
from extremegp.engine.lengthscales import chosen
from extremegp.engine.matrices import is_mapped, suited_form
from extremegp.errors import ModelFormatError, SettingsError
from extremegp.estimators.examples import Examples
from extremegp.estimators.explanations import Told, VotingRows
from extremegp.estimators.held_rows import HeldRows
from extremegp.estimators.learning import LearnsRows
from extremegp.estimators.learning_left_out import LeavesOutInClosedForm
from extremegp.estimators.replay import LearntRows
from extremegp.estimators.row_ids import RowIds, named_rows
from extremegp.estimators.selecting import regression_of_functions
from extremegp.metrics import TopK
from extremegp.prediction.label_scatter import LabelScatter
from extremegp.prediction.pool_covariance import KnownRegression
from extremegp.prediction.predictor import Predictor
from extremegp.settings.latents import CLOSED
from extremegp.settings.memory import check_memory, memory_left, memory_limit
from extremegp.settings.model import ModelSettings
from extremegp.training.exact_changes import RowChanges, relabelled
from extremegp.training.known_rows import KnownRows

_EXACT_ROWS, _SQUARES = 3000, 4
_LANDMARKS, _BASIS = "learning.landmarks", "learning.basis"


class LearnsInClosedForm(LeavesOutInClosedForm):
    """An estimator that may have landmarks or be a regression alone; it keeps its rows then, on which both stand."""

    max_memory: int | str | None
    # Serial numbers of the rows that landmarks are, -1 of those that are gone.
    _landmarks: NDArray[np.int64]
    _changes: RowChanges | None
    # Whether rows came or went that functions are yet to be trained on.
    _behind = False

    def _keep_rows(
        self, x: FloatMatrix, y: FloatCSR, weights: NDArray[np.float64] | None, ids: list[Any] | RowIds | None
    ) -> None:
        """Be ready to learn, once trained on these rows."""
        x = Examples(x, y, blocks=self.features_.layout).in_suited_form().x
        if is_mapped(y):
            parts: Any = tuple(map(np.array, (y.data, y.indices, y.indptr)))
            y = scipy.sparse.csr_matrix(parts, shape=y.shape)
        self._held = None if self._is_open() or is_mapped(x) else HeldRows(x, y, weights)
        self._landmarks, self._changes = chosen(x.shape[0], self.settings_.n_inducing), None
        if not isinstance(ids, RowIds):
            ids = named_rows(ids, 0 if ids is None and self._held is None else x.shape[0])
        self._begin_learning(ids)
        of_all = self.settings_.latents == "landmarks" or self.settings_.n_mean_points == x.shape[0] <= _EXACT_ROWS
        if of_all and self._has_regression():
            # From the start the regression is what changes will make of it, in float64.
            rows = KnownRows(x, y, np.ones(x.shape[0]) if weights is None else weights)
            changes = RowChanges.of(self.model_, rows)
            changes.begin_anew(np.flatnonzero(self.label_counts_ == 0))
            changes.settle()
            # Nothing has changed yet that only float64 could tell: files would be three times as large.
            self._landmark_features().unrounded = None

    def _has_regression(self) -> bool:
        """Whether training found a regression worth while: functions alone may do better."""
        settings = self.settings_
        return settings.latents == "regression" or (
            settings.latents == "landmarks" and not cast(FeatureRegression, self.model_.mean_function).is_left_out
        )

    def _is_open(self) -> bool:
        return self.settings_.latents not in CLOSED

    def _cannot_learn(self) -> str | None:
        settings = self.settings_
        if self._is_open():
            return (
                f'its functions (latents="{settings.latents}") are trained by steps; those of latents="landmarks" or '
                '"regression" can, and so can label trees (train --model tree)'
            )
        if getattr(self, "_held", None) is None:
            return "it was saved by an earlier version, or trained on mapped files, and has not kept its rows"
        if settings.latents == "regression" and settings.n_mean_points < self.n_rows_:
            return f"its regression is on {settings.n_mean_points} of {self.n_rows_} rows; give n_mean_points=N"
        return None

    def _check_learns(self) -> None:
        super()._check_learns()
        if self.settings_.is_closed and self._changes is None:
            # The inverse of the covariance of all rows, and what it takes to work that out.
            left = memory_left(memory_limit(self.max_memory), 1)
            check_memory(_SQUARES * 8 * self.n_rows_**2, settings="the number of rows", available=left)

    def _may_learn(self) -> bool:
        """Whether the model can learn; of parameters alone, whether there are data of which it could."""
        if hasattr(self, "model_"):
            return self._cannot_learn() is None
        try:
            return self._translated(self.get_params(deep=False), None)["latents"] in CLOSED
        except SettingsError:
            return False

    partial_fit = available_if(_may_learn)(LearnsRows.partial_fit)

    def predictor(self) -> Predictor:
        self._catch_up()
        return super().predictor()  # type: ignore[no-any-return]

    def _catch_up(self) -> None:
        """Let the model know the rows that there are: where there is no regression, train functions on them."""
        if self._behind:
            self._train_again()
            self._behind = False
        if self._changes is not None:
            self._changes.publish()

    def _working(self) -> RowChanges | None:
        """What rows come and go by, made of all rows at the first change; None without a regression."""
        if not self._has_regression():
            return None
        if self._changes is None:
            assert self._held is not None
            self._changes = RowChanges.of(self.model_, self._held.all())
        return self._changes

    def _take_in(self, rows: LearntRows) -> None:
        assert self._held is not None
        many = RowChanges.are_many(rows.x.shape[0], len(self._held))
        # Worked out of the rows that there were.
        changes = None if many else self._working()
        new = self._held.add(rows.x, rows.y, rows.weights)
        if changes is not None:
            changes.add(new)
            return
        if (regression := self._regression()) is not None:
            regression.mean.append(new.x)
        self._changes = None
        self._behind |= self._working() is None

    def _let_go(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        assert self._held is not None
        changes = self._working()
        row = self._held.row(place)
        serial = int(self.ids_.serials()[place])
        landmark = np.flatnonzero(self._landmarks == serial)
        self._landmarks[landmark] = -1
        features = self._held.remove(place)
        self._behind |= changes is None
        if changes is not None and not changes.remove(place, row, int(landmark[0]) if len(landmark) else None):
            self._changes = RowChanges.of(self.model_, self._held.all())
        return features, row.y.indices

    def _relabel(self, places: NDArray[np.int64], n_labels: int) -> None:
        changes, settings, scatter = self._working(), self.settings_, self.instance_noise_
        assert self._held is not None
        if changes is not None and settings.is_closed:
            # Its points are as many as its rows.
            changes.publish()
        own = settings.mixing == "identity"
        self.settings_ = replace(settings, n_labels=n_labels, n_latent=n_labels if own else settings.n_latent)
        self.model_ = relabelled(self.model_, self._sized(), places)
        if isinstance(scatter, LabelScatter):
            loadings = scatter.loadings.new_zeros(n_labels, scatter.loadings.shape[1])
            loadings[torch.from_numpy(places)] = scatter.loadings
            self.instance_noise_ = LabelScatter(loadings)
        self._held.relabel(places, n_labels)
        self._behind |= changes is None
        if changes is not None:
            changes.relabel(self.model_, places)

    def _changed(self) -> None:
        self.settings_ = self._sized()

    def _sized(self) -> ModelSettings:
        """The settings with the sizes that the rows of the regression have now."""
        if (regression := self._regression()) is None:
            return self.settings_
        mean = regression.mean
        return replace(self.settings_, n_mean_points=len(mean), n_mean_stored=mean.n_stored)

    def _inputs(self) -> FloatMatrix:
        assert self._held is not None
        return self._held.all().x

    def _labelled(self) -> NDArray[np.bool_]:
        assert self._held is not None
        return self._held.labelled

    def _landmark_features(self) -> Landmarks:
        regression = self._regression()
        features = self.model_.features if regression is None else regression.landmarks
        assert features is not None
        return features

    def _regression(self) -> RegressionGP | None:
        """The functions of a model that is a regression alone."""
        return cast(RegressionGP, self.model_.latents) if self.settings_.is_closed else None

    def _known_regression(self) -> KnownRegression:
        self._catch_up()
        return regression_of_functions(self.model_, self.settings_, self._held, self.n_rows_)

    def _compared(self) -> NDArray[np.bool_]:
        return np.ones(self.n_rows_, np.bool_)

    def _suited(self, x: FloatMatrix) -> FloatMatrix:
        return suited_form(x)

    def _told(self, x: FloatMatrix, wanted: NDArray[np.int64] | None, k: int) -> Iterator[Told]:
        changes, held = self._working(), self._held
        if changes is None:
            raise SettingsError("training found functions alone better than a regression on rows: there are no votes")
        assert held is not None
        predictor = self.predictor()
        for row in range(x.shape[0]):
            one = x[row : row + 1]
            ((_, means, p),) = predictor.mean_utilities_and_probabilities(one)
            labels = TopK.from_scores(p, min(k, p.shape[1])).labels[0] if wanted is None else wanted
            weights = changes.votes(one, held.all())
            voting = np.flatnonzero(weights)
            prior = self.model_.mixing.bias.detach()[torch.from_numpy(labels)].double().cpu().numpy()
            regressed = changes.utility(one)[labels] - (prior if self.settings_.is_closed else 0)
            parts = [
                {"prior": float(own), "regression": float(of)} | self._rest(float(mean) - float(own) - float(of))
                for own, of, mean in zip(prior, regressed, means[0][labels], strict=True)
            ]
            yield VotingRows(voting, weights[voting]), labels, p[0][labels], parts

    def _rest(self, functions: float) -> dict[str, float]:
        return {} if self.settings_.is_closed else {"functions": functions}

    def _frequency(self, label: int) -> float:
        changes = self._working()
        assert changes is not None
        return float(changes.frequencies[label])

    def _having(self, places: NDArray[np.int64], label: int) -> NDArray[np.float64]:
        assert self._held is not None
        return np.asarray(self._held.all().y[places][:, [label]].toarray().ravel(), np.float64)

    def _feature_weights(self) -> NDArray[np.float64]:
        kept = self._landmark_features().kept
        return np.asarray(kept.weights.double().cpu().numpy())

    def _scrub(self, features: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Weights of such features are then those in the middle of all, and labels begin anew."""
        assert self._held is not None
        gone, scatter, changes = self._held.unused(features), self.instance_noise_, self._working()
        regression = self._regression()
        for kept in (self._landmark_features().kept, *(() if regression is None else (regression.mean,))):
            kept.weights[torch.from_numpy(gone)] = kept.weights.median()
        if isinstance(scatter, LabelScatter):
            scatter.loadings[torch.from_numpy(labels)] = 0
        if changes is not None:
            changes.begin_anew(labels)
            changes.settle()
        return gone

    def _settle(self) -> None:
        self._catch_up()
        if self._held is not None:
            self._held.all()
        if self._changes is not None:
            self._changes.settle()
        super()._settle()

    def refit(self) -> Any:
        self._check_learns()
        self._behind = False
        serials, ids = self._serials_to_refit(), self.ids_
        x, y, counted = self._train_again()
        self._keep_rows(x, y, counted, RowIds(ids.names, ids.next_number))
        self._novelty_serials = serials
        return self

    def _train_again(self) -> tuple[FloatMatrix, FloatCSR, NDArray[np.float64] | None]:
        """Become fitted to the rows that there are, with the hyper-parameters of today; returns the rows."""
        assert self._held is not None
        x, y, weights = self._held.all()
        counted = None if (weights == 1).all() else weights
        names, titles = getattr(self, "feature_names_in_", None), self.label_titles_
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._train(
            Examples(x, y, weights=counted, blocks=self.features_.layout),
            None,
            rng=np.random.default_rng(seed),
            seed=seed,
            score_name="none",
            propensities=self._propensities(y, counted),
            features=self.features_,
            space=self.label_space_,
            target_kind=self.target_kind_,
            label_counts=self.label_counts_,
            n_rows=x.shape[0],
            novelty=self.novelty_,
            feature_names=None if names is None else names.tolist(),
            start_from=self.model_,
        )
        self.label_titles_ = titles
        self._landmarks, self._changes = self.ids_.serials()[chosen(x.shape[0], self.settings_.n_inducing)], None
        return x, y, counted

    def _propensities(self, y: FloatCSR, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        """Of the labels of rows, where they are not all recorded."""
        return None

    def _more(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        config, tensors = super()._more()
        if self._held is None or self._cannot_learn() is not None:
            return config, tensors
        serials = self.ids_.serials()
        places = np.where(self._landmarks < 0, -1, np.searchsorted(serials, self._landmarks))
        tensors[_LANDMARKS] = torch.from_numpy(places)
        unrounded = self._landmark_features().unrounded
        if unrounded is not None:
            tensors[_BASIS] = unrounded
        return config, tensors | self._held.to_tensors(with_inputs=self.settings_.latents == "landmarks")

    def _resume_learning(
        self, folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        settings = self.settings_
        self._held, self._changes, self._landmarks = None, None, np.full(settings.n_inducing, -1)
        if not self._is_open():
            regression = self._regression()
            inputs = None if regression is None else regression.mean.kept()
            shape = self.n_rows_, settings.n_features, settings.n_labels
            if inputs is None or inputs.shape[0] == self.n_rows_:
                self._held = HeldRows.from_tensors(tensors, shape, folder, inputs)
        if self._held is not None:
            places = tensors.get(_LANDMARKS)
            fits = places is not None and places.dtype == torch.int64 and places.shape == (settings.n_inducing,)
            if places is None or not fits or places.min() < -1 or places.max() >= self.n_rows_:
                raise ModelFormatError(f"{folder}: the landmarks are not rows of the model")
            self._landmarks = places.numpy().copy()
            features, basis = self._landmark_features(), tensors.get(_BASIS)
            if basis is not None:
                if basis.dtype != torch.float64 or not torch.equal(basis.to(features.basis), features.basis):
                    raise ModelFormatError(f"{folder}: the basis of the landmarks is damaged")
                features.unrounded = basis.clone()
            if "learning" not in config:
                raise ModelFormatError(f"{folder}: what it says of its rows is damaged")
        super()._resume_learning(folder, config, tensors)

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        # It is made again of the rows, once the model is as it is saved.
        if state.get("_changes") is not None:
            state["_changes"].settle()
        return state | {"_changes": None} if "_changes" in state else state
