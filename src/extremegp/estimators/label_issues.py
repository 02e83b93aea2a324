"""Which labels of rows are probably wrong or forgotten, and which rows are alike but have other labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import normalize

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.left_out import LeavesRowsOut, LeftOutBlock
from extremegp.metrics import TopK
from extremegp.prediction.label_issues import LabelPairs, NoiseRates, contradicted
from extremegp.settings.domains import number

IssueKind = Literal["missing", "wrong", "duplicate"]
KINDS: tuple[IssueKind, ...] = ("missing", "wrong", "duplicate")
_BLOCK, _NEAR, _LOOKED_AT, _ALIKE = 512, 3, 50, 0.99
_LEAST_P = 1e-3


class LabelIssue(NamedTuple):
    """A label of a row that is probably not as it should be.

    Attributes:
        row: number of the row, from 0.
        id: what the row is called, of rows that the model keeps; None of others.
        label: its name, or number where labels have no names.
        kind: "missing", not recorded though it probably applies; "wrong", recorded though it probably does not;
            "duplicate", recorded of one of two rows that are alike and not of the other.
        probability: that this is an error.
        recorded: whether the row has the label.
        p: how probable the model has it that the row is recorded with the label: of a row that it was trained on,
            without that row.
        suggested: of one class per row the most probable other class; None of many labels.
        near: ids of the nearest training rows that have the label; of a duplicate that of the row it is like.
    """

    row: int
    id: str | None
    label: Any
    kind: IssueKind
    probability: float
    recorded: bool
    p: float
    suggested: Any
    near: list[str]


class _Suspects(NamedTuple):
    """Pairs of one kind, how probable it is that they are errors, the row that each row is like, or -1, and records."""

    kind: IssueKind
    pairs: LabelPairs
    probability: NDArray[np.float64]
    like: NDArray[np.int64]
    recorded: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        kind: IssueKind,
        pairs: LabelPairs,
        probability: NDArray[np.float64],
        *,
        recorded: bool,
        like: NDArray[np.int64] | None = None,
    ) -> _Suspects:
        like = np.full(len(pairs.p), -1) if like is None else like
        return cls(kind, pairs, probability, like, np.full(len(pairs.p), recorded))


class _Found(NamedTuple):
    """What a model says of rows: pairs that are recorded, the likeliest that are not, and the best other labels."""

    recorded: LabelPairs
    absent: LabelPairs
    others: NDArray[np.int64]


class FindsLabelIssues(LeavesRowsOut):
    """An estimator that says which labels of rows are probably errors."""

    classes_: NDArray[Any]
    n_rows_: int

    def find_label_issues(
        self,
        X: Any = None,
        Y: Any = None,
        *,
        kinds: Sequence[IssueKind] = KINDS,
        n: int = 1000,
        least: float = 0.0,
        k: int = 20,
    ) -> list[LabelIssue]:
        """Labels of rows that are probably missing or wrong, the most probable errors first.

        Rows that the model was trained on, with the same features and labels, are judged as if it had not been
        (`predict_left_out`), other rows by what it predicts. How often labels are forgotten or wrong is counted where
        the model is confident; see `extremegp.prediction.label_issues`.

        Args:
            X: inputs, as in `fit`; None for the training rows that the model keeps.
            Y: their labels or classes, as in `fit`.
            kinds: what to look for; of one class per row "missing" is not asked for.
            n: how many issues, at most.
            least: the least probability of an issue.
            k: how many of the labels that a row lacks are looked at, the most probable.

        Returns:
            At most n issues, by descending probability.

        Raises:
            DataError: X or Y cannot be used, or their lengths differ.
            SettingsError: an argument is outside its domain; there is no X, and the model keeps no rows.
        """
        n, k = (number(name, value, low=1, integer=True) for name, value in (("n", n), ("k", k)))
        least = number("least", least, low=0, high=1)
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)  # type: ignore[assignment]
        if not kinds or (odd := [kind for kind in kinds if kind not in KINDS]):
            raise SettingsError(f"kinds must be some of {', '.join(KINDS)}; they are {odd if kinds else kinds}")
        if (X is None) != (Y is None):
            raise DataError("give both X and Y, or neither for the training rows that the model keeps")
        if X is None:
            self._check_learns()
            x, y, places = self._inputs(), self._recorded(), np.arange(len(self.ids_))
        else:
            x, y = self._rows_of(X, Y)
            check_lengths(x, y)
            places = self._recognised(x, y)
        found = self._said(x, y, places, k)
        rates = NoiseRates.counted(found.recorded, found.absent, y.shape[0], y.shape[1])
        issues: list[_Suspects] = []
        if "wrong" in kinds:
            issues.append(_Suspects.of("wrong", found.recorded, rates.of_recorded(found.recorded), recorded=True))
        if "missing" in kinds and not self._one_class:
            issues.append(_Suspects.of("missing", found.absent, rates.of_absent(found.absent), recorded=False))
        if "duplicate" in kinds and self.can_learn() is None:
            issues += self._duplicates(x, y, places, found, rates)
        return self._told_of(issues, x, places, found.others, n, least)

    def _said(self, x: FloatMatrix, y: FloatCSR, places: NDArray[np.int64], k: int) -> _Found:
        """What the model says of all rows, those that it was trained on left out."""
        recorded: list[LabelPairs] = []
        absent: list[LabelPairs] = []
        others = np.full(y.shape[0], -1)
        # Of every row as many as it has, and k more.
        most = k + int(np.diff(y.indptr).max(initial=0))
        for known in (True, False):
            rows = np.flatnonzero((places >= 0) == known)
            if not len(rows):
                continue
            blocks = self._judged_blocks(places[rows], most) if known else self._plain_blocks(x[rows], y[rows], most)
            for block in blocks:
                of_block, best = rows[block.rows], block.best
                own = block.recorded
                numbers = np.repeat(np.arange(own.shape[0]), np.diff(own.indptr))
                recorded.append(LabelPairs(of_block[numbers], own.indices.astype(np.int64), block.probabilities))
                at, ranks = np.nonzero((best.labels >= 0) & (best.scores > 0))
                labels = best.labels[at, ranks]
                lacks = np.asarray(own[at, labels]).ravel() == 0
                at, ranks, labels = at[lacks], ranks[lacks], labels[lacks]
                firsts = np.unique(at, return_index=True)
                others[of_block[firsts[0]]] = labels[firsts[1]]
                order = np.arange(len(at)) - np.searchsorted(at, at)
                kept = (order < k) & (best.scores[at, ranks] >= _LEAST_P)
                absent.append(LabelPairs(of_block[at[kept]], labels[kept], best.scores[at, ranks][kept]))
        return _Found(_joined(recorded), _joined(absent), others)

    def _duplicates(
        self, x: FloatMatrix, y: FloatCSR, places: NDArray[np.int64], found: _Found, rates: NoiseRates
    ) -> list[_Suspects]:
        """Labels that differ between rows and the training rows that are nearly the same."""
        known, pieces = self._recorded(), []
        for start in range(0, x.shape[0], _BLOCK):
            rows = slice(start, min(start + _BLOCK, x.shape[0]))
            near, similarities = self._nearest(x[rows], places[rows], 1)
            alike = np.flatnonzero((near[:, 0] >= 0) & (similarities[:, 0] >= _ALIKE))
            if not len(alike):
                continue
            mine, theirs = y[rows][alike], known[near[alike, 0]]
            for sign, (more, fewer) in ((True, (mine, theirs)), (False, (theirs, mine))):
                lacking = scipy.sparse.csr_matrix(more - more.multiply(fewer)).tocoo()
                pieces.append((rows.start + alike[lacking.row], lacking.col, near[alike[lacking.row], 0], sign))
        every = _joined([found.recorded, found.absent])
        said: FloatCSR = scipy.sparse.csr_matrix((every.p, (every.rows, every.labels)), shape=y.shape)
        issues = []
        for rows_of, labels, like, sign in pieces:
            if len(rows_of):
                p = np.asarray(said[rows_of, labels]).ravel().astype(np.float32)
                pairs = LabelPairs(rows_of.astype(np.int64), labels.astype(np.int64), p)
                probability = contradicted(pairs, rates, recorded=sign)
                like = like.astype(np.int64)
                issues.append(_Suspects.of("duplicate", pairs, probability, recorded=sign, like=like))
        return issues

    def _told_of(
        self,
        issues: list[_Suspects],
        x: FloatMatrix,
        places: NDArray[np.int64],
        others: NDArray[np.int64],
        n: int,
        least: float,
    ) -> list[LabelIssue]:
        """The most probable issues, with the rows that speak for them."""
        kinds = np.repeat([each.kind for each in issues], [len(each.like) for each in issues])
        if not len(kinds):
            return []
        recorded = np.concatenate([each.recorded for each in issues])
        pairs, like = _joined([each.pairs for each in issues]), np.concatenate([each.like for each in issues])
        probability = np.concatenate([each.probability for each in issues])
        order = np.lexsort((pairs.labels, pairs.rows, -probability))[:n]
        order = order[probability[order] >= least]
        near = self._near(x, places, pairs.some(order))
        names, ids, told = self.classes_.tolist(), self.ids_.names, []
        for number_of, place in enumerate(order.tolist()):
            row, label, kind = int(pairs.rows[place]), int(pairs.labels[place]), str(kinds[place])
            other, suggested = int(like[place]), int(others[row])
            told.append(
                LabelIssue(
                    row,
                    ids[places[row]] if places[row] >= 0 else None,
                    names[label],
                    kind,  # type: ignore[arg-type]
                    float(probability[place]),
                    bool(recorded[place]),
                    float(pairs.p[place]),
                    names[suggested] if self._one_class and suggested >= 0 else None,
                    [ids[other]] if other >= 0 else near[number_of],
                )
            )
        return told

    def _near(self, x: FloatMatrix, places: NDArray[np.int64], pairs: LabelPairs) -> list[list[str]]:
        """Of every pair the nearest training rows that have the label."""
        told: list[list[str]] = [[] for _ in pairs.p]
        if self.can_learn() is not None:
            return told
        known, names = self._recorded(), self.ids_.names
        rows, number_of = np.unique(pairs.rows, return_inverse=True)
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            near, _ = self._nearest(x[some], places[some], _LOOKED_AT)
            of_some = np.flatnonzero((number_of >= start) & (number_of < start + len(some)))
            found = near[number_of[of_some] - start]
            labels = np.repeat(pairs.labels[of_some], found.shape[1])
            having = np.asarray(known[found.ravel(), labels]).reshape(found.shape) > 0
            having &= found >= 0
            at, ranks = np.nonzero(having & (having.cumsum(1) <= _NEAR))
            for pair, place in zip(of_some[at].tolist(), found[at, ranks].tolist(), strict=True):
                told[pair].append(names[place])
        return told

    def _recognised(self, x: FloatMatrix, y: FloatCSR) -> NDArray[np.int64]:
        """Which of the training rows that the model keeps these are, each once; -1 of others."""
        places = np.full(x.shape[0], -1)
        if self.can_learn() is None:
            kept: dict[tuple[bytes, bytes], list[int]] = {}
            for place, key in reversed([*enumerate(_keys(self._inputs(), self._recorded()))]):
                kept.setdefault(key, []).append(place)
            for row, key in enumerate(_keys(x, y)):
                if kept.get(key):
                    places[row] = kept[key].pop()
        return places

    @property
    @abstractmethod
    def _one_class(self) -> bool:
        """Whether every row has one class."""

    @abstractmethod
    def can_learn(self) -> str | None:
        """Why the model keeps no rows; None where it does."""

    @abstractmethod
    def _inputs(self) -> FloatMatrix:
        """The features of the rows that it keeps."""

    @abstractmethod
    def _recorded(self) -> FloatCSR:
        """Their labels, N x K."""

    @abstractmethod
    def _rows_of(self, X: Any, Y: Any) -> tuple[FloatMatrix, FloatCSR]:
        """Features and labels of rows, in the form of those that it keeps."""

    @abstractmethod
    def _nearest(self, x: FloatMatrix, own: NDArray[np.int64], m: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The m nearest rows that it keeps, B x m, the nearest first and -1 where there are fewer, and their cosines.

        Args:
            x: features.
            own: which of those rows they are, none of which is its own neighbour; -1 of others.
            m: how many.
        """

    def _judged_blocks(self, places: NDArray[np.int64], k: int) -> Iterator[LeftOutBlock]:
        """Some training rows, a block at a time, each left out, by what judges their labels best."""
        return self._left_out_blocks(places, k)

    @abstractmethod
    def _plain_blocks(self, x: FloatMatrix, y: FloatCSR, k: int) -> Iterator[LeftOutBlock]:
        """What the model predicts of other rows, a block at a time."""


