"""Many labels per instance: a factor model of Gaussian processes with Bernoulli labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from extremegp.data import Features, FloatCSR, FloatMatrix, LabelSpace, encode_targets, make_features
from extremegp.data.validation import column_counts
from extremegp.engine.model import VariationalModel
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.base import GPEstimator, check_columns, column_names
from extremegp.estimators.fitting import check_lengths, fit_model, instance_noise, named_columns, split
from extremegp.label_tree import LabelTreePredictor
from extremegp.metrics import TopK
from extremegp.metrics.ranking import judge
from extremegp.prediction.known_labels import GivenVariance
from extremegp.prediction.label_index import LabelIndex
from extremegp.prediction.predictor import Predictor, RankedBy, check_given, stack
from extremegp.settings.limits import memory_limit
from extremegp.settings.model import ModelSettings
from extremegp.settings.resolve import (
    choice,
    label_propensities,
    model_settings,
    number,
    regression_points,
    training_settings,
)

_FIXED = {"likelihood": "bernoulli", "mixing": "factor", "latents": "gp", "local": "optimal", "n_mean_points": "auto"}


class MultiLabelGPClassifier(ClassifierMixin, GPEstimator):
    """Multi-label classification by sparse variational Gaussian processes (T chapter 4; ML).

    P latent functions with Gaussian process priors are mixed by K x P loadings into a utility per label, and a label is
    present with the logistic probability of its utility. Training maximises a lower bound of the evidence by
    minibatches; prediction integrates over the posterior, so that probabilities are calibrated.

    Args:
        features: what is done to X first, in training and prediction alike: "unit" scales rows to unit norm, "tfidf"
            weighs counts, "raw" leaves X alone, "text" takes a list of strings.
        kernel: "linear", "se", "se+linear", "matern12", "matern32", "matern52", "arccos0" or "arccos1" with one weight
            for all features; "linear-ell", "ard", "ard+linear", "matern12-ard" and so on with one for each; "se-p-ell"
            with one for each latent function. "+white" after any of them adds white noise.
        linear_term: add an exact linear Gaussian process on the D features to every latent function; "auto" does so
            where D is at least 2 M and the mean function is zero.
        posterior: family of q(u): "shared-basis", "mean-field", "full" (whitened), "full-u" or
            "parsimonious".
        n_latent: P; "auto" is the number of labels, at most 300.
        n_inducing: M, at most the number of rows; "auto" is 400.
        inducing: where the inducing inputs live: "free" is anywhere, "subspace" the span of `n_subspace` basis vectors,
            "subspace-basis" such a span that is learnt too, "sparse" on `support_size` features each; "auto" is "free"
            up to 4096 features and "sparse" beyond.
        n_subspace: R; "auto" is 500, or all dimensions if there are fewer.
        support_size: S; "auto" is 64, or D if that is less.
        lengthscales_in: with a subspace, whether the weights of kernels are those of the D features ("input", T 2.5) or
            of the coordinates in the subspace ("subspace", cheaper).
        inducing_start: inducing inputs start at centres of the inputs ("kmeans") or at random ones ("rows").
        loadings_start: loadings start at random, or at principal directions of the labels ("spectral").
        learn_inducing: learn the inducing inputs, or leave them where they start.
        normalise_inducing: keep inducing inputs at unit norm; "auto" does so unless `features` is "raw".
        mean_function: "zero", or "regression": the utilities' mean is the logit of an exact Gaussian process regression
            of the labels on the training rows (on a subset of many rows), which the latent functions then correct.
            More accurate where there are few rows, and the model keeps the rows. "auto" does so where it is cheap.
        propensity: how likely labels that apply were recorded, for data where many are missing. None takes every
            missing label for one that does not apply; "auto" and a pair (a, b) estimate a propensity for each label
            from its frequency (`metrics.propensities`); or an array of K propensities in (0, 1], which `save` leaves
            out of the parameters. Probabilities are then those that labels apply, not that they were recorded.
        kl_weight: weight of the KL term; 1 is the evidence lower bound, less fits more closely (a cold posterior).
        epochs: passes over the data; "auto" depends on the number of rows.
        batch_size: rows per step; "auto" depends on the number of rows.
        learning_rate: peak of the one-cycle schedule.
        optimizer: "natural" moves the posterior along natural gradients where its family has them, and all else by
            Adam; "adam" moves everything by Adam; "auto" is "adam" for the mean-field posterior, else "natural".
        natural_step: peak of the same schedule for natural steps, in (0, 1]; "auto" is 0.05, or longer where a batch is
            most of the rows.
        n_sampled_labels: labels drawn at every step to stand for all that no row of the batch has; None looks at all
            labels; "auto" does so up to 20,000 labels and draws 2000 beyond.
        label_sampling: "frequency" draws labels in proportion to the square root of how many rows have them, "uniform"
            all alike; "hard" draws by frequency, and every step also looks at the 512 labels that the model ranks
            highest for its rows though none has them.
        validation_fraction: share of the rows held out to choose the best epoch by P@1; 0 holds out none.
        patience: with validation, stop after so many epochs without a better P@1; None runs all epochs.
        time_budget: seconds of training to plan for, without those of its start (k-means and regression); None for no
            limit.
        optimizer_state: where labels are sampled, what Adam keeps of every loading, two moments in the precision of the
            model ("full") or in bfloat16 ("half"); "auto" is "half" where there are over 5e7 loadings.
        max_memory: bytes that the process may take, or a text such as "8G" or "500M"; None is what the machine has
            free. Where training would take more, parameters that are "auto" are lowered: batch_size, n_sampled_labels,
            optimizer_state, n_latent, n_inducing, in this order, and a line on standard error says so.
        checkpoint: file to save progress to. If it exists, training resumes from it. Remove it once the model is saved.
        checkpoint_seconds: seconds between two savings of progress.
        relative_jitter: added to the covariance of the inducing inputs, as a fraction of its mean diagonal.
        dtype: "float32" or "float64"; covariances are factorised in float64 always.
        device: where to compute, as PyTorch names it.
        random_state: seed; equal seeds give equal models on the same machine.
        verbose: show a progress bar on standard error once training takes longer than two seconds.

    Attributes:
        classes_: label names in column order (K).
        n_features_in_: D.
        feature_names_in_: the names of the D features, where X was a data frame with them.
        model_: the trained `VariationalModel`.
        history_: one record per epoch: epoch, elbo, kl, learning_rate, seconds and perhaps validation_P@1.
        settings_: the `ModelSettings` that were resolved.
        lowered_: after `fit`, the parameters that `max_memory` made lower: by name, the value without and with it.
        label_counts_: training rows with each label (K).
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

    model_: VariationalModel
    settings_: ModelSettings
    features_: Features
    label_space_: LabelSpace | None
    _target_kinds: ClassVar[tuple[str, ...]] = ("lists", "sparse", "dense")
    _likelihoods: ClassVar[tuple[str, ...]] = ("bernoulli",)
    _index: LabelIndex | None = None

    def __init__(
        self,
        *,
        features: Literal["unit", "tfidf", "raw", "text"] = "unit",
        kernel: str = "ard",
        linear_term: bool | Literal["auto"] = "auto",
        posterior: str = "shared-basis",
        n_latent: int | Literal["auto"] = "auto",
        n_inducing: int | Literal["auto"] = "auto",
        inducing: str = "auto",
        n_subspace: int | Literal["auto"] = "auto",
        support_size: int | Literal["auto"] = "auto",
        lengthscales_in: Literal["input", "subspace"] = "input",
        inducing_start: Literal["kmeans", "rows"] = "kmeans",
        loadings_start: Literal["random", "spectral"] = "random",
        learn_inducing: bool = True,
        normalise_inducing: bool | Literal["auto"] = "auto",
        mean_function: Literal["auto", "zero", "regression"] = "auto",
        propensity: Literal["auto"] | tuple[float, float] | NDArray[Any] | None = None,
        kl_weight: float = 1.0,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 0.02,
        optimizer: Literal["auto", "natural", "adam"] = "auto",
        natural_step: float | Literal["auto"] = "auto",
        n_sampled_labels: int | Literal["auto"] | None = "auto",
        label_sampling: Literal["frequency", "uniform", "hard"] = "frequency",
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
        self.kernel = kernel
        self.linear_term = linear_term
        self.posterior = posterior
        self.n_latent = n_latent
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.n_subspace = n_subspace
        self.support_size = support_size
        self.lengthscales_in = lengthscales_in
        self.inducing_start = inducing_start
        self.loadings_start = loadings_start
        self.learn_inducing = learn_inducing
        self.normalise_inducing = normalise_inducing
        self.mean_function = mean_function
        self.propensity = propensity
        self.kl_weight = kl_weight
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.optimizer = optimizer
        self.natural_step = natural_step
        self.n_sampled_labels = n_sampled_labels
        self.label_sampling = label_sampling
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

    def fit(
        self,
        X: Any,
        Y: Any,
        *,
        validation: tuple[Any, Any] | None = None,
        label_names: Sequence[str | int] | None = None,
    ) -> Self:
        """Train the model.

        Args:
            X: inputs, N x D, CSR or dense; with features="text" a list of N strings.
            Y: labels: an N x K indicator (sparse or array), or N lists of label names.
            validation: (X, Y) to choose the best epoch on, instead of `validation_fraction`.
            label_names: names of the K columns where Y is an indicator; by default their numbers.

        Returns:
            The estimator itself.

        Raises:
            DataError: X or Y cannot be used, or their lengths differ.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        self._index = None
        if Y is None:
            raise DataError("MultiLabelGPClassifier requires y to be passed, but the target y is None")
        params = self.get_params(deep=False)
        features = make_features(self.features).fit(X)
        x: FloatMatrix = features.transform(X)
        y, space = encode_targets(Y)
        check_lengths(x, y)
        named = space if label_names is None else named_columns(label_names, y, space)
        if not y.nnz:
            raise DataError("no row has any label: Y holds no positive entry")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rng = np.random.default_rng(seed)
        label_counts, n_rows = column_counts(y), x.shape[0]
        propensities = label_propensities(self.propensity, label_counts=label_counts, n_rows=n_rows)
        if validation is not None:
            check_columns(validation[0], column_names(X))
        x, y, held_out = self._split(x, y, features, space, validation, rng)

        fitted = fit_model(
            params | _FIXED, x, y, held_out, rng=rng, seed=seed, score_name="P@1", propensities=propensities
        )
        self.lowered_ = fitted.lowered
        self._adopt(
            fitted.model,
            settings=fitted.settings,
            features=features,
            space=named,
            target_kind="lists" if space is not None else "sparse" if scipy.sparse.issparse(Y) else "dense",
            history=fitted.history,
            label_counts=label_counts,
            n_rows=n_rows,
            instance_noise=instance_noise(fitted.model, x, y, fitted.mean_logits, np.random.default_rng(seed)),
            feature_names=column_names(X),
        )
        return self

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        params = self.get_params(deep=False) | _FIXED
        regression_points(params, n_rows=1, n_features=1, n_labels=1)
        memory_limit(self.max_memory)
        settings = model_settings(params, n_rows=1, n_features=1, n_labels=1)
        training_settings(params, model=settings, n_rows=1, seed=0)

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
        choice("output", output, ("arrays", "csr"))
        k, by = number("k", k, low=1, integer=True), choice("by", by, ("utility", "probability"))
        if approximate is None:
            best = self._top(X, k, by, given, given_variance)
        else:
            if given is not None:
                raise SettingsError("approximate search cannot take given labels into account: leave out one of them")
            x = self._transform(X)
            index = self.label_index()
            index.tune(x, k, approximate, by)
            best = TopK.concatenate([block for _, block, _ in index.top(x, k, by)])
        return best.to_csr(self.settings_.n_labels) if output == "csr" else best

    def label_index(self) -> LabelIndex:
        """The index of the labels that approximate search uses; built at the first call, and again after `fit`.

        Raises:
            SettingsError: the model has a mean function, or faiss is not installed.
        """
        check_is_fitted(self, "model_")
        if self._index is None or self._index.predictor.model is not self.model_:
            self._index = LabelIndex(Predictor(self.model_))
        return self._index

    def __getstate__(self) -> dict[str, Any]:
        """All but the index of the labels, which is built again where it is needed."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_index"}

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

    def predict(self, X: Any) -> Any:
        """The labels with p(y = 1) of at least one half.

        Returns:
            In the form that `fit` was given: N lists of label names, or an N x K indicator, sparse or dense (int64).
        """
        predictor, x = self._predictor(X)
        blocks = [scipy.sparse.csr_matrix(block >= 0.5, dtype=np.int64) for _, block in predictor.probabilities(x)]
        indicator = scipy.sparse.vstack(blocks, format="csr")
        if self.label_space_ is not None and self.target_kind_ == "lists":
            return self.label_space_.decode(indicator)
        return indicator.toarray() if self.target_kind_ == "dense" else indicator

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Posterior means and variances of the P latent functions, two arrays of N x P."""
        predictor, x = self._predictor(X)
        means, variances = (np.empty((x.shape[0], self.settings_.n_latent), dtype=np.float32) for _ in range(2))
        for rows, latents in predictor.latents(x):
            means[rows], variances[rows] = latents.mean.cpu().numpy(), latents.variance.cpu().numpy()
        return means, variances

    def score(self, X: Any, Y: Any, sample_weight: Any = None) -> float:
        """Precision at 1: the share of rows whose best-ranked label is one of theirs.

        Args:
            X: as in `fit`.
            Y: labels, as in `fit`; label names never seen in training count as labels that cannot be predicted.
            sample_weight: weights of the N rows.
        """
        y = self.encode_labels(Y)
        best = self._top(X, 1, "probability")
        check_lengths(best.labels, y)
        return float(np.average(judge(y, best, (1,)).hits[:, 0], weights=sample_weight))

    def predictor(self) -> Predictor | LabelTreePredictor:
        """What predicts, a block of rows at a time."""
        check_is_fitted(self, "model_")
        return Predictor(self.model_, self.instance_noise_)

    def encode_labels(self, Y: Any) -> FloatCSR:
        """Labels of new rows as an N x K indicator over the training labels.

        Raises:
            DataError: Y has another number of columns than there are labels.
        """
        check_is_fitted(self, "model_")
        if self.label_space_ is not None and isinstance(Y, (list, tuple)):
            return self.label_space_.encode(Y, unknown="ignore")
        y, space = encode_targets(Y)
        if space is not None:
            raise DataError("Y holds label names, but the model was trained on an indicator without names")
        if y.shape[1] != self.settings_.n_labels:
            raise DataError(f"Y has {y.shape[1]} labels, but the model was trained with {self.settings_.n_labels}")
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = self.features == "text"
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags

    def _top(self, X: Any, k: int, by: RankedBy, given: Any = None, given_variance: GivenVariance = "laplace") -> TopK:
        predictor, x, known = self._conditional(X, given, given_variance)
        return TopK.concatenate([best for _, best, _ in predictor.top(x, k, by, known)])

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
        return Predictor(self.model_, self.instance_noise_, given_variance=given_variance), x, known

    def _predictor(self, X: Any) -> tuple[Predictor, FloatMatrix]:
        x = self._transform(X)
        return Predictor(self.model_), x

    def _split(
        self,
        x: FloatMatrix,
        y: FloatCSR,
        features: Features,
        space: LabelSpace | None,
        validation: tuple[Any, Any] | None,
        rng: np.random.Generator,
    ) -> tuple[FloatMatrix, FloatCSR, tuple[FloatMatrix, FloatCSR] | None]:
        """Training part and validation part, if any."""
        if validation is not None:
            held_x = features.transform(validation[0])
            held_y = (
                encode_targets(validation[1])[0] if space is None else space.encode(validation[1], unknown="ignore")
            )
            check_lengths(held_x, held_y)
            if held_y.shape[1] != y.shape[1]:
                raise DataError(
                    f"the validation labels have {held_y.shape[1]} columns, the training labels {y.shape[1]}"
                )
            return x, y, (held_x, held_y)
        return split(x, y, fraction=self.validation_fraction, patience=self.patience, rng=rng)
