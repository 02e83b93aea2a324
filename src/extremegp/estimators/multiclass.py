"""One class per instance, out of ten or of a hundred thousand: Gaussian processes under class likelihoods."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from extremegp.data import (
    ClassSpace,
    Features,
    FloatMatrix,
    encode_classes,
    make_features,
    one_hot,
    suited_features,
)
from extremegp.engine.model import VariationalModel
from extremegp.errors import DataError, ModelFormatError
from extremegp.estimators.base import GPEstimator, check_columns, column_names
from extremegp.estimators.fitting import check_lengths, fit_model, split
from extremegp.metrics import TopK
from extremegp.prediction.predictor import Predictor, stack
from extremegp.settings.limits import memory_limit
from extremegp.settings.model import CLASS_LIKELIHOODS, ModelSettings
from extremegp.settings.resolve import (
    class_params,
    model_settings,
    number,
    regression_points,
    training_settings,
)


class Uncertainty(NamedTuple):
    """How uncertain the class of every row is, in nats, and why; by draws of the functions.

    Attributes:
        total: entropy of the class probabilities, N.
        aleatoric: what would be left if the functions were known: mean entropy under draws of them, N.
        epistemic: what more data would take away: mutual information of class and functions, total - aleatoric, N.
    """

    total: NDArray[np.float32]
    aleatoric: NDArray[np.float32]
    epistemic: NDArray[np.float32]


class MultiClassGPClassifier(ClassifierMixin, GPEstimator):
    """Classification into one of K classes by sparse variational Gaussian processes (T chapter 3; X).

    Every class has a utility, a Gaussian process or a mixture of some that the classes share, and the utilities have a
    class likelihood. Training maximises a lower bound of the evidence by minibatches; prediction integrates over the
    posterior, so that probabilities are calibrated.

    Args:
        features: what is done to X first, in training and prediction alike: "unit", "tfidf", "raw" and "text" as in
            `MultiLabelGPClassifier`; "scale" divides all features by one number, "root" their square roots, "standard"
            brings each to mean 0 and the same variance. "auto" is "unit" for sparse X, "root" for features in the same
            units such as pixels (none negative, and half of them range from under a tenth to over half of the largest
            value), else "standard".
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
        latents: "gp"; or linear functions of the features: "linear" with a Gaussian posterior whose relative variances
            classes share, "linear-mean-field" with one for every coefficient, "linear-point" without (T 3.22).
        kernel: as in `MultiLabelGPClassifier`; under mixing="identity" "se-p-ell" has a lengthscale for each class.
        posterior: family of q(u): "shared-basis", "mean-field", "full" (whitened), "full-u" or "parsimonious".
        n_latent: P; "auto" is K, at most 300 if mixed.
        n_inducing: M, at most the number of rows; "auto" is 400.
        inducing: as in `MultiLabelGPClassifier`; "separate" gives every class M inducing inputs of its own (T 3.24).
        n_subspace: R, as in `MultiLabelGPClassifier`.
        support_size: S, as in `MultiLabelGPClassifier`.
        lengthscales_in: as in `MultiLabelGPClassifier`.
        inducing_start: inducing inputs start at centres of the inputs ("kmeans", of each class's rows if separate) or
            at random ones ("rows").
        learn_inducing: learn the inducing inputs, or leave them where they start.
        normalise_inducing: keep inducing inputs at unit norm; "auto" does so where the features step makes unit rows.
        linear_term: add an exact linear Gaussian process on the D features to every latent function; "auto" does so
            where D is at least 2 M and the mean function is zero.
        mean_function: "zero", or "regression": the utilities' mean is the logarithm of a Gaussian process regression of
            the classes' indicators, which the latent functions then correct. "auto" does so where it is cheap.
        n_mean_points: rows that this regression keeps, spread over the training rows: more are more accurate, and take
            N times their square of time; "auto" is all up to 16,384 rows, and at most 8192 of more.
        kl_weight: weight of the KL term; 1 is the evidence lower bound, less fits more closely (a cold posterior).
        epochs: passes over the data; "auto" depends on the number of rows.
        batch_size: rows per step; "auto" depends on the number of rows.
        learning_rate: peak of the one-cycle schedule.
        optimizer: as in `MultiLabelGPClassifier`; "auto" is "adam" for pairs of classes and robust-max too.
        natural_step: as in `MultiLabelGPClassifier`.
        n_sampled_classes: classes drawn at every step to stand for all that no row of the batch has (X 10), a number or
            a share of the classes; None looks at all classes; "auto" does so up to 20,000 classes and draws 1000
            beyond.
        class_sampling: "frequency" draws classes in proportion to the square root of how many rows have them, "uniform"
            all alike; "pair" takes the rows of a step from one class and compares it with one other (T 3.36).
        validation_fraction: share of the rows held out to choose the best epoch by accuracy; 0 holds out none.
        patience: with validation, stop after so many epochs without a better accuracy; None runs all epochs.
        time_budget: seconds of training to plan for, without those of its start; None for no limit.
        optimizer_state: as in `MultiLabelGPClassifier`.
        max_memory: as in `MultiLabelGPClassifier`; n_sampled_classes stays as it is, and n_latent where every class has
            a function.
        checkpoint: file to save progress to. If it exists, training resumes from it. Remove it once the model is saved.
        checkpoint_seconds: seconds between two savings of progress.
        relative_jitter: added to the covariance of the inducing inputs, as a fraction of its mean diagonal.
        dtype: "float32" or "float64"; covariances are factorised in float64 always.
        device: where to compute, as PyTorch names it.
        random_state: seed; equal seeds give equal models on the same machine.
        verbose: show a progress bar on standard error once training takes longer than two seconds.

    Attributes:
        classes_: the classes in column order (K), sorted.
        n_features_in_: D.
        feature_names_in_: the names of the D features, where X was a data frame with them.
        model_: the trained `VariationalModel`.
        history_: one record per epoch: epoch, elbo, kl, learning_rate, seconds and perhaps validation_accuracy, that of
            the classes with the highest mean utilities, which may differ a little from those that `predict` chooses.
        settings_: the `ModelSettings` that were resolved.
        lowered_: as in `MultiLabelGPClassifier`.
        label_counts_: training rows of each class (K).
        n_rows_: training rows.

    Examples:
        >>> import numpy as np
        >>> from extremegp import MultiClassGPClassifier
        >>> angles = np.linspace(0, 6, 60)
        >>> radii = np.repeat([1.0, 2.0, 3.0], 20)
        >>> X = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)
        >>> y = np.repeat(["inner", "middle", "outer"], 20)
        >>> classifier = MultiClassGPClassifier(random_state=0).fit(X, y)
        >>> classifier.predict(np.array([[0.0, 1.0], [0.0, 3.0]])).tolist()
        ['inner', 'outer']
    """

    model_: VariationalModel
    settings_: ModelSettings
    features_: Features
    label_space_: ClassSpace
    _target_kinds: ClassVar[tuple[str, ...]] = ("int", "str", "bool", "float")
    _likelihoods: ClassVar[tuple[str, ...]] = CLASS_LIKELIHOODS

    def __init__(
        self,
        *,
        features: Literal["auto", "unit", "tfidf", "raw", "text", "scale", "root", "standard"] = "auto",
        likelihood: str = "auto",
        local: Literal["auto", "optimal", "amortised", "stored"] = "auto",
        mixing: Literal["auto", "identity", "factor"] = "auto",
        latents: Literal["gp", "linear", "linear-mean-field", "linear-point"] = "gp",
        kernel: str = "ard",
        posterior: str = "shared-basis",
        n_latent: int | Literal["auto"] = "auto",
        n_inducing: int | Literal["auto"] = "auto",
        inducing: str = "auto",
        n_subspace: int | Literal["auto"] = "auto",
        support_size: int | Literal["auto"] = "auto",
        lengthscales_in: Literal["input", "subspace"] = "input",
        inducing_start: Literal["kmeans", "rows"] = "kmeans",
        learn_inducing: bool = True,
        normalise_inducing: bool | Literal["auto"] = "auto",
        linear_term: bool | Literal["auto"] = "auto",
        mean_function: Literal["auto", "zero", "regression"] = "auto",
        n_mean_points: int | Literal["auto"] = "auto",
        kl_weight: float = 1.0,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 0.02,
        optimizer: Literal["auto", "natural", "adam"] = "auto",
        natural_step: float | Literal["auto"] = "auto",
        n_sampled_classes: int | float | Literal["auto"] | None = "auto",
        class_sampling: Literal["frequency", "uniform", "pair"] = "frequency",
        validation_fraction: float = 0.0,
        patience: int | None = None,
        time_budget: float | None = None,
        optimizer_state: Literal["auto", "full", "half"] = "auto",
        max_memory: int | str | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 20.0,
        relative_jitter: float = 1e-6,
        dtype: Literal["float32", "float64"] = "float32",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
    ) -> None:
        self.features = features
        self.likelihood = likelihood
        self.local = local
        self.mixing = mixing
        self.latents = latents
        self.kernel = kernel
        self.posterior = posterior
        self.n_latent = n_latent
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.n_subspace = n_subspace
        self.support_size = support_size
        self.lengthscales_in = lengthscales_in
        self.inducing_start = inducing_start
        self.learn_inducing = learn_inducing
        self.normalise_inducing = normalise_inducing
        self.linear_term = linear_term
        self.mean_function = mean_function
        self.n_mean_points = n_mean_points
        self.kl_weight = kl_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.natural_step = natural_step
        self.n_sampled_classes = n_sampled_classes
        self.class_sampling = class_sampling
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.time_budget = time_budget
        self.optimizer_state = optimizer_state
        self.max_memory = max_memory
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.relative_jitter = relative_jitter
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Train the model.

        Args:
            X: inputs, N x D, CSR or dense; with features="text" a list of N strings.
            y: the class of every row, N strings, integers or booleans; at least two classes.
            validation: (X, y) to choose the best epoch on, instead of `validation_fraction`.

        Returns:
            The estimator itself.

        Raises:
            DataError: X or y cannot be used, or their lengths differ.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if y is None:
            raise DataError("MultiClassGPClassifier requires y to be passed, but the target y is None")
        kind = suited_features(X) if self.features == "auto" else self.features
        features = make_features(kind).fit(X)
        x: FloatMatrix = features.transform(X)
        codes, classes = encode_classes(y)
        space = ClassSpace(classes)
        check_lengths(x, codes)
        n_rows, n_classes = len(codes), len(space.names)
        params = class_params(self.get_params(deep=False), features=kind, n_classes=n_classes)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        targets, held_out = one_hot(codes, n_classes), None
        if validation is None:
            x, targets, held_out = split(x, targets, fraction=self.validation_fraction, patience=self.patience, rng=rng)
        else:
            check_columns(validation[0], column_names(X))
            held_x = features.transform(validation[0])
            held_out = held_x, one_hot(space.encode(validation[1], unknown="ignore"), n_classes)
            check_lengths(*held_out)
        fitted = fit_model(params, x, targets, held_out, rng=rng, seed=seed, score_name="accuracy")
        self.lowered_ = fitted.lowered
        self._adopt(
            fitted.model,
            settings=fitted.settings,
            features=features,
            space=space,
            target_kind=space.kind,
            history=fitted.history,
            label_counts=np.bincount(codes, minlength=n_classes),
            n_rows=n_rows,
            instance_noise=None,
            feature_names=column_names(X),
        )
        return self

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        kind = "unit" if self.features == "auto" else self.features
        n_classes = self.n_latent if self.mixing == "identity" and isinstance(self.n_latent, int) else 2
        params = class_params(self.get_params(deep=False), features=kind, n_classes=n_classes)
        regression_points(params, n_rows=1, n_features=1, n_labels=n_classes)
        memory_limit(self.max_memory)
        settings = model_settings(params, n_rows=1, n_features=1, n_labels=n_classes)
        training_settings(params, model=settings, n_rows=1, seed=0)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row, N, in the type that `fit` was given."""
        best = self.predict_topk(X, 1).labels[:, 0]
        return self.label_space_.decode(best)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """p(y = k), N x K and dense; rows add up to one. For many rows and classes prefer `predict_topk`."""
        predictor, x = self._predictor(X)
        return stack(predictor.probabilities(x), x.shape[0], self.settings_.n_labels)

    def predict_log_proba(self, X: Any) -> NDArray[np.float32]:
        """Logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Mean utilities, N x K and dense; of two classes their difference, N, as in scikit-learn."""
        predictor, x = self._predictor(X)
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
        predictor, x = self._predictor(X)
        k = min(number("k", k, low=1, integer=True), self.settings_.n_labels)
        return TopK.concatenate([TopK.from_scores(block, k) for _, block in predictor.probabilities(x)])

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """How uncertain the class of every row is, split into what more data could and could not take away."""
        predictor, x = self._predictor(X)
        parts = [(total, aleatoric) for _, _, total, aleatoric in predictor.class_uncertainty(x)]
        total, aleatoric = (np.concatenate(blocks).astype(np.float32) for blocks in zip(*parts, strict=True))
        return Uncertainty(total, aleatoric, total - aleatoric)

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Posterior means and variances of the P latent functions, two arrays of N x P."""
        predictor, x = self._predictor(X)
        blocks = [(latents.mean.cpu().numpy(), latents.variance.cpu().numpy()) for _, latents in predictor.latents(x)]
        means, variances = (np.concatenate(part).astype(np.float32) for part in zip(*blocks, strict=True))
        return means, variances

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy.

        Args:
            X: as in `fit`.
            y: classes, as in `fit`; one never seen in training counts as an error.
            sample_weight: weights of the N rows.
        """
        codes = self.encode_labels(y)
        best = self.predict_topk(X, 1).labels[:, 0]
        check_lengths(best, codes)
        return float(np.average(best == codes, weights=sample_weight))

    def encode_labels(self, y: Any) -> NDArray[np.int64]:
        """Column of the class of every row, -1 for classes never seen in training."""
        check_is_fitted(self, "model_")
        return self.label_space_.encode(y, unknown="ignore")

    @classmethod
    def _space_from(cls, labels: Any, n_labels: int, folder: str | Path) -> ClassSpace:
        try:
            space = ClassSpace.from_config(labels)
        except ModelFormatError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        if len(space) != n_labels:
            raise ModelFormatError(f"{folder}: there are not {n_labels} classes")
        return space

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = self.features == "text"
        return tags

    def predictor(self) -> Predictor:
        """What predicts, a block of rows at a time."""
        check_is_fitted(self, "model_")
        return Predictor(self.model_)

    def _predictor(self, X: Any) -> tuple[Predictor, FloatMatrix]:
        x = self._transform(X)
        return Predictor(self.model_), x
