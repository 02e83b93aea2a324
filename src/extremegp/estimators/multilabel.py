"""Many labels per instance: a factor model of Gaussian processes with Bernoulli labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from extremegp.data import Features, FloatCSR, FloatMatrix, LabelSpace
from extremegp.data.frames import column_names
from extremegp.engine.likelihoods import Likelihood
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.base import RowEstimator, check_columns
from extremegp.estimators.distances import fit_novelty
from extremegp.estimators.examples import Examples, split
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.learning_closed import LearnsInClosedForm
from extremegp.estimators.learning_targets import LearnsLabels
from extremegp.estimators.multilabel_estimator import checked_ranking, encode_as_known
from extremegp.estimators.parameters import RowTrainingParameters, SparseGPParameters
from extremegp.estimators.row_ids import without_absent_ids
from extremegp.estimators.weights import label_counts
from extremegp.metrics import TopK
from extremegp.prediction.known_labels import GivenVariance
from extremegp.prediction.label_index import LabelIndex
from extremegp.prediction.predictor import Predictor, RankedBy, check_given, stack
from extremegp.settings.domains import choice
from extremegp.settings.latents import latents_asked
from extremegp.settings.resolve import label_propensities

_FIXED = {"mixing": "factor", "local": "optimal", "n_mean_points": "auto"}


@dataclass(kw_only=True, repr=False, eq=False)
class MultiLabelGPClassifier(RowTrainingParameters, SparseGPParameters, LearnsInClosedForm, RowEstimator, LearnsLabels):
    """Multi-label classification by sparse variational Gaussian processes (T chapter 4; ML).

    P latent functions with Gaussian process priors are mixed by K x P loadings into a utility per label, and a label is
    present with the logistic probability of its utility. Training maximises a lower bound of the evidence by
    minibatches; prediction integrates over the posterior, so that probabilities are calibrated.

    Args:
        likelihood: "bernoulli" of labels that are present or not, with a logistic link; or a `Likelihood` of your own,
            such as one of counts, which `predict_proba` then gives the expectations of.
        loadings_start: loadings start at random, or at principal directions of the labels ("spectral").
        propensity: how likely labels that apply were recorded, for data where many are missing. None takes every
            missing label for one that does not apply; "auto" and a pair (a, b) estimate a propensity for each label
            from its frequency (`metrics.propensities`); or an array of K propensities in (0, 1], which `save` leaves
            out of the parameters. Probabilities are then those that labels apply, not that they were recorded.
        n_sampled_labels: labels drawn at every step to stand for all that no row of the batch has; None looks at all
            labels; "auto" does so up to 20,000 labels and draws 2000 beyond.
        label_sampling: "frequency" draws labels in proportion to the square root of how many rows have them, "uniform"
            all alike; "hard" draws by frequency, and every step also looks at the 512 labels that the model ranks
            highest for its rows though none has them.

    Attributes:
        classes_: label names in column order (K).
        n_features_in_: D.
        feature_names_in_: the names of the D features, where X was a data frame with them.
        model_: the trained `VariationalModel`.
        history_: one record per epoch: epoch, elbo, kl, learning_rate, seconds and perhaps validation_P@1.
        settings_: the `ModelSettings` that were resolved.
        hyperparameters_: what was tried for kernel, amplitude and noise before training, and what won: a `Selection`
            for each choice; None in models that earlier versions saved.
        lowered_: after `fit`, the parameters that `max_memory` made lower: by name, the value without and with it.
        label_counts_: training rows with each label (K), whatever their weights; of soft labels their sums, rounded.
        n_rows_: training rows.
        instance_noise_: how labels go together beyond what the features say, for predictions with `given`.

    Examples:
        >>> from extremegp import MultiLabelGPClassifier
        >>> texts = ["red apple", "green apple", "red car", "green car"] * 5
        >>> labels = [["fruit", "red"], ["fruit"], ["red"], []] * 5
        >>> classifier = MultiLabelGPClassifier(features="text", random_state=0)
        >>> classifier.fit(texts, labels).predict(["red apple"])
        [['fruit', 'red']]
    """

    likelihood: str | Likelihood = "bernoulli"
    loadings_start: Literal["random", "spectral"] = "random"
    propensity: Literal["auto"] | tuple[float, float] | NDArray[Any] | None = None
    n_sampled_labels: int | Literal["auto"] | None = "auto"
    label_sampling: Literal["frequency", "uniform", "hard"] = "frequency"

    def fit(
        self,
        X: Any,
        Y: Any,
        sample_weight: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        label_names: Sequence[str | int] | None = None,
        ids: Iterable[Any] | None = None,
    ) -> Self:
        """Train the model.

        Args:
            X: inputs, N x D, CSR or dense; with features="text" N strings, as a list, a column or a data
                frame of one.
            Y: labels: an N x K indicator (sparse, array or data frame), or N lists of label names; soft labels, N x K
                numbers from 0 to 1, the probabilities that labels apply; of a likelihood of counts, N x K counts.
            sample_weight: what each of the N rows counts, or one number for all: the weight of its log-likelihood, so
                that an integer is the same as to repeat the row as often, and 0 as to leave it out. Weights are not
                scaled: those that add up to less than N make data that say less.
            validation: (X, Y) to choose the best epoch on, instead of `validation_fraction`.
            label_names: names of the K columns where Y is an indicator; by default those of the data frame, or their
                numbers.
            ids: names of the rows, to `forget` them by; by default "0" to N - 1, of the rows that count.

        Returns:
            The estimator itself.

        Raises:
            DataError: X, Y or weights cannot be used, or their lengths differ.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if Y is None:
            raise DataError("MultiLabelGPClassifier requires y to be passed, but the target y is None")
        X, Y, weights, ids = without_absent_ids(X, Y, sample_weight, ids)
        self._drop_journal()
        features, x, y, space, target_kind = self._training_rows(X, Y, label_names)
        if not y.nnz:
            raise DataError("no row has any label: Y holds no positive entry")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        n_rows = x.shape[0]
        propensities = self._propensities(y, weights)
        if validation is not None:
            check_columns(validation[0], None if features.kind == "text" else column_names(X))
        data, held_out = self._split(
            Examples(x, y, weights=weights, blocks=features.layout), features, space, validation, rng
        )
        self._train(
            data,
            held_out,
            rng=rng,
            seed=seed,
            score_name="P@1",
            propensities=propensities,
            features=features,
            space=space,
            target_kind=target_kind,
            label_counts=label_counts(y),
            n_rows=n_rows,
            novelty=fit_novelty(features, X, x),
            feature_names=None if features.layout else column_names(X),
        )
        self._keep_rows(x, y, weights, ids)
        return self

    def _propensities(self, y: FloatCSR, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        n_counted = y.shape[0] if weights is None else round(float(weights.sum()))
        return label_propensities(self.propensity, label_counts=label_counts(y, weights), n_rows=n_counted)

    def _translated(self, params: dict[str, Any], data: Examples | None) -> dict[str, Any]:
        self.new_features("text")
        likelihood = params["likelihood"]
        if not isinstance(likelihood, Likelihood):
            choice("likelihood", likelihood, ("bernoulli",))
        elif not self._takes(type(likelihood)):
            raise SettingsError(f"likelihood={type(likelihood).__name__} is not of many labels per row")
        n_rows, n_labels = (1, 1) if data is None else (data.x.shape[0], data.y.shape[1])
        return _FIXED | latents_asked(params, n_rows=n_rows, n_labels=n_labels)

    @property
    def _has_counts(self) -> bool:
        return isinstance(self.likelihood, Likelihood) and self.likelihood.has_counts

    @property
    def _takes_soft(self) -> bool:
        return not isinstance(self.likelihood, Likelihood) or self.likelihood.takes_soft_labels

    @classmethod
    def _takes(cls, likelihood: type[Likelihood]) -> bool:
        return not likelihood.has_classes

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        by: RankedBy = "probability",
        output: str = "arrays",
        given: Any = None,
        given_variance: GivenVariance = "laplace",
        approximate: float | None = None,
    ) -> TopK | FloatCSR:
        """The k best labels of every row, without ever holding N x K.

        Args:
            X: as in `fit`.
            k: how many labels.
            by: "utility" ranks by the mean utility, as in the papers; "probability" by p(y = 1).
            output: "arrays" for a `TopK` (labels and scores, N x k, best first), "csr" for a sparse N x K of scores.
            given: labels known already, as in `predict_proba`; they are not predicted.
            given_variance: as in `predict_proba`.
            approximate: the share of the exact k best labels to find, such as 0.98, by an index of the labels, which is
                much faster with very many labels; None finds all. The first call builds the index, which needs faiss
                (`pip install 'extremegp[ann]'`) and the time of a few hundred rows' exact search, and measures how
                carefully to search on up to 256 of its rows; later calls use it again. Scores are exact. See
                `label_index`.

        Returns:
            The labels (column indices) and the scores they are ranked by, padded where fewer than k are left.

        Raises:
            SettingsError: an argument is outside its domain; `approximate` with `given`, with a mean function, or
                without faiss.
            DataError: X or `given` cannot be used, or their lengths differ.
        """
        k, by = checked_ranking(k, by, output)
        if approximate is None:
            predictor, x, known = self._conditional(X, given, given_variance)
            return self._gathered(predictor.top(x, k, by, known), output)
        if given is not None:
            raise SettingsError("approximate search cannot take given labels into account: leave out one of them")
        x, index = self._transform(X), self.label_index()
        setting = index.tune(x, k, approximate, by)
        return self._gathered(index.top(x, k, by, setting=setting), output)

    def label_index(self) -> LabelIndex:
        """The index of the labels that approximate search uses; built at the first call, and again if `model_` changes.

        Raises:
            SettingsError: the model has a mean function, or faiss is not installed.
        """
        check_is_fitted(self, "model_")
        predictor = self.predictor()
        return self._kept.get("index", lambda: LabelIndex(predictor), self.model_, predictor)

    def predict_proba(
        self, X: Any, *, given: Any = None, given_variance: GivenVariance = "laplace"
    ) -> NDArray[np.float32]:
        """p(y_ik = 1), N x K and dense: for many rows and labels prefer `predict_topk(by="probability")`.

        Args:
            X: as in `fit`.
            given: labels of the rows that are known already, on which the others are then conditioned (T 4.37): N x K,
                sparse or an array, 1 for a label that is present, -1 for one that is absent, 0 for an unknown one; or,
                with label names, N lists of those that are present. Their own probability is 1 or 0.
            given_variance: what known labels do to the uncertainty about the others: "laplace" reduces it, "map" leaves
                it, which is faster where there are many labels.

        Raises:
            DataError: X or `given` cannot be used, or their lengths differ.
        """
        predictor, x, known = self._conditional(X, given, given_variance)
        return stack(predictor.probabilities(x, known), x.shape[0], self.settings_.n_labels)

    def decision_function(self, X: Any, *, given: Any = None) -> NDArray[np.float32]:
        """Mean utilities E f_ik, N x K and dense: the log-odds of a label at the posterior mean.

        Args:
            X: as in `fit`.
            given: labels known already, as in `predict_proba`; the utilities are then those at the mode.
        """
        predictor, x, known = self._conditional(X, given)
        return stack(predictor.mean_utilities(x, known), x.shape[0], self.settings_.n_labels)

    def _conditional(
        self, X: Any, given: Any, given_variance: GivenVariance = "laplace"
    ) -> tuple[Predictor, FloatMatrix, FloatCSR | None]:
        """The predictor, the inputs, and what is known about their labels, checked before any work."""
        check_is_fitted(self, "model_")
        choice("given_variance", given_variance, ("laplace", "map"))
        known = None if given is None else check_given(given, self.settings_.n_labels, self.label_space_)
        x = self._transform(X)
        if known is not None and known.shape[0] != x.shape[0]:
            raise DataError(f"X has {x.shape[0]} rows and given has {known.shape[0]}: one is needed for each row")
        return self.predictor().using(given_variance=given_variance), x, known

    def _split(
        self,
        data: Examples,
        features: Features,
        space: LabelSpace | None,
        validation: tuple[Any, Any] | None,
        rng: np.random.Generator,
    ) -> tuple[Examples, Examples | None]:
        """Training part and validation part, if any."""
        if validation is None:
            return split(data, fraction=self.validation_fraction, patience=self.patience, rng=rng)
        held_x = features.transform(validation[0])
        held_y = encode_as_known(
            validation[1],
            data.y.shape[1],
            space,
            counts=self._has_counts,
            soft=self._takes_soft,
            name="the Y of validation",
        )
        check_lengths(held_x, held_y)
        return data, Examples(held_x, held_y, blocks=features.layout)
