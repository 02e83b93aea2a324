"""Very many labels per instance: label trees of linear Gaussian processes and nearest rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.extmath import row_norms
from sklearn.utils.validation import check_is_fitted

from extremegp.data import BlockFeatures, Features, FloatMatrix, LabelSpace
from extremegp.data.frames import column_names
from extremegp.engine.block_shares import block_factors
from extremegp.engine.matrices import column_counts
from extremegp.engine.part import Part
from extremegp.errors import DataError, ModelFormatError, SettingsError
from extremegp.estimators.base import check_columns
from extremegp.estimators.distances import fit_novelty
from extremegp.estimators.learning_trees import LearnsTreeRows
from extremegp.estimators.multilabel_estimator import encode_as_known
from extremegp.estimators.origin import DataOrigin, Origin, content_hash, fingerprint
from extremegp.estimators.parameters import RunParameters
from extremegp.estimators.row_ids import RowIds, named_rows, without_absent_ids
from extremegp.estimators.uncertainty import Uncertainty, uncertainty
from extremegp.estimators.weights import label_counts
from extremegp.label_tree import LabelTreeModel, LabelTreePredictor, LabelTreeSettings, LevelSizes, TreeTraining, grow
from extremegp.label_tree.all_rows import MOST_ROWS
from extremegp.label_tree.evidence import BEST_OF_EACH, N_NEIGHBOURS
from extremegp.label_tree.settings import LATER, LATER_FLAGS
from extremegp.label_tree.training import WIDER_ABOVE
from extremegp.prediction.novelty import Novelty
from extremegp.settings.domains import choice, number
from extremegp.settings.memory import check_memory, memory_left, memory_limit
from extremegp.settings.resolve import label_propensities
from extremegp.training import NoReporter, ProgressReporter
from extremegp.training.distributed import world

_MOST_WEIGHTS, _MANY_LABELS = 200_000_000, 50_000
_MOST_NODES = _MOST_INDUCING = 10_000
_MOST_REGRESSED = 2 * N_NEIGHBOURS
_ENOUGH_HELD_OUT = 2000
# Labels that make candidates, and the share of the rows that have no more of them.
_MOST_BEST, _COVERED = 3000, 0.95
# A weight with its precision and its child, and its share of what finds it; a training entry as a row, as a column
# and once more in the making of levels.
_WEIGHT_BYTES, _ENTRY_BYTES = 15, 40
# 128 directions, and a handful of vectors for each of 64 inputs.
_ROW_BYTES = 4 * (128 + 6 * 64)


@dataclass(kw_only=True, repr=False, eq=False)
class LabelTreeGPClassifier(RunParameters, LearnsTreeRows):
    """Multi-label classification for 10^4 to 10^6 labels, in minutes on sparse features.

    A few trees over the labels have a linear Gaussian process at every node and every label, which says how likely the
    label is where one beside it applies. The labels of the nearest training rows are counted, and regressed on by a
    Gaussian process of these rows. A sparse Gaussian process, learnt on rows that the trees have not seen, then makes
    one calibrated probability of what all of them say of a label. The model keeps the training rows. Only labels that
    trees or neighbours find, at most 180 of a row, or more where rows have many labels, are candidates for its best;
    all others have one small probability in common.

    Args:
        n_trees: trees over the labels, whose probabilities are averaged; "auto" is 3 up to 50,000 labels, 1 beyond.
        leaf_size: labels of a leaf, at most.
        prior_variance: tau^2, of the weights of the nodes' functions, w ~ N(0, tau^2 I); more fits more closely.
        n_weights: weights that the function of a label keeps, the largest; nodes above keep 16 times as many. "auto" is
            300, or fewer where those of all labels and trees would be more than 2e8, or than fit into memory.
        threshold: smaller weights are left out.
        held_out: share of the rows whose labels the trees do not see; at most 10,000 rows. "auto" is 0.05, or more for
            2000 rows, up to 0.1: fewer tell too little of what the evidence is worth.
        n_inducing: inducing inputs of the Gaussian process of the evidence, at most half the rows held out.
        n_regressed: rows that a Gaussian process regression of the labels is taken on at every input, at most 400: the
            200 nearest, and beyond those what these leave unexplained; 0 for no regression.
        all_rows: whether the labels are also regressed on all training rows, with a linear kernel, which takes a few
            passes over the rows at every input; "auto" tries it up to 100,000 rows and keeps it where it makes the
            labels of rows held out more probable.
        beam: nodes of a level that a search goes on from; more finds more and takes longer.
        n_best: labels of a row that trees, and each of two shares of its neighbours, make candidates, so that at most
            three times as many are ranked; "auto" is as many as 95 of 100 rows have, but at least 60 and at most 300.
        propensity: how likely labels that apply were recorded, for data where many are missing, as for
            `MultiLabelGPClassifier`: probabilities then say how likely labels apply, recorded or not, and rare ones
            rank higher. None takes every missing label for one that does not apply.
        time_budget: seconds of training to plan for, by fewer trees (at least one); None for no limit.
        checkpoint: file to save progress to, with a folder beside it. If it exists, training resumes from it.
        max_memory: bytes, or a size such as "8G", that training keeps within by fewer weights; None is what the machine
            has.

    Attributes:
        classes_: label names in column order (K).
        n_features_in_: D.
        model_: the trained `LabelTreeModel`.
        history_: one record per epoch of the Gaussian process of the evidence: epoch, elbo (summed over the candidates
            of the rows held out, at most 400,000), seconds.
        settings_: the `LabelTreeSettings`.
        label_counts_: training rows with each label (K).
        n_rows_: training rows.
        ids_: what they are called.

    Examples:
        >>> from extremegp import LabelTreeGPClassifier
        >>> texts = ["red apple", "green apple", "red car", "green car"] * 25
        >>> labels = [["fruit", "red"], ["fruit"], ["red"], []] * 25
        >>> classifier = LabelTreeGPClassifier(features="text", leaf_size=2, random_state=0)
        >>> classifier.fit(texts, labels).predict(["red apple"])
        [['fruit', 'red']]
    """

    n_trees: int | Literal["auto"] = "auto"
    leaf_size: int = 50
    prior_variance: float = 10.0
    n_weights: int | Literal["auto"] = "auto"
    threshold: float = 0.1
    held_out: float | Literal["auto"] = "auto"
    n_inducing: int = 200
    n_regressed: int = 200
    all_rows: bool | Literal["auto"] = "auto"
    beam: int = 10
    n_best: int | Literal["auto"] = "auto"
    propensity: Literal["auto"] | tuple[float, float] | NDArray[Any] | None = None
    max_memory: int | str | None = None
    model_: LabelTreeModel = field(init=False)
    settings_: LabelTreeSettings = field(init=False)
    cannot_take: ClassVar[Mapping[str, str]] = {
        "given": "a model of label trees cannot take given labels into account",
        "approximate": "a model of label trees searches its trees: leave out approximate",
    }
    _mapped_tensors: ClassVar[tuple[str, ...]] = ("model.trees.", "model.rows.", "model.all_rows.")

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
            Y: labels: an N x K indicator (sparse, array or data frame), or N lists of label names. There are no soft
                labels: the nodes of a tree ask whether any label below them applies, which probabilities of each do not
                say.
            sample_weight: what each of the N rows counts, or one number for all: in the nodes, among the neighbours and
                in what their evidence is worth. 0 leaves a row out.
            validation: (X, Y) to report P@1 on, in `history_`.
            label_names: names of the K columns where Y is an indicator; by default those of the data frame, or their
                numbers.
            ids: names of the rows, to `forget` them by; by default "0" to N - 1, of the rows that count.

        Raises:
            DataError: X, Y, weights or ids cannot be used, or their lengths differ; Y has soft labels; fewer than two
                rows have a label.
            SettingsError: a parameter is outside its domain.
            MemoryPlanError: the settings need more memory than there is.
            TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        """
        if Y is None:
            raise DataError("LabelTreeGPClassifier requires y to be passed, but the target y is None")
        self.check_params()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        X, Y, weights, ids = without_absent_ids(X, Y, sample_weight, ids)
        self._drop_journal()
        features, x, y, space, target_kind = self._training_rows(X, Y, label_names)
        y = scipy.sparse.csr_matrix(y, dtype=np.float32)
        if isinstance(features, BlockFeatures):
            x = features.weigh(block_factors(x, y, features.layout, rng=np.random.default_rng(seed)).tolist(), x)
        x = scipy.sparse.csr_matrix(x, dtype=np.float32)
        if validation is not None:
            check_columns(validation[0], None if features.kind == "text" else column_names(X))
        if np.count_nonzero(np.diff(y.indptr)) < 2:
            raise DataError("fewer than two rows have a label: nothing can be learnt from them")
        if not np.isfinite(row_norms(x, squared=True)).all():
            raise DataError("X has numbers whose squares float32 cannot hold: scale it, as features='unit' does")
        if not x.has_sorted_indices:
            x = x.sorted_indices()
        if validation is not None:
            # Refused before the work: they are judged after it.
            encode_as_known(validation[1], y.shape[1], space, counts=False, name="the Y of validation")
        told = TrainedOn(features, x, y, space, target_kind, weights, named_rows(ids, x.shape[0]))
        self._grow(told, seed, lambda: fit_novelty(features, X, x), None if features.layout else column_names(X))
        if validation is not None:
            self.history_[-1]["validation_P@1"] = self.score(*validation)
        return self

    def refit(self) -> Self:
        check_is_fitted(self, "model_")
        serials, novelty, rows = self._serials_to_refit(), self.novelty_, self.model_.rows
        weights = rows.row_weights().astype(np.float64) if rows.settings.weighted else None
        x, y = rows.inputs().copy(), rows.indicator()
        ids = RowIds(self.ids_.names, self.ids_.next_number)
        told = TrainedOn(self.features_, x, y, self.label_space_, self.target_kind_, weights, ids)
        names, titles = getattr(self, "feature_names_in_", None), self.label_titles_
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._grow(told, seed, lambda: novelty, None if names is None else names.tolist())
        self.label_titles_, self._novelty_serials = titles, serials
        return self

    def _grow(self, told: TrainedOn, seed: int, novelty: Callable[[], Novelty | None], names: list[str] | None) -> None:
        """Become fitted to rows that are encoded and checked."""
        x, y, weights = told.x, told.y, told.weights
        content = content_hash([x, y] if weights is None else [x, y, weights])
        machine = world("cpu")
        # Processes that start at different moments see different free memory.
        left = (
            machine.said_by_first(memory_left(memory_limit(self.max_memory), machine.local_size)) // machine.local_size
        )
        enough = int(np.quantile(np.diff(y.indptr), _COVERED))
        training = self._training(x.shape[0], y.shape[1], seed, enough, (left - _entry_bytes(x, y)) // _WEIGHT_BYTES)
        n_weights = training.n_trees * training.n_weights * y.shape[1] * _and_above(training.leaf_size)
        needed = int(_WEIGHT_BYTES * n_weights) + _entry_bytes(x, y)
        check_memory(needed, settings="n_trees or n_weights", available=left)
        n_counted = x.shape[0] if weights is None else round(float(weights.sum()))
        propensities = label_propensities(self.propensity, label_counts=label_counts(y, weights), n_rows=n_counted)
        model, history, selections = grow(
            x,
            y,
            training,
            reporter=ProgressReporter() if self.verbose and machine.leads else NoReporter(),
            world=machine,
            weights=weights,
            propensities=propensities,
            checkpoint=self.checkpoint,
            fingerprint=fingerprint([content], asdict(training)),
        )
        self._adopt(
            model,
            settings=model.settings,
            features=told.features,
            space=told.space,
            target_kind=told.target_kind,
            history=history,
            label_counts=column_counts(y),
            n_rows=x.shape[0],
            instance_noise=None,
            novelty=novelty(),
            hyperparameters=selections,
            feature_names=names,
        )
        self.n_held_out_ = training.n_held_out
        origin = DataOrigin(x.shape[0], x.shape[1], y.shape[1], training.n_held_out, content)
        self.origin_ = Origin.now(self, drawn_seed=seed, training=origin)
        self._begin_learning(told.ids)

    def check_params(self) -> None:
        """Refuse parameters that no data would make possible.

        Raises:
            SettingsError: one is outside its domain.
        """
        memory_limit(self.max_memory)
        self.new_features("text")
        self._training(n_rows=100, n_labels=100, seed=0, enough_best=1)

    def _training(
        self, n_rows: int, n_labels: int, seed: int, enough_best: int, most_weights: int = _MOST_WEIGHTS
    ) -> TreeTraining:
        n_trees = (1 if n_labels > _MANY_LABELS else 3) if self.n_trees == "auto" else self.n_trees
        n_trees = number("n_trees", n_trees, low=1, high=1000, integer=True)
        leaf_size = number("leaf_size", self.leaf_size, low=2, integer=True)
        n_weights = self.n_weights
        if n_weights == "auto":
            room = min(most_weights, _MOST_WEIGHTS) / _and_above(leaf_size)
            n_weights = max(20, min(300, int(room) // (n_trees * n_labels)))
        n_best = min(max(enough_best, BEST_OF_EACH), _MOST_BEST // 10) if self.n_best == "auto" else self.n_best
        budget = self.time_budget
        enough = min(max(0.05, _ENOUGH_HELD_OUT / n_rows), 0.1)
        held_out = number(
            "held_out", enough if self.held_out == "auto" else self.held_out, low=0, high=0.5, open_low=True
        )
        n_held_out = min(10_000, max(math.ceil(held_out * n_rows), min(200, n_rows // 4), 1))
        n_inducing = number("n_inducing", self.n_inducing, low=1, high=_MOST_INDUCING, integer=True)
        return TreeTraining(
            n_trees=n_trees,
            leaf_size=leaf_size,
            prior_variance=number("prior_variance", self.prior_variance, low=0, open_low=True),
            n_weights=number("n_weights", n_weights, low=1, integer=True),
            threshold=number("threshold", self.threshold, low=0),
            n_held_out=n_held_out,
            n_inducing=min(n_inducing, max(1, n_held_out // 2)),
            n_regressed=number("n_regressed", self.n_regressed, low=0, high=_MOST_REGRESSED, integer=True),
            all_rows={"auto": None, True: True, False: False}[choice("all_rows", self.all_rows, ("auto", True, False))],
            beam=number("beam", self.beam, low=1, high=_MOST_NODES, integer=True),
            n_best=number("n_best", n_best, low=1, high=_MOST_BEST, integer=True),
            seed=seed,
            checkpoint_seconds=number("checkpoint_seconds", self.checkpoint_seconds, low=0),
            time_budget=None if budget is None else number("time_budget", budget, low=0, open_low=True),
        )

    def predictor(self) -> LabelTreePredictor:
        """What predicts, a block of rows at a time; the same one until the Gaussian process of `model_` changes."""
        check_is_fitted(self, "model_")
        model = self.model_
        return self._kept.get("predictor", lambda: LabelTreePredictor(model), model.combiner, model)

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """How uncertain the labels of every row are.

        The posterior is that of the Gaussian process of the evidence, of the trees' weights and of the regressions, and
        of a row that is unlike all training rows the prior, under which labels are as probable as they are frequent.

        Args:
            X: as in `fit`.

        Raises:
            DataError: X cannot be used.
        """
        x = self._transform(X)
        parts = [parts for _, *parts in self._entropies(x)]
        total, aleatoric, variance = map(np.concatenate, zip(*parts, strict=True))
        return uncertainty(total, aleatoric, variance, self.novelty_of(X, x))

    def _likely(self, x: FloatMatrix) -> Iterator[scipy.sparse.csr_matrix]:
        for rows, evidence, _, probabilities in self.predictor().candidates(x):
            likely = probabilities >= 0.5
            place = evidence.rows[likely], evidence.labels[likely]
            shape = rows.stop - rows.start, self.settings_.n_labels
            yield scipy.sparse.csr_matrix((np.ones(len(place[0]), np.int64), place), shape=shape)

    @classmethod
    def _settings_from(cls, values: Any, parts: Sequence[type[Part]]) -> LabelTreeSettings:
        names = [name for name in LabelTreeSettings.__dataclass_fields__ if name not in ("trees", *LATER)]
        try:
            trees = tuple(tuple(LevelSizes(*map(_size, level)) for level in tree) for tree in values["trees"])
            sizes: dict[str, Any] = {name: _size(values[name]) for name in names}
            sizes |= {name: _size(values.get(name, 0)) for name in LATER if name not in LATER_FLAGS}
            flags = {name: values.get(name, False) is True for name in LATER_FLAGS}
            settings = LabelTreeSettings(trees=trees, **sizes, **flags)
        except (KeyError, TypeError, ValueError) as error:
            raise SettingsError("the model settings are incomplete or of another version") from error
        # Compiled searches have room for the best of at least one node.
        in_domain = 1 <= settings.beam <= _MOST_NODES and 1 <= settings.n_inducing <= _MOST_INDUCING
        in_domain &= settings.n_regressed <= _MOST_REGRESSED and 0 <= settings.n_first <= N_NEIGHBOURS
        in_domain &= settings.n_best <= _MOST_BEST
        if not in_domain or not trees or not all(trees) or values.keys() - {*LATER} != {*names, "trees"}:
            raise SettingsError("the model settings contradict themselves")
        return settings

    @classmethod
    def _from_saved(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        parts: Sequence[type[Part]],
    ) -> Self:
        return super()._from_saved(folder, config, tensors, torch.device("cpu"), parts)

    def _check_rows(self, folder: str | Path) -> None:
        if not self.model_.is_sound():
            raise ModelFormatError(f"{folder}: the trees or the rows of the model contradict themselves")


class TrainedOn(NamedTuple):
    """Rows to train on, encoded and checked.

    Attributes:
        features: the features step, fitted.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        space: the names of the labels.
        target_kind: the form of the targets.
        weights: what each row counts; None for 1.
        ids: what the rows are called.
    """

    features: Features
    x: scipy.sparse.csr_matrix
    y: scipy.sparse.csr_matrix
    space: LabelSpace | None
    target_kind: str
    weights: NDArray[np.float64] | None
    ids: RowIds


def _and_above(leaf_size: int) -> float:
    """How many times the weights of all labels are those of all nodes, at most."""
    return 1 + WIDER_ABOVE * 16 / 15 / (leaf_size / 2)


def _entry_bytes(x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix) -> int:
    """What training takes for the rows, and for the regression on all of them."""
    return int(_ENTRY_BYTES * (x.nnz + y.nnz) + _ROW_BYTES * min(x.shape[0], MOST_ROWS))


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise ValueError(f"not a size: {value!r}")
    return value
