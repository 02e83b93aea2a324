"""Labels of sequences, measured for a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.estimators import SequenceGPClassifier
from extremegp.estimators.decoding import LabelledBlock, labelled_blocks
from extremegp.metrics import SequenceMetrics
from extremegp.metrics.classification import SMALLEST
from extremegp.metrics.spans import SpanCounts
from extremegp.report.findings import BandBins, Chosen, Findings
from extremegp.report.intervals import RowSums
from extremegp.report.issues import Surprises

_NO_SEQEVAL = "F1 of spans is left out: it needs seqeval, pip install 'extremegp[sequences]'."


def find(model: SequenceGPClassifier, X: Any, y: Sequence[Any], *, decoding: str | None, seed: int) -> Findings:
    """Measure a model of sequences, in one pass over its predictions.

    Args:
        model: fitted.
        X: as in its `fit`.
        y: likewise; a label that training never saw counts as wrong.
        decoding: how sequences are labelled; None for what the model was trained with.
        seed: decides which sequences are shown.

    Raises:
        DataError: X or y cannot be used, or they do not fit each other.
    """
    notes, names = [], model.classes_.tolist()
    try:
        quality = SequenceMetrics(names)
    except ImportError:
        quality = SequenceMetrics(names, spans=False)
        notes.append(_NO_SEQEVAL)
    found = labelled_blocks(model, X, y, decoding)
    watcher = _Watcher(np.asarray(model.label_counts_), names)
    for block in found.blocks:
        quality.update(
            block.truth,
            block.predicted,
            block.marginals,
            lengths=block.lengths,
            sequence_log_prob=block.sequence_log_prob,
        )
        watcher.add(block)
    metrics = quality.compute()
    counts = {name: int(metrics.pop(name)) for name in ("n_sequences", "n_tokens", "n_unknown")}
    spans = quality.span_scores() if "span_f1" in metrics else {}
    if spans:
        watcher.add_spans()
    if found.never_seen:
        listed = ", ".join(map(str, found.never_seen[:5])) + (", ..." if len(found.never_seen) > 5 else "")
        notes.append(
            f"{counts['n_unknown']} tokens have a label that training never saw ({listed}); they count as wrong, and "
            "have no part in the likelihoods."
        )
    return Findings(
        metrics,
        watcher.sums,
        {"marginals of the most probable label": quality.tokens.reliability()},
        watcher.bands.diagrams(),
        {"token error": {"probability": quality.risk_coverage()}},
        quality.per_label(),
        watcher.surprises,
        watcher.chosen(seed),
        {"sequences": counts["n_sequences"], "tokens": counts["n_tokens"], "labels": len(names)},
        notes,
        quality.confusion(),
        spans,
    )


class _Watcher:
    """Keeps what reports need of every sequence."""

    def __init__(self, counts: NDArray[np.int64], names: Sequence[Any]) -> None:
        self._names = [*names, None]
        self.sums, self.bands, self.surprises = RowSums(), BandBins(counts), Surprises()
        self._spoken: list[tuple[list[Any], list[Any]]] = []
        self._wrong: list[NDArray[Any]] = []
        self._length: list[NDArray[Any]] = []
        self._least: list[NDArray[Any]] = []

    def add(self, block: LabelledBlock) -> None:
        """Add some sequences."""
        n, codes, p = len(block.lengths), block.codes, block.marginals
        tokens, known = np.arange(len(codes)), codes >= 0
        of = np.repeat(np.arange(n), block.lengths)
        wrong, best = codes != block.predicted, p.argmax(axis=1)
        own = np.where(known, p[tokens, codes], 0).astype(np.float64)
        n_wrong = np.bincount(of, wrong, n)
        self.sums.add_ratio("token_error", n_wrong, block.lengths)
        self.sums.add_mean("sequence_error", n_wrong > 0)
        self.sums.add_ratio("marginal_error", np.bincount(of, codes != best, n), block.lengths)
        log_p, n_known = np.where(known, np.log(np.maximum(own, SMALLEST)), 0), np.bincount(of, known, n)
        self.sums.add_ratio("nll_unstruct_per_token", -np.bincount(of, log_p, n), n_known)
        whole = n_known == block.lengths
        structured = np.maximum(np.where(whole, block.sequence_log_prob, 0), block.lengths * np.log(SMALLEST))
        self.sums.add_ratio("nll_struct_per_token", -structured, np.where(whole, block.lengths, 0))
        squares = np.einsum("bk,bk->b", p, p, dtype=np.float64, casting="same_kind")
        self.sums.add_ratio("brier", np.bincount(of, squares + 1 - 2 * own, n), block.lengths)
        of_best = p[tokens, best].astype(np.float64)
        self.sums.add_error("ece", n, of, of_best, codes == best)
        self.bands.add(best, of_best, codes == best)
        self._add_f1(block, of)
        others = p.astype(np.float32)
        others[tokens[known], codes[known]] = -1
        other = others.argmax(axis=1)
        instead = other[known], others[tokens, other][known]
        rows = block.tokens.start + tokens[known]
        self.surprises.add(rows, codes[known], own[known], present=True, instead=instead)
        self._wrong.append(n_wrong)
        self._length.append(block.lengths)
        self._least.append(np.minimum.reduceat(of_best, np.cumsum(block.lengths) - block.lengths))
        cuts = np.cumsum(block.lengths)[:-1]
        # Labels by name, so that spans of unknown ones are known.
        truth = np.split(block.names, cuts)
        predicted = np.split(block.predicted, cuts)
        pairs = zip(truth, predicted, strict=True)
        self._spoken += [(true.tolist(), [self._names[code] for code in found]) for true, found in pairs]

    def _add_f1(self, block: LabelledBlock, of: NDArray[np.int64]) -> None:
        shape, known = (len(block.lengths), len(self._names) - 1), block.codes >= 0
        right = block.codes == block.predicted

        def counted(some: NDArray[np.bool_], codes: NDArray[np.int64]) -> csr_matrix:
            return csr_matrix((np.ones(int(some.sum()), np.float32), (of[some], codes[some])), shape=shape)

        everything = np.ones_like(known)
        self.sums.add_macro(
            "macro_f1",
            counted(right & known, block.codes),
            counted(everything, block.predicted),
            counted(known, block.codes),
        )

    def add_spans(self) -> None:
        """Count spans of each sequence by itself."""
        counts = np.zeros((len(self._spoken), 3))
        for row, (truth, predicted) in enumerate(self._spoken):
            spans = SpanCounts(self._names[:-1])
            spans.add(truth, predicted)
            total = spans.total()
            counts[row] = total.true_positives, total.predicted, total.support
        right, found, true = counts.T
        self.sums.add_ratio("span_precision", right, found)
        self.sums.add_ratio("span_recall", right, true)
        self.sums.add_ratio("span_f1", 2 * right, found + true)

    def chosen(self, seed: int) -> list[Chosen]:
        """Sequences to show: some with wrong labels, the one with the least sure token, and some at random."""
        wrong, length, least = (np.concatenate(parts) for parts in (self._wrong, self._length, self._least))
        # Short ones are read.
        short = np.flatnonzero(length <= 40) if (length <= 40).any() else np.arange(len(length))
        found: dict[int, str] = {}
        for rows, because, n in (
            (short[wrong[short] > 0][np.argsort(-least[short[wrong[short] > 0]], kind="stable")], "sure, and wrong", 2),
            (short[np.argsort(least[short], kind="stable")], "least sure", 1),
            (np.random.default_rng(seed).permutation(short), "drawn at random", 2),
        ):
            new = [row for row in rows[: n + len(found)].tolist() if row not in found]
            found |= dict.fromkeys(new[:n], because)
        return [Chosen(row, because) for row, because in found.items()]
