"""One class per instance, out of ten or of a hundred thousand: Gaussian processes under class likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from extremegp.data import ClassSpace, FloatCSR, FloatMatrix, encode_classes, one_hot
from extremegp.data.frames import column_names
from extremegp.data.soft_labels import are_class_probabilities, class_probabilities_of, encode_class_probabilities
from extremegp.engine.likelihoods import Likelihood
from extremegp.errors import DataError
from extremegp.estimators.base import RowEstimator, check_columns
from extremegp.estimators.class_sets import DecidesClasses
from extremegp.estimators.distances import fit_novelty
from extremegp.estimators.examples import Examples, split
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.learning_closed import LearnsInClosedForm
from extremegp.estimators.learning_targets import LearnsClasses
from extremegp.estimators.parameters import RowTrainingParameters, SparseGPParameters, TextParameters
from extremegp.estimators.row_ids import without_absent_ids
from extremegp.estimators.selecting import Doubt, SelectsRows, doubt_of_classes
from extremegp.estimators.weights import first_gains, label_counts, weighted_mean
from extremegp.metrics import TopK
from extremegp.prediction.predictor import stack
from extremegp.settings.domains import number
from extremegp.settings.latents import latents_asked
from extremegp.settings.resolve import class_params


@dataclass(kw_only=True, repr=False, eq=False)
class MultiClassGPClassifier(
    RowTrainingParameters,
    SparseGPParameters,
    TextParameters,
    ClassifierMixin,
    LearnsInClosedForm,
    RowEstimator,
    LearnsClasses,
    DecidesClasses,
    SelectsRows,
):
    """Classification into one of K classes by sparse variational Gaussian processes (T chapter 3; X).

    Every class has a utility, a Gaussian process or a mixture of some that the classes share, and the utilities have a
    class likelihood. Training maximises a lower bound of the evidence by minibatches; prediction integrates over the
    posterior, so that probabilities are calibrated.

    Args:
        features: what is done to X first, in training and prediction alike: "unit", "tfidf", "raw" and "text" as in
            `MultiLabelGPClassifier`; "scale" divides all features by one number, "root" their square roots, "standard"
            brings each to mean 0 and the same variance. "auto" is "unit" for sparse X, "root" for features in the same
            units such as pixels (none negative, and half of them range from under a tenth to over half of the largest
            value), "text" for strings, else "standard". A mapping from names to kinds is for blocks of features, as in
            `MultiLabelGPClassifier`.
        likelihood: "softmax" with its expectation integrated exactly (by draws where functions are mixed), "softmax-mc"
            by draws always; lower bounds of it that are sums over classes, "one-vs-each" (T 3.3, X 11), "ar-softmax" (X
            16) and "ar-logit" (X 15); "probit-one-vs-each" (X section 4.2); "robust-max" (T 3.39); "independent" takes
            the class for K labels of which one is present. "auto" is "softmax" where up to 500 classes have a function
            each and none are sampled, else "ar-softmax".
        local: parameters that "ar-softmax" and "ar-logit" have for every instance: "optimal" for the functions of the
            step, "amortised" by a network of the inputs (X section 3.3), or "stored" for every row and improved at
            every visit; "auto" is "optimal", or "amortised" where classes are sampled.
        mixing: "identity" gives every class a function of its own, "factor" mixes P functions by K x P loadings; "auto"
            is "identity" up to 500 classes.
        latents: "regression" is the Gaussian process regression of the classes' indicators with a link that rows left
            out choose: its posterior is closed, so that nothing is trained by steps and `history_` has one record
            without a bound. "gp" and "landmarks" as of `MultiLabelGPClassifier`. Or linear functions of the features:
            "linear" with a Gaussian posterior whose relative variances classes share, "linear-mean-field" with one for
            every coefficient, "linear-point" without (T 3.22). "auto" is "regression" for up to 16,384 rows and 500
            classes where no parameter asks for what it does not have, such as `epochs` or `kernel`; else "gp".
        n_mean_points: rows that the regression (as `latents` or as `mean_function`) keeps, spread over the training
            rows: more are more accurate, and take N times their square of time; "auto" is all up to 16,384 rows, and at
            most 8192 of more.
        n_sampled_classes: classes drawn at every step to stand for all that no row of the batch has (X 10), a number or
            a share of the classes; None looks at all classes; "auto" does so up to 20,000 classes and draws 1000
            beyond.
        class_sampling: "frequency" draws classes in proportion to the square root of how many rows have them, "uniform"
            all alike; "pair" takes the rows of a step from one class and compares it with one other (T 3.36).

    Attributes:
        classes_: the classes in column order (K), sorted.
        n_features_in_: D.
        feature_names_in_: the names of the D features, where X was a data frame with them.
        model_: the trained `VariationalModel`.
        history_: one record per epoch: epoch, elbo, kl, learning_rate, seconds and perhaps validation_accuracy, that of
            the classes with the highest mean utilities, which may differ a little from those that `predict` chooses; of
            a regression alone one, of epoch, seconds and perhaps that.
        settings_: the `ModelSettings` that were resolved.
        hyperparameters_: what was tried for kernel, amplitude and noise before training, and what won: a `Selection`
            for each choice; None in models that earlier versions saved.
        lowered_: as in `MultiLabelGPClassifier`.
        label_counts_: training rows of each class (K), whatever their weights; of soft labels their sums, rounded.
        n_rows_: training rows.

    Examples:
        >>> import numpy as np
        >>> from extremegp import MultiClassGPClassifier
        >>> angles = np.linspace(0, 6, 60)
        >>> radii = np.repeat([1.0, 2.0, 3.0], 20)
        >>> X = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
        >>> y = np.repeat(["inner", "middle", "outer"], 20)
        >>> classifier = MultiClassGPClassifier(random_state=0).fit(X, y)
        >>> classifier.predict(np.array([[0.0, 1.0], [0.0, -3.0]])).tolist()
        ['inner', 'outer']
    """

    features: Literal["auto", "unit", "tfidf", "raw", "text", "scale", "root", "standard"] | Mapping[str, str] = "auto"
    likelihood: str | Likelihood = "auto"
    local: Literal["auto", "optimal", "amortised", "stored"] = "auto"
    mixing: Literal["auto", "identity", "factor"] = "auto"
    latents: Literal["auto", "gp", "landmarks", "regression", "linear", "linear-mean-field", "linear-point"] = "auto"  # type: ignore[assignment]
    n_mean_points: int | Literal["auto"] = "auto"
    n_sampled_classes: int | float | Literal["auto"] | None = "auto"
    class_sampling: Literal["frequency", "uniform", "pair"] = "frequency"

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        ids: Iterable[Any] | None = None,
    ) -> Self:
        """Train the model.

        Args:
            X: inputs, N x D, CSR or dense; with features="text" N strings, as a list, a column or a data
                frame of one.
            y: the class of every row, N strings, integers or booleans; at least two classes. Or soft labels, N x K
                probabilities whose rows add up to one (an array, sparse matrix or data frame): the names of the columns
                of a data frame are the classes, others are 0 to K - 1.
            sample_weight: what each of the N rows counts, or one number for all: the weight of its log-likelihood, so
                that an integer is the same as to repeat the row as often, and 0 as to leave it out. Weights are not
                scaled: those that add up to less than N make data that say less.
            validation: (X, y) to choose the best epoch on, instead of `validation_fraction`.
            ids: names of the rows, to `forget` them by; by default "0" to N - 1, of the rows that count.

        Returns:
            The estimator itself.

        Raises:
            DataError: X, y or weights cannot be used, or their lengths differ.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if y is None:
            raise DataError("MultiClassGPClassifier requires y to be passed, but the target y is None")
        X, y, weights, ids = without_absent_ids(X, y, sample_weight, ids)
        self._drop_journal()
        features = self.new_features(self.features, X).fit(X)
        x: FloatMatrix = features.transform(X)
        targets, space = self._targets(y)
        check_lengths(x, targets)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        data, held_out = Examples(x, targets, weights=weights, blocks=features.layout), None
        if validation is None:
            data, held_out = split(data, fraction=self.validation_fraction, patience=self.patience, rng=rng)
        else:
            check_columns(validation[0], None if features.kind == "text" else column_names(X))
            held_x = features.transform(validation[0])
            held_out = Examples(held_x, self._of_known_classes(validation[1], space), blocks=features.layout)
            check_lengths(held_out.x, held_out.y)
        self._train(
            data,
            held_out,
            rng=rng,
            seed=seed,
            score_name="accuracy",
            features=features,
            space=space,
            target_kind=space.kind,
            label_counts=label_counts(targets),
            n_rows=x.shape[0],
            novelty=fit_novelty(features, X, x),
            feature_names=None if features.layout else column_names(X),
        )
        self._keep_rows(x, targets, weights, ids)
        return self

    @staticmethod
    def _targets(y: Any) -> tuple[FloatCSR, ClassSpace]:
        """What `fit` is given as N x K, one class or probabilities in each row, and the classes."""
        if are_class_probabilities(y):
            return encode_class_probabilities(y)
        codes, classes = encode_classes(y)
        return one_hot(codes, len(classes)), ClassSpace(classes)

    @staticmethod
    def _of_known_classes(y: Any, space: ClassSpace) -> FloatCSR:
        """The same of classes that are known; the row of any other is empty."""
        if are_class_probabilities(y):
            return class_probabilities_of(y, space)
        return one_hot(space.encode(y, unknown="ignore"), len(space))

    def _translated(self, params: dict[str, Any], data: Examples | None) -> dict[str, Any]:
        self.new_features("text")
        kind = params["features"]
        if kind == "auto":
            kind = "unit" if data is None or scipy.sparse.issparse(data.x) else "standard"
        n_classes = params["n_latent"] if params["mixing"] == "identity" and isinstance(params["n_latent"], int) else 2
        if data is not None:
            n_classes = data.y.shape[1]
        n_rows = 1 if data is None else data.x.shape[0]
        return class_params(
            latents_asked(params, n_rows=n_rows, n_labels=n_classes), features=kind, n_classes=n_classes
        )

    @classmethod
    def _takes(cls, likelihood: type[Likelihood]) -> bool:
        return likelihood.has_classes and not likelihood.has_sequences

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row, N, in the type that `fit` was given."""
        best = self.predict_topk(X, 1).labels[:, 0]
        return self.label_space_.decode(best)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """p(y = k), N x K and dense; rows add up to one. For many rows and classes prefer `predict_topk`."""
        x, predictor = self._transform(X), self.predictor()
        return stack(predictor.probabilities(x), x.shape[0], self.settings_.n_labels)

    def predict_log_proba(self, X: Any) -> NDArray[np.float32]:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Mean utilities, N x K and dense; of two classes their difference, N, as in scikit-learn."""
        x, predictor = self._transform(X), self.predictor()
        means = stack(predictor.mean_utilities(x), x.shape[0], self.settings_.n_labels)
        return means[:, 1] - means[:, 0] if means.shape[1] == 2 else means

    def predict_topk(self, X: Any, k: int = 5) -> TopK:
        """The k most probable classes of every row, best first, without ever holding N x K.

        Args:
            X: as in `fit`.
            k: how many classes.

        Returns:
            Classes (column indices: `classes_[topk.labels]` names them) and probabilities, N x min(k, K).
        """
        x, predictor = self._transform(X), self.predictor()
        k = min(number("k", k, low=1, integer=True), self.settings_.n_labels)
        return TopK.concatenate([TopK.from_scores(block, k) for _, block in predictor.probabilities(x)])

    def _doubts(self, x: FloatMatrix) -> Iterator[Doubt]:
        return (doubt_of_classes(block) for _, block in self.predictor().probabilities(x))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; of soft labels the expected one.

        Args:
            X: as in `fit`.
            y: classes, as in `fit`; one never seen in training counts as an error.
            sample_weight: weights of the N rows.
        """
        check_is_fitted(self, "model_")
        targets, best = self._of_known_classes(y, self.label_space_), self.predict_topk(X, 1)
        check_lengths(best.labels, targets)
        return weighted_mean(first_gains(targets, best), sample_weight)

    def encode_labels(self, y: Any) -> NDArray[np.int64]:
        """Column of the class of every row, -1 for classes never seen in training."""
        check_is_fitted(self, "model_")
        return self.label_space_.encode(y, unknown="ignore")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = self.features == "text" or isinstance(self.features, Mapping)
        return tags
