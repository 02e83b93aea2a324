"""Growing the trees."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms

from extremegp.engine.compiled import matmul
from extremegp.engine.selection import Selection
from extremegp.errors import BudgetWarning, ModelFormatError
from extremegp.label_tree.all_rows import MOST_ENTRIES, MOST_FEATURES, MOST_ROWS, directions_of_rows
from extremegp.label_tree.checkpoint import NODE_ARRAYS, NodeCheckpoint
from extremegp.label_tree.clustering import embed_labels, principal_directions
from extremegp.label_tree.combiner import gain_of_all_rows, train_combiner
from extremegp.label_tree.evidence import N_NEIGHBOURS
from extremegp.label_tree.evidence_gain import Gain
from extremegp.label_tree.exclusions import ExclusionSearch, Pairs
from extremegp.label_tree.levels import Level, NodeBatch, TreeShape, node_batches
from extremegp.label_tree.model import LabelTreeModel, untrained
from extremegp.label_tree.nodes import fit_nodes
from extremegp.label_tree.settings import LabelTreeSettings
from extremegp.label_tree.tree import LevelSizes
from extremegp.progress import spoken
from extremegp.storage.tensors import copy_state
from extremegp.threads import within_quota
from extremegp.training.distributed import World
from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted
from extremegp.training.progress import Reporter

WIDER_ABOVE = 16
# Of log-likelihood, for the time of a regression on all rows.
_LEAST_GAIN = 0.015
_PASSES, _TOLERANCE = 6, 0.05

Nodes: TypeAlias = dict[str, NDArray[Any]]
"""Some nodes of a level: the `NODE_ARRAYS`."""


@dataclass(frozen=True)
class TreeTraining:
    """How to grow the trees.

    Attributes:
        n_trees: T.
        leaf_size: labels of a leaf, at most.
        prior_variance: tau^2 of the nodes' weights.
        n_weights: weights that the function of a label keeps, the largest, at most; nodes above, which are far fewer
            and see far more rows, keep `WIDER_ABOVE` times as many.
        threshold: smaller weights are left out.
        n_held_out: training rows whose labels the trees do not see: what the evidence is worth is learnt from them.
        n_inducing: inducing inputs of the Gaussian process of the evidence.
        n_regressed: rows that the regression of the labels is on; 0 for no regression.
        all_rows: whether they are also regressed on all rows; None for where it says more.
        beam: nodes of a level that a search goes on from.
        n_best: labels that trees, and each of two shares of neighbours, make candidates.
        seed: decides everything.
        checkpoint_seconds: seconds between two savings.
        time_budget: seconds to plan for: fewer trees are grown where more would take longer; None for all.
    """

    n_trees: int
    leaf_size: int
    prior_variance: float
    n_weights: int
    threshold: float
    n_held_out: int
    n_inducing: int
    n_regressed: int
    all_rows: bool | None
    beam: int
    n_best: int
    seed: int
    checkpoint_seconds: float = 20.0
    time_budget: float | None = None


@within_quota()
def grow(
    x: scipy.sparse.csr_matrix,
    y: scipy.sparse.csr_matrix,
    training: TreeTraining,
    *,
    reporter: Reporter,
    world: World,
    weights: NDArray[np.float64] | None = None,
    propensities: NDArray[np.float64] | None = None,
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
) -> tuple[LabelTreeModel, list[dict[str, float]], list[Selection]]:
    """Train the model.

    With a `checkpoint` a run that was interrupted goes on where it was, and ends at the same model. Several processes
    share out the nodes.

    Args:
        x: inputs, N x D, float32 with ascending columns.
        y: labels that are 1, N x K.
        training: how.
        reporter: told how it goes on.
        world: the processes that train together.
        weights: what each row counts, N, positive; None for 1.
        propensities: how likely a label that applies is recorded, K; None where all are.
        checkpoint: file to save progress to, beside the folder `parts_folder`.
        fingerprint: identifies data and settings.

    Returns:
        The model, a record per epoch of the Gaussian process of the evidence, and what was tried for the rest.

    Raises:
        TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        ModelFormatError: the checkpoint is damaged or of another run.
        ProcessLostError: another process ended.
    """
    progress = NodeCheckpoint(checkpoint, fingerprint, writes=world.leads)
    run = _Growth(x, y, training, reporter, world, progress, weights)
    with GracefulInterrupt(among_others=world.size > 1) as interrupt:
        run.grow(interrupt)
        run.find_exclusions(interrupt)
    try:
        model = run.model()
        selections = [run.exclusion_gain.selection("exclusions", used=run.excluded is not None)]
        selections += model.choose_regression(x, y, run.held_out)
        if training.all_rows is None and model.all_rows is not None:
            gain = gain_of_all_rows(model, x, y, run.held_out)
            used = gain.is_enough(_LEAST_GAIN)
            selections.append(gain.selection("regression on all rows", used=used))
            model = model if used else model.without_all_rows()
        history = train_combiner(
            model, x, y, run.held_out, seed=training.seed, weights=weights, propensities=propensities
        )
    except TrainingInterrupted as interrupt:
        # The trees are saved, even if what is learnt from them is not.
        raise run.interrupted() from interrupt
    finally:
        reporter.close()
    for record in history:
        record["seconds"] = progress.seconds()
    return model, history, selections


class _Growth:
    def __init__(
        self,
        x: scipy.sparse.csr_matrix,
        y: scipy.sparse.csr_matrix,
        training: TreeTraining,
        reporter: Reporter,
        world: World,
        progress: NodeCheckpoint,
        weights: NDArray[np.float64] | None,
    ) -> None:
        self.x, self.y, self.training, self.reporter, self.world = x, y, training, reporter, world
        self.progress, seed = progress, training.seed
        held_out = np.random.default_rng([seed, 1]).choice(x.shape[0], training.n_held_out, replace=False)
        self.held_out = np.sort(held_out)
        seen = np.ones(x.shape[0], dtype=bool)
        seen[self.held_out] = False
        self.seen, self.seen_rows = seen, np.flatnonzero(seen)
        own = None if weights is None else weights.astype(np.float32)
        self.weighted, self.weights = own is not None, np.ones(x.shape[0], np.float32) if own is None else own
        self.seen_y = scipy.sparse.csr_matrix(y.multiply((seen * self.weights)[:, None]), dtype=np.float32)
        self.seen_y.eliminate_zeros()
        self.squares = row_norms(x, squared=True)
        of_rows: dict[str, Any] = {"rng": np.random.default_rng([seed, 2]), "weights": own}
        directions = principal_directions(x, scipy.sparse.csr_matrix(x.T), y.shape[1], **of_rows)
        self.projected = matmul(x, directions)
        vectors = embed_labels(self.projected, self.seen_y)
        self.shapes = [
            TreeShape.grown(vectors, training.leaf_size, np.random.default_rng([seed, 3, tree]))
            for tree in range(training.n_trees)
        ]
        # The nodes of the trees' levels, a batch after the other.
        self.nodes: list[list[list[Nodes]]] = []
        self.excluded: Pairs | None = None
        self.exclusion_gain = Gain(0.0, 0.0)

    def grow(self, interrupt: GracefulInterrupt) -> None:
        for tree, shape in enumerate(self.shapes):
            if tree and self._out_of_time(tree):
                self._warn_of_budget(tree)
                break
            self.nodes.append([])
            for depth, level in enumerate(shape.levels(self.seen_y, self.seen_rows)):
                self.nodes[tree].append([])
                width = self.training.n_weights * (1 if depth == len(shape.depths) else WIDER_ABOVE)
                for done in self._fit_level(f"{tree}.{depth}", level, width, self.nodes[tree][depth]):
                    of_tree = (depth + done) / (len(shape.depths) + 1)
                    self.reporter.work("label trees", (tree + of_tree) / self.training.n_trees)
                    self._save_if_due(interrupt)
        self.progress.save()

    def find_exclusions(self, interrupt: GracefulInterrupt) -> None:
        """Find features that speak against labels."""
        search = ExclusionSearch(
            self.x, self.y, self.seen_y, self.seen_rows, self.held_out, weights=self.weights,
            rng=np.random.default_rng([self.training.seed, 5]),
        )  # fmt: skip
        for done in search.steps():
            self.reporter.work("exclusions", done)
            self._save_if_due(interrupt)
        self.excluded, self.exclusion_gain = search.pairs, search.gain

    def _fit_level(self, key: str, level: Level, width: int, fitted: list[Nodes]) -> Iterator[float]:
        """Append a level's nodes to `fitted`, a batch in every process at a time, and say how much of it is done."""
        batches, rank, size = list(node_batches(level)), self.world.rank, self.world.size
        work = np.cumsum([batch.work for batch in batches])
        for start in range(0, len(batches), size):
            at_once = batches[start : start + size]
            own = [self._nodes(f"{key}.{batch.first}", level, batch, width) for batch in at_once[rank : rank + 1]]
            for batch, nodes in zip(at_once, chain(*self.world.said_by_each(own)), strict=True):
                self.progress.keep(f"{key}.{batch.first}", nodes)
                fitted.append(nodes)
            yield work[start + len(at_once) - 1] / work[-1]

    def interrupted(self) -> TrainingInterrupted:
        """What to raise once progress is saved."""
        return TrainingInterrupted(None if self.progress.path is None else str(self.progress.path))

    def _save_if_due(self, interrupt: GracefulInterrupt) -> None:
        due = self.progress.since_saved() > self.training.checkpoint_seconds
        stop, late = self.world.any(interrupt.requested, due)
        if stop or late:
            self.progress.save()
        if stop:
            raise self.interrupted()

    def _out_of_time(self, n_grown: int) -> bool:
        """Whether one more tree would take longer than there is, in the slowest process."""
        if self.training.time_budget is None:
            return False
        (slowest,) = self.world.most(self.progress.seconds())
        return slowest * (n_grown + 1) / n_grown > 0.85 * self.training.time_budget

    def _warn_of_budget(self, n_grown: int) -> None:
        text = (
            f"a time budget of {spoken(self.training.time_budget or 0)} is enough for {n_grown} of "
            f"{self.training.n_trees} trees: give more time, or set n_trees={n_grown}"
        )
        if self.world.leads:
            warnings.warn(text, BudgetWarning, stacklevel=4)

    def _nodes(self, key: str, level: Level, batch: NodeBatch, width: int) -> Nodes:
        """The nodes of a batch, fitted now or by a run that was interrupted."""
        n_parents = int(level.parents[batch.last - 1] - level.parents[batch.first]) + 1
        saved = self.progress.finished(key, n_parents=n_parents, n_nodes=batch.last - batch.first)
        return self._fit(level, batch.first, batch.last, width) if saved is None else saved

    def _fit(self, level: Level, first: int, last: int, width: int) -> Nodes:
        """The nodes from `first` to before `last`, which have all children of some parents, as `TreeLevel` has them."""
        training = self.training
        n, width = last - first, min(width, self.x.shape[1])
        kept, (biases, bias_variances) = np.zeros(n, np.int64), np.zeros((2, n), np.float32)
        features, weights = np.zeros((n, width), np.int32), np.zeros((n, width), np.float32)
        precisions = np.zeros((n, width), np.uint8)
        fit_nodes(
            n, self.x.indptr, self.x.indices, self.x.data, self.squares, self.weights, level.above.indptr,
            level.above.indices, level.below.indptr, level.below.indices, level.parents, first, last,
            training.prior_variance, _PASSES, _TOLERANCE, training.threshold, training.seed, self.x.shape[1], kept,
            features, weights, precisions, biases, bias_variances,
        )  # fmt: skip
        taken = np.arange(width) < kept[:, None]
        nodes = np.repeat(np.arange(first, last, dtype=np.int32), kept)
        parent, feature = level.parents[nodes].astype(np.int64), features[taken]
        by_feature = np.lexsort((nodes, feature, parent))
        keys = (parent * self.x.shape[1] + feature)[by_feature]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        of_parents = level.parents[first], level.parents[last - 1] + 1
        blocks = np.searchsorted(parent[by_feature][starts], np.arange(*of_parents))
        arrays = (
            blocks.astype(np.int64),
            feature[by_feature][starts],
            starts.astype(np.int64),
            nodes[by_feature],
            weights[taken][by_feature],
            precisions[taken][by_feature],
            biases,
            bias_variances,
        )
        return dict(zip(NODE_ARRAYS, arrays, strict=True))

    def model(self) -> LabelTreeModel:
        """The model, its trees and rows in place."""
        training, x, y = self.training, self.x, self.y
        trees = tuple(tuple(map(_sizes, levels)) for levels in self.nodes)
        settings = LabelTreeSettings(
            x.shape[1], y.shape[1], x.shape[0], x.nnz, y.nnz, trees, training.n_inducing, training.beam,
            weighted=self.weighted, n_regressed=training.n_regressed, prior=True,
            n_pursued=max(0, training.n_regressed - N_NEIGHBOURS),
            n_excluded=0 if self.excluded is None else len(self.excluded.features),
            n_directions=self.projected.shape[1] if self._regresses_all() else 0, weight_variances=True,
            n_best=training.n_best, marked=True,
        )  # fmt: skip
        with torch.device("meta"):
            model = settings.build()
        # Not counting the rows held out: their own labels would give themselves away.
        counts = np.bincount(self.seen_y.indices, weights=self.seen_y.data, minlength=y.shape[1])
        arrays: dict[str, NDArray[Any]] = {
            "rows.indptr": x.indptr.astype(np.int64),
            # Copies: the caller may change theirs.
            "rows.indices": x.indices.astype(np.int32),
            "rows.values": x.data.copy(),
            "rows.label_indptr": y.indptr.astype(np.int64),
            "rows.labels": y.indices.astype(np.int32),
            "rows.seen": self.seen.astype(np.uint8),
            "log_counts": np.log1p(counts).astype(np.float32),
        }
        if self.weighted:
            arrays["rows.weights"] = self.weights
        if settings.n_excluded and self.excluded is not None:
            arrays |= {f"exclusions.{name}": array for name, array in self.excluded._asdict().items()}
        for tree, (shape, levels) in enumerate(zip(self.shapes, self.nodes, strict=False)):
            arrays[f"trees.{tree}.order"] = shape.order
            arrays[f"trees.{tree}.prior_variance"] = np.array(training.prior_variance, np.float32)
            for depth, (parents, batches) in enumerate(zip(shape.parents(), levels, strict=True)):
                joined = _joined(batches, parents)
                arrays |= {f"trees.{tree}.levels.{depth}.{name}": array for name, array in joined.items()}
            levels.clear()
        state = {name: torch.as_tensor(array) for name, array in arrays.items()}
        state |= untrained(settings)
        if settings.n_directions:
            state |= {f"all_rows.{name}": tensor for name, tensor in directions_of_rows(self.projected).items()}
        copy_state(model, state, source=self.progress.path or "trees")
        if self.progress.resumed and not model.is_sound():
            raise ModelFormatError(f"{self.progress.path}: the finished nodes contradict themselves")
        return model

    def _regresses_all(self) -> bool:
        if self.training.all_rows is not None:
            return self.training.all_rows
        (n, d), entries = self.x.shape, self.x.nnz
        return bool(n <= MOST_ROWS and d <= MOST_FEATURES and entries <= MOST_ENTRIES)


def _sizes(batches: list[Nodes]) -> LevelSizes:
    above, nodes, features, weights = (
        sum(len(batch[name]) for batch in batches) for name in ("blocks", "biases", "features", "weights")
    )
    return LevelSizes(above, nodes, features, weights)


def _joined(batches: list[Nodes], parents: NDArray[np.int32]) -> Nodes:
    """The nodes of a level as one, and where the children of every parent begin."""
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in NODE_ARRAYS}
    for name, what in (("blocks", "features"), ("entries", "weights")):
        ends = np.cumsum([len(batch[what]) for batch in batches])
        offsets = np.repeat([0, *ends[:-1]], [len(batch[name]) for batch in batches])
        joined[name] = np.append(joined[name] + offsets, ends[-1])
    joined["first_children"] = np.searchsorted(parents, np.arange(len(joined["blocks"]))).astype(np.int64)
    return joined
