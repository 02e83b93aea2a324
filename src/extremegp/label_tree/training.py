"""Growing the trees, and learning what their evidence and that of the neighbours is worth."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.errors import ModelFormatError
from extremegp.label_tree._compiled import n_lanes
from extremegp.label_tree.clustering import balanced_leaves, embed_labels
from extremegp.label_tree.model import LabelTreeModel, LabelTreeSettings, LevelSizes, combiner_settings, row_blocks
from extremegp.label_tree.nodes import fit_nodes
from extremegp.settings.training import TrainingSettings
from extremegp.storage.tensors import copy_state, read_tensors, write_tensors
from extremegp.training.distributed import World
from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted
from extremegp.training.loop import train
from extremegp.training.progress import NoReporter, Reporter
from extremegp.training.start import initialise

_FORMAT = "extremegp label tree checkpoint 1"
# Rows that all nodes of a block read: what a person waits for at most after Ctrl-C, some seconds.
_BLOCK_WORK, _BLOCK_NODES = 2_000_000, 4096
_PASSES, _TOLERANCE = 15, 0.01
_LEVEL_BITS = 4
_MOST_PAIRS = 400_000
_COMBINER_BATCH, _COMBINER_STEPS = 4000, 300
_ARRAYS = ("blocks", "features", "entries", "targets", "weights", "biases")


@dataclass(frozen=True)
class TreeTraining:
    """How to grow the trees.

    Attributes:
        n_trees: T.
        leaf_size: labels of a leaf, at most.
        prior_variance: tau^2 of the nodes' weights.
        n_weights: weights that a node keeps, the largest, at most.
        threshold: smaller weights are left out.
        n_held_out: training rows whose labels the trees do not see: what the evidence is worth is learnt from them.
        n_inducing: inducing inputs of the Gaussian process of the evidence.
        beam: nodes of a level that a search goes on from.
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
    beam: int
    seed: int
    checkpoint_seconds: float = 20.0
    time_budget: float | None = None


class _Level(NamedTuple):
    """A level to be fitted: `parents` of its nodes, the rows below each parent and each node, by columns."""

    parents: NDArray[np.int32]
    above: scipy.sparse.csc_matrix
    below: scipy.sparse.csc_matrix


@dataclass
class _Shape:
    """Where the labels stand in a tree, and the depths of its levels above the labels."""

    order: NDArray[np.int32]
    leaf_of: NDArray[np.int64]
    depths: list[int]
    parts: list[list[dict[str, NDArray[Any]]]] = field(default_factory=list)


def parts_folder(checkpoint: str | Path) -> Path:
    """Where a checkpoint's finished nodes are kept."""
    return Path(f"{checkpoint}.parts")


def grow(
    x: scipy.sparse.csr_matrix,
    y: scipy.sparse.csr_matrix,
    training: TreeTraining,
    *,
    reporter: Reporter,
    world: World,
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
) -> tuple[LabelTreeModel, LabelTreeSettings, list[dict[str, float]]]:
    """Train the model.

    With a `checkpoint` a run that was interrupted goes on where it was, and ends at the same model. Several processes
    share out the nodes.

    Args:
        x: inputs, N x D, float32 with ascending columns.
        y: labels that are 1, N x K.
        training: how.
        reporter: told how it goes on.
        world: the processes that train together.
        checkpoint: file to save progress to, beside the folder `parts_folder`.
        fingerprint: identifies data and settings.

    Returns:
        The model, its shapes, and a record per epoch of the Gaussian process of the evidence.

    Raises:
        TrainingInterrupted: on Ctrl-C, after the checkpoint was saved.
        ModelFormatError: the checkpoint is damaged or of another run.
        ProcessLostError: another process ended.
    """
    started = time.monotonic()
    run = _Growth(x, y, training, reporter, world, checkpoint, fingerprint)
    with GracefulInterrupt(among_others=world.size > 1) as interrupt:
        run.grow(interrupt)
    try:
        model, settings = run.model()
        history = run.combine(model)
    except TrainingInterrupted as interrupt:
        # The trees are saved, even if what is learnt from them is not.
        raise TrainingInterrupted(None if checkpoint is None else str(checkpoint)) from interrupt
    finally:
        reporter.close()
    for record in history:
        record["seconds"] = time.monotonic() - started + run.seconds_before
    return model, settings, history