def block_of(rows: slice, p: NDArray[np.float32], recorded: FloatCSR, k: int) -> LeftOutBlock:
    """A block of rows of all of whose labels the probabilities are known, B x K."""
    own = scipy.sparse.csr_matrix(recorded)
    of_own = p[np.repeat(np.arange(len(p)), np.diff(own.indptr)), own.indices]
    return LeftOutBlock(rows, TopK.from_scores(p, min(k, p.shape[1])), own, of_own)


def nearest_by_cosine(
    x: FloatMatrix, rows: FloatMatrix, own: NDArray[np.int64], m: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The m of some rows, which have unit norm, with the largest cosines, see `FindsLabelIssues`."""
    products: Any = normalize(x) @ rows.T
    found: Any = products if isinstance(products, np.ndarray) else products.toarray()
    cosines = torch.from_numpy(found)
    known = np.flatnonzero(own >= 0)
    cosines[torch.from_numpy(known), torch.from_numpy(own[known])] = -2.0
    best = cosines.topk(min(m, cosines.shape[1]), dim=1)
    return np.where(best.values.numpy() < -1.5, -1, best.indices.numpy()), best.values.float().numpy()


def _joined(parts: list[LabelPairs]) -> LabelPairs:
    if not parts:
        nothing = np.zeros(0, np.int64)
        return LabelPairs(nothing, nothing, np.zeros(0, np.float32))
    return LabelPairs(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _keys(x: FloatMatrix, y: FloatCSR) -> Iterator[tuple[bytes, bytes]]:
    """What tells rows with their labels from others."""
    for row in range(x.shape[0]):
        labels = y.indices[y.indptr[row] : y.indptr[row + 1]].astype(np.int64).tobytes()
        if isinstance(x, np.ndarray):
            yield x[row].astype(np.float32).tobytes(), labels
        else:
            some = slice(x.indptr[row], x.indptr[row + 1])
            yield x.indices[some].astype(np.int64).tobytes() + x.data[some].astype(np.float32).tobytes(), labels
