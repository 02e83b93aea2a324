"""Very many labels per instance: label trees of linear Gaussian processes and nearest rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from extremegp.data import encode_targets, make_features
from extremegp.data.validation import column_counts
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.estimators.base import check_columns, column_names
from extremegp.estimators.fitting import check_lengths, fingerprint, named_columns
from extremegp.estimators.multilabel import MultiLabelGPClassifier
from extremegp.label_tree import LabelTreeModel, LabelTreePredictor, LabelTreeSettings, LevelSizes, TreeTraining, grow
from extremegp.metrics import TopK
from extremegp.prediction.known_labels import GivenVariance
from extremegp.prediction.predictor import stack
from extremegp.settings.limits import memory_left, memory_limit
from extremegp.settings.memory import check_memory
from extremegp.settings.resolve import choice, number
from extremegp.training import NoReporter, ProgressReporter
from extremegp.training.distributed import world

_MOST_WEIGHTS, _MANY_LABELS = 200_000_000, 50_000
_MOST_NODES = _MOST_INDUCING = 10_000
# A weight with its child, and its share of what finds it; a training entry as a row, as a column and once more in the
# making of levels.
_WEIGHT_BYTES, _ENTRY_BYTES = 14, 40


class LabelTreeGPClassifier(MultiLabelGPClassifier):
    """Multi-label classification for 10^4 to 10^6 labels, in minutes on sparse features.

    A few trees over the labels have a linear Gaussian process at every node and every label, which says how likely the
    label is where one beside it applies. A sparse Gaussian process, learnt on rows that the trees have not seen, then
    makes one calibrated probability of what the trees say of a label and how many of the nearest training rows have it.
    The model keeps the training rows.

    Args:
        features: what is done to X first, see `MultiLabelGPClassifier`.
        n_trees: trees over the labels, whose probabilities are averaged; "auto" is 3 up to 50,000 labels, 1 beyond.
        leaf_size: labels of a leaf, at most.
        prior_variance: tau^2, of the weights of the nodes' functions, w ~ N(0, tau^2 I); more fits more closely.
        n_weights: weights that the function of a node or label keeps, the largest; "auto" is 300, or fewer where those
            of all labels and trees would be more than 2e8, or than fit into memory.
        threshold: smaller weights are left out.
        held_out: share of the rows whose labels the trees do not see; at most 10,000 rows.
        n_inducing: inducing inputs of the Gaussian process of the evidence, at most half the rows held out.
        beam: nodes of a level that a search goes on from; more finds more and takes longer.
        time_budget: seconds of training to plan for, by fewer trees (at least one); None for no limit.
        checkpoint: file to save progress to, with a folder beside it. If it exists, training resumes from it.
        checkpoint_seconds: seconds between two savings of progress.
        max_memory: bytes, or a size such as "8G", that training keeps within by fewer weights; None is what the machine
            has.
        random_state: seed; equal seeds give equal models on the same machine.
        verbose: show a progress bar on standard error once training takes longer than two seconds.

    Attributes:
        classes_: label names in column order (K).
        n_features_in_: D.
        model_: the trained `LabelTreeModel`.
        history_: one record per epoch of the Gaussian process of the evidence: epoch, elbo (summed over the candidates
            of the rows held out, at most 400,000), seconds.
        settings_: the `LabelTreeSettings`.
        label_counts_: training rows with each label (K).
        n_rows_: training rows.

    Examples:
        >>> from extremegp import LabelTreeGPClassifier
        >>> texts = ["red apple", "green apple", "red car", "green car"] * 25
        >>> labels = [["fruit", "red"], ["fruit"], ["red"], []] * 25
        >>> classifier = LabelTreeGPClassifier(features="text", leaf_size=2, random_state=0)
        >>> classifier.fit(texts, labels).predict(["red apple"])
        [['fruit', 'red']]
    """

    model_: LabelTreeModel  # type: ignore[assignment]
    settings_: LabelTreeSettings  # type: ignore[assignment]

    def __init__(
        self,
        *,
        features: Literal["unit", "tfidf", "raw", "text"] = "unit",
        n_trees: int | Literal["auto"] = "auto",
        leaf_size: int = 100,
        prior_variance: float = 10.0,
        n_weights: int | Literal["auto"] = "auto",
        threshold: float = 0.05,
        held_out: float = 0.05,
        n_inducing: int = 200,
        beam: int = 10,
        time_budget: float | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 20.0,
        max_memory: int | str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = True,
    ) -> None:
        self.features = features
        self.n_trees = n_trees
        self.leaf_size = leaf_size
        self.prior_variance = prior_variance
        self.n_weights = n_weights
        self.threshold = threshold
        self.held_out = held_out
        self.n_inducing = n_inducing
        self.beam = beam
        self.time_budget = time_budget
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.max_memory = max_memory
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
            validation: (X, Y) to report P@1 on, in `history_`.
            label_names: names of the K columns where Y is an indicator; by default their numbers.

        Raises:
            DataError: X or Y cannot be used, or their lengths differ; fewer than two rows have a label.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if Y is None:
            raise DataError("LabelTreeGPClassifier requires y to be passed, but the target y is None")
        self.check_params()
        features = make_features(self.features).fit(X)
        x = scipy.sparse.csr_matrix(features.transform(X), dtype=np.float32)
        y, space = encode_targets(Y)
        check_lengths(x, y)
        named = space if label_names is None else named_columns(label_names, y, space)
        if validation is not None:
            check_columns(validation[0], column_names(X))
        if np.count_nonzero(np.diff(y.indptr)) < 2:
            raise DataError("fewer than two rows have a label: nothing can be learnt from them")
        if not np.isfinite(x.multiply(x).sum(axis=1)).all():
            raise DataError("X has numbers whose squares float32 cannot hold: scale it, as features='unit' does")
        if not x.has_sorted_indices:
            x = x.sorted_indices()
        y = scipy.sparse.csr_matrix(y, dtype=np.float32)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        machine = world("cpu")
        # Processes that start at different moments see different free memory.
        left = machine.said_by_first(memory_left(memory_limit(self.max_memory), machine)) // machine.local_size
        training = self._training(x.shape[0], y.shape[1], seed, (left - _entry_bytes(x, y)) // _WEIGHT_BYTES)
        n_weights = training.n_trees * training.n_weights * y.shape[1]
        needed = _WEIGHT_BYTES * n_weights + _entry_bytes(x, y)
        check_memory(needed, settings="n_trees or n_weights", available=left)
        model, settings, history = grow(
            x,
            y,
            training,
            reporter=ProgressReporter() if self.verbose and machine.leads else NoReporter(),
            world=machine,
            checkpoint=self.checkpoint,
            fingerprint=fingerprint([x, y], asdict(training)),
        )
        self._adopt(
            model,
            settings=settings,
            features=features,
            space=named,
            target_kind="lists" if space is not None else "sparse" if scipy.sparse.issparse(Y) else "dense",
            history=history,
            label_counts=column_counts(y),
            n_rows=x.shape[0],
            instance_noise=None,
            feature_names=column_names(X),
        )
        self.n_held_out_ = training.n_held_out
        if validation is not None:
            self.history_[-1]["validation_P@1"] = self.score(*validation)
        return self

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        memory_limit(self.max_memory)
        self._training(n_rows=100, n_labels=100, seed=0)

    def _training(self, n_rows: int, n_labels: int, seed: int, most_weights: int = _MOST_WEIGHTS) -> TreeTraining:
        n_trees = (1 if n_labels > _MANY_LABELS else 3) if self.n_trees == "auto" else self.n_trees
        n_trees = number("n_trees", n_trees, low=1, high=1000, integer=True)
        n_weights = self.n_weights
        if n_weights == "auto":
            n_weights = max(20, min(300, min(most_weights, _MOST_WEIGHTS) // (n_trees * n_labels)))
        budget = self.time_budget
        held_out = number("held_out", self.held_out, low=0, high=0.5, open_low=True)
        n_held_out = min(10_000, max(math.ceil(held_out * n_rows), min(200, n_rows // 4), 1))
        n_inducing = number("n_inducing", self.n_inducing, low=1, high=_MOST_INDUCING, integer=True)
        return TreeTraining(
            n_trees=n_trees,
            leaf_size=number("leaf_size", self.leaf_size, low=2, integer=True),
            prior_variance=number("prior_variance", self.prior_variance, low=0, open_low=True),
            n_weights=number("n_weights", n_weights, low=1, integer=True),
            threshold=number("threshold", self.threshold, low=0),
            n_held_out=n_held_out,
            n_inducing=min(n_inducing, max(1, n_held_out // 2)),
            beam=number("beam", self.beam, low=1, high=_MOST_NODES, integer=True),
            seed=seed,
            checkpoint_seconds=number("checkpoint_seconds", self.checkpoint_seconds, low=0),
            time_budget=None if budget is None else number("time_budget", budget, low=0, open_low=True),
        )

    def predictor(self) -> LabelTreePredictor:
        """What predicts, a block of rows at a time."""
        check_is_fitted(self, "model_")
        return LabelTreePredictor(self.model_)

    def predict_topk(
        self,
        X: Any,
        k: int = 5,
        *,
        by: Literal["utility", "probability"] = "probability",
        output: str = "arrays",
        given: Any = None,
        given_variance: GivenVariance = "laplace",
        approximate: float | None = None,
    ) -> Any:
        """The k best labels of every row, of at most 180 that trees and neighbours find.

        Args:
            X: as in `fit`.
            k: how many labels.
            by: "utility" ranks by the mean utility; "probability" by p(y = 1).
            output: "arrays" for a `TopK`, "csr" for a sparse N x K of scores.
            given: must be None, and so must the others: the search is what it is.
            given_variance: see `given`.
            approximate: see `given`.

        Raises:
            SettingsError: `given` or `approximate`.
        """
        choice("output", output, ("arrays", "csr"))
        k, by = number("k", k, low=1, integer=True), choice("by", by, ("utility", "probability"))
        if given is not None or approximate is not None:
            raise SettingsError("a model of label trees takes neither given nor approximate")
        best = self._top(X, k, by)
        return best.to_csr(self.settings_.n_labels) if output == "csr" else best

    def predict_proba(
        self, X: Any, *, given: Any = None, given_variance: GivenVariance = "laplace"
    ) -> NDArray[np.float32]:
        """p(y_ik = 1), N x K and dense; labels that are no candidates have one small probability in common."""
        x, predictor = self._transform(X), self.predictor()
        return stack(predictor.probabilities(x, given), x.shape[0], self.settings_.n_labels)

    def decision_function(self, X: Any, *, given: Any = None) -> NDArray[np.float32]:
        """Mean utilities, N x K and dense; labels that are no candidates have one in common."""
        x, predictor = self._transform(X), self.predictor()
        return stack(predictor.mean_utilities(x, given), x.shape[0], self.settings_.n_labels)

    def predict(self, X: Any) -> Any:
        """The labels with p(y = 1) of at least one half, in the form that `fit` was given."""
        x = self._transform(X)
        blocks = []
        for rows, evidence, _, probabilities in self.predictor().candidates(x):
            likely = probabilities >= 0.5
            place = evidence.rows[likely], evidence.labels[likely]
            shape = rows.stop - rows.start, self.settings_.n_labels
            blocks.append(scipy.sparse.csr_matrix((np.ones(len(place[0]), np.int64), place), shape=shape))
        indicator = scipy.sparse.vstack(blocks, format="csr")
        if self.label_space_ is not None and self.target_kind_ == "lists":
            return self.label_space_.decode(indicator)
        return indicator.toarray() if self.target_kind_ == "dense" else indicator

    def predict_latent(self, X: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """There are none: the functions are those of nodes.

        Raises:
            SettingsError: always.
        """
        raise SettingsError("a model of label trees has no latent functions that labels share")

    def label_index(self) -> Any:
        """There is none: the trees are the index.

        Raises:
            SettingsError: always.
        """
        raise SettingsError("a model of label trees searches its trees: leave out approximate")

    def _top(self, X: Any, k: int, by: Literal["utility", "probability"], *args: Any, **kwargs: Any) -> TopK:
        x = self._transform(X)
        return TopK.concatenate([best for _, best, _ in self.predictor().top(x, k, by)])

    @classmethod
    def _settings_from(cls, values: Any, folder: str | Path) -> LabelTreeSettings:
        names = [name for name in LabelTreeSettings.__dataclass_fields__ if name != "trees"]
        try:
            trees = tuple(tuple(LevelSizes(*map(_size, level)) for level in tree) for tree in values["trees"])
            settings = LabelTreeSettings(trees=trees, **{name: _size(values[name]) for name in names})
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFormatError(f"{folder}: the model settings are incomplete or of another version") from error
        # Compiled searches have room for the best of at least one node.
        in_domain = 1 <= settings.beam <= _MOST_NODES and 1 <= settings.n_inducing <= _MOST_INDUCING
        if not in_domain or not trees or not all(trees) or values.keys() != {*names, "trees"}:
            raise ModelFormatError(f"{folder}: the model settings contradict themselves")
        return settings

    @classmethod
    def _from_saved(
        cls, folder: str | Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], device: torch.device
    ) -> Self:
        estimator = super()._from_saved(folder, config, tensors, torch.device("cpu"))
        if not estimator.model_.is_sound():
            raise ModelFormatError(f"{folder}: the trees or the rows of the model contradict themselves")
        return estimator


def _entry_bytes(x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix) -> int:
    """What training takes for the rows."""
    return int(_ENTRY_BYTES * (x.nnz + y.nnz))


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise ValueError(f"not a size: {value!r}")
    return value