class _Growth:
    def __init__(
        self,
        x: scipy.sparse.csr_matrix,
        y: scipy.sparse.csr_matrix,
        training: TreeTraining,
        reporter: Reporter,
        world: World,
        checkpoint: str | Path | None,
        fingerprint: str,
    ) -> None:
        self.x, self.y, self.training, self.reporter, self.world = x, y, training, reporter, world
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.fingerprint = fingerprint
        self.held_out = np.sort(
            np.random.default_rng([training.seed, 1]).choice(x.shape[0], training.n_held_out, replace=False)
        )
        seen = np.ones(x.shape[0], dtype=bool)
        seen[self.held_out] = False
        self.seen_y = scipy.sparse.csr_matrix(y.multiply(seen[:, None]), dtype=np.float32)
        self.seen_y.eliminate_zeros()
        self.squares = np.asarray(x.multiply(x).sum(axis=1), dtype=np.float32).ravel()
        self.n_saved, self.seconds_before = 0, 0.0
        self.started = self.saved_at = time.monotonic()
        self.unsaved: dict[str, NDArray[Any]] = {}
        self.shapes = [self._shape(vectors, tree) for vectors in [self._vectors()] for tree in range(training.n_trees)]
        self.saved = self._resume()

    def _vectors(self) -> NDArray[np.float32]:
        columns = scipy.sparse.csr_matrix(self.x.T)
        return embed_labels(self.x, columns, self.seen_y, rng=np.random.default_rng([self.training.seed, 2]))

    def _shape(self, vectors: NDArray[np.float32], tree: int) -> _Shape:
        n_labels = len(vectors)
        depth = max(0, math.ceil(math.log2(n_labels / self.training.leaf_size)))
        rng = np.random.default_rng([self.training.seed, 3, tree])
        order, bounds = balanced_leaves(vectors, depth, rng=rng)
        leaf_of = np.empty(n_labels, dtype=np.int64)
        leaf_of[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return _Shape(order, leaf_of, list(range(depth, 0, -_LEVEL_BITS))[::-1])

    def _levels(self, shape: _Shape) -> Iterator[_Level]:
        """From the root down. A row is below a node where it has a label there; all rows are below the root."""
        n_rows, n_labels = self.y.shape
        above, above_depth = scipy.sparse.csc_matrix(np.ones((n_rows, 1), dtype=np.float32)), 0
        if len(self.held_out):
            kept = np.setdiff1d(np.arange(n_rows), self.held_out)
            above = scipy.sparse.csc_matrix(
                (np.ones(len(kept), np.float32), kept, np.array([0, len(kept)])), shape=(n_rows, 1)
            )
        deepest = shape.depths[-1] if shape.depths else 0
        for depth in shape.depths:
            of_label = shape.leaf_of >> (deepest - depth)
            groups = scipy.sparse.csr_matrix(
                (np.ones(n_labels, np.float32), (np.arange(n_labels), of_label)), shape=(n_labels, 1 << depth)
            )
            below = scipy.sparse.csc_matrix(self.seen_y @ groups)
            parents = (np.arange(1 << depth) >> (depth - above_depth)).astype(np.int32)
            yield _Level(parents, above, below)
            above, above_depth = below, depth
        below = self.seen_y.tocsc()[:, shape.order]
        yield _Level(shape.leaf_of[shape.order].astype(np.int32), above, below)

    def grow(self, interrupt: GracefulInterrupt) -> None:
        for tree in range(self.training.n_trees):
            if tree and self._out_of_time(tree):
                del self.shapes[tree:]
                break
            shape = self.shapes[tree]
            for number, level in enumerate(self._levels(shape)):
                shape.parts.append([])
                blocks = list(_blocks(level))
                work = np.cumsum([cost for *_, cost in blocks])
                # Every process fits one block of a round.
                for start in range(0, len(blocks), self.world.size):
                    round_of = blocks[start : start + self.world.size]
                    part = None
                    if self.world.rank < len(round_of):
                        first, last, _ = round_of[self.world.rank]
                        part = self._part(f"{tree}.{number}.{first}", level, first, last)
                    for (first, *_), found in zip(round_of, self.world.said_by_each(part), strict=False):
                        assert found is not None
                        self._keep(f"{tree}.{number}.{first}", found)
                        shape.parts[-1].append(found)
                    done = (number + work[min(start + self.world.size, len(blocks)) - 1] / work[-1]) / (
                        len(shape.depths) + 1
                    )
                    self.reporter.work("label trees", (tree + done) / self.training.n_trees)
                    stop, late = self.world.any(
                        interrupt.requested, time.monotonic() - self.saved_at > self.training.checkpoint_seconds
                    )
                    if stop or late:
                        self._save()
                    if stop:
                        raise TrainingInterrupted(None if self.checkpoint is None else str(self.checkpoint))
        self._save()

    def _out_of_time(self, n_grown: int) -> bool:
        """Whether one more tree would take longer than there is, in the slowest process."""
        if self.training.time_budget is None:
            return False
        seconds = self.seconds_before + time.monotonic() - self.started
        (slowest,) = self.world.most(seconds)
        return slowest * (n_grown + 1) / n_grown > 0.85 * self.training.time_budget

    def _part(self, key: str, level: _Level, first: int, last: int) -> dict[str, NDArray[Any]]:
        names = [f"{key}.{name}" for name in _ARRAYS]
        if names[0] not in self.saved:
            return self._fit(level, first, last)
        part = {name: self.saved.get(full) for name, full in zip(_ARRAYS, names, strict=True)}
        n_parents = int(level.parents[last - 1] - level.parents[first]) + 1
        lengths = {"blocks": n_parents, "biases": last - first}
        found: dict[str, NDArray[Any]] = {}
        for name, tensor in part.items():
            if tensor is None or tensor.ndim != 1 or len(tensor) != lengths.get(name, len(tensor)):
                raise ModelFormatError(f"{self.checkpoint}: the finished nodes are not those of such a tree")
            found[name] = tensor.numpy()
        return found

    def _keep(self, key: str, part: dict[str, NDArray[Any]]) -> None:
        """Remember to save what was not read from the checkpoint."""
        if f"{key}.{_ARRAYS[0]}" not in self.saved:
            self.unsaved |= {f"{key}.{name}": array for name, array in part.items()}

    def _fit(self, level: _Level, first: int, last: int) -> dict[str, NDArray[Any]]:
        """The nodes from `first` to before `last`, which have all children of some parents, as `search_level` reads."""
        training, lanes = self.training, n_lanes()
        n, width = last - first, min(training.n_weights, self.x.shape[1])
        kept, biases = np.zeros(n, np.int64), np.zeros(n, np.float32)
        features, weights = np.zeros((n, width), np.int32), np.zeros((n, width), np.float32)
        fit_nodes(
            self.x.indptr, self.x.indices, self.x.data, self.squares, level.above.indptr, level.above.indices,
            level.below.indptr, level.below.indices, level.parents, first, last, training.prior_variance, _PASSES,
            _TOLERANCE, training.threshold, training.seed, self.x.shape[1], lanes, kept, features, weights, biases,
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
            biases,
        )
        return dict(zip(_ARRAYS, arrays, strict=True))

    def model(self) -> tuple[LabelTreeModel, LabelTreeSettings]:
        """The model, its trees and rows in place."""
        training = self.training
        sizes = tuple(
            tuple(
                LevelSizes(
                    sum(len(part["blocks"]) for part in parts),
                    sum(len(part["biases"]) for part in parts),
                    sum(len(part["features"]) for part in parts),
                    sum(len(part["weights"]) for part in parts),
                )
                for parts in shape.parts
            )
            for shape in self.shapes
        )
        settings = LabelTreeSettings(
            self.x.shape[1], self.y.shape[1], self.x.shape[0], self.x.nnz, self.y.nnz, sizes, training.n_inducing,
            training.beam,
        )  # fmt: skip
        with torch.device("meta"):
            model = settings.build()
        state: dict[str, Any] = {}
        for number, shape in enumerate(self.shapes):
            state[f"trees.{number}.order"] = shape.order
            for depth, level in enumerate(self._joined(shape)):
                state |= {f"trees.{number}.levels.{depth}.{name}": array for name, array in level.items()}
            shape.parts.clear()
        # Not counting the rows held out: their own labels would give themselves away.
        counts = np.bincount(self.seen_y.indices, minlength=self.y.shape[1])
        state |= {
            "rows.indptr": self.x.indptr.astype(np.int64),
            # Copies: the caller may change theirs.
            "rows.indices": self.x.indices.astype(np.int32),
            "rows.values": self.x.data.copy(),
            "rows.label_indptr": self.y.indptr.astype(np.int64),
            "rows.labels": self.y.indices.astype(np.int32),
            "log_counts": np.log1p(counts).astype(np.float32),
            "centre": model.centre, "scale": model.scale, "background": model.background,
        }  # fmt: skip
        tensors = {name: torch.as_tensor(value) for name, value in state.items() if isinstance(value, np.ndarray)}
        fresh = combiner_settings(training.n_inducing).build().state_dict()
        tensors |= {f"combiner.{name}": tensor for name, tensor in fresh.items()}
        ones = {"centre": torch.zeros(model.centre.shape), "scale": torch.ones(model.scale.shape)}
        tensors |= {**ones, "background": torch.tensor(0.5)}
        copy_state(model, tensors, source="trees" if self.checkpoint is None else self.checkpoint)
        if self.saved and not model.is_sound():
            raise ModelFormatError(f"{self.checkpoint}: the finished nodes contradict themselves")
        return model, settings

    def _joined(self, shape: _Shape) -> Iterator[dict[str, NDArray[Any]]]:
        """The parts of every level as one."""
        above = 1
        for parts, level_parents in zip(shape.parts, self._parents(shape), strict=True):
            n_features = np.cumsum([0, *(len(part["features"]) for part in parts)])
            n_weights = np.cumsum([0, *(len(part["weights"]) for part in parts)])
            joined = {name: np.concatenate([part[name] for part in parts]) for name in ("features", "targets")}
            joined |= {name: np.concatenate([part[name] for part in parts]) for name in ("weights", "biases")}
            for name, offsets in (("blocks", n_features), ("entries", n_weights)):
                shifted = [part[name] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
                joined[name] = np.append(np.concatenate(shifted), offsets[-1])
            joined["first_children"] = np.searchsorted(level_parents, np.arange(above + 1)).astype(np.int64)
            above = len(joined["biases"])
            yield joined

    def _parents(self, shape: _Shape) -> Iterator[NDArray[np.int32]]:
        above_depth = 0
        for depth in shape.depths:
            yield (np.arange(1 << depth) >> (depth - above_depth)).astype(np.int32)
            above_depth = depth
        yield shape.leaf_of[shape.order].astype(np.int32)

    def combine(self, model: LabelTreeModel) -> list[dict[str, float]]:
        """Learn the Gaussian process of the evidence on the rows held out."""
        values, targets, n_missed, n_others = [], [], 0, 0
        for block in row_blocks(len(self.held_out)):
            rows = self.held_out[block]
            evidence, truth = model.evidence(self.x[rows], own=rows), self.y[rows]
            present = np.asarray(truth[evidence.rows, evidence.labels]).ravel() > 0
            values.append(evidence.values)
            targets.append(present)
            n_missed += truth.nnz - int(present.sum())
            n_others += truth.shape[0] * truth.shape[1] - len(present)
        e, present = np.concatenate(values), np.concatenate(targets)
        # And half a miss among as many labels as have half a label on average, so that none is impossible.
        entries = self.y.shape[0] * self.y.shape[1] / self.y.nnz
        model.background.fill_((n_missed + 0.5) / (n_others + max(1.0, 0.5 * entries)))
        rng = np.random.default_rng([self.training.seed, 4])
        n_pairs = len(e)
        if n_pairs > _MOST_PAIRS:
            chosen = np.sort(rng.choice(len(e), _MOST_PAIRS, replace=False))
            e, present = e[chosen], present[chosen]
        spread = e.std(axis=0)
        model.centre.copy_(torch.from_numpy(e.mean(axis=0)))
        model.scale.copy_(torch.from_numpy(np.where(spread > 1e-6, spread, 1).astype(np.float32)))
        inputs = ((e - model.centre.numpy()) / model.scale.numpy()).astype(np.float32)
        labels = scipy.sparse.csr_matrix(present[:, None], dtype=np.float32)
        batch = min(_COMBINER_BATCH, len(e))
        settings = TrainingSettings(
            epochs=max(2, math.ceil(_COMBINER_STEPS * batch / len(e))),
            batch_size=batch,
            learning_rate=0.02,
            seed=self.training.seed,
        )
        initialise(model.combiner, inputs, labels, rng=rng)
        model.combiner.requires_grad_(True)
        history = train(model.combiner, inputs, labels, settings, reporter=NoReporter(), world=World())
        model.requires_grad_(False)
        return [record | {"elbo": record["elbo"] * n_pairs / len(e)} for record in history]

    def _resume(self) -> dict[str, torch.Tensor]:
        """What an interrupted run has finished."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return {}
        _, header = read_tensors(self.checkpoint)
        if header.get("format") != _FORMAT or header.get("fingerprint") != self.fingerprint:
            raise ModelFormatError(
                f"{self.checkpoint}: this checkpoint was written with other data or settings; "
                "repeat the original command, or start anew without resuming"
            )
        n_saved, seconds = header.get("n_parts"), header.get("seconds")
        if not isinstance(n_saved, int) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
            raise ModelFormatError(f"{self.checkpoint}: its header does not say what is saved")
        self.n_saved, self.seconds_before = n_saved, seconds
        saved: dict[str, torch.Tensor] = {}
        for number in range(self.n_saved):
            saved |= read_tensors(parts_folder(self.checkpoint) / f"{number}.safetensors")[0]
        return saved

    def _save(self) -> None:
        self.saved_at = time.monotonic()
        if self.checkpoint is None or not self.world.leads:
            self.unsaved = {}
            return
        if self.unsaved:
            folder = parts_folder(self.checkpoint)
            if not self.n_saved:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {name: torch.from_numpy(array) for name, array in self.unsaved.items()}
            write_tensors(folder / f"{self.n_saved}.safetensors", tensors, {})
            self.n_saved += 1
            self.unsaved = {}
        seconds = self.seconds_before + time.monotonic() - self.started
        header = {"format": _FORMAT, "fingerprint": self.fingerprint, "n_parts": self.n_saved, "seconds": seconds}
        write_tensors(self.checkpoint, {"n_parts": torch.tensor(self.n_saved)}, header)


def _blocks(level: _Level) -> Iterator[tuple[int, int, int]]:
    """Blocks of nodes with all children of some parents, first and last, and the rows that they read."""
    below_parent = np.diff(level.above.indptr)
    ends = np.searchsorted(level.parents, np.arange(len(below_parent)), side="right")
    first, work = 0, 0
    for parent, end in enumerate(ends):
        start = ends[parent - 1] if parent else 0
        work += int(below_parent[parent] * (end - start))
        if end == len(level.parents) or work > _BLOCK_WORK or end - first > _BLOCK_NODES:
            yield int(first), int(end), work + 1
            first, work = end, 0
