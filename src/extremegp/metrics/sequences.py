"""How good predictions of a label for each token of a sequence are: errors, likelihoods, spans, selective prediction.

Blocks of whole sequences stream through `SequenceMetrics`, their tokens one after the other: S sequences, B tokens in
all, V labels. The quality of the tokens' probabilities is that of classes, `ClassMetrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from extremegp.data.schemes import looks_like_spans
from extremegp.errors import DataError, SettingsError
from extremegp.metrics.classification import SMALLEST, SUM_TOLERANCE, UNKNOWN, ClassMetrics
from extremegp.metrics.confusion import Confusion, PerClass
from extremegp.metrics.selective import RiskCoverage, risk_coverage
from extremegp.metrics.spans import SpanCounts, SpanScore


class SequenceMetrics:
    """Accumulates the metrics of sequence labelling over blocks of sequences.

    Beside the block at hand, memory is 5 bytes per token, for selective prediction, and what `ClassMetrics` needs.

    Args:
        classes: V names of the labels, in the order of their codes.
        n_bins: number of equal-width bins of the calibration error.
        spans: whether labels are the tags of spans to be found; by default if `looks_like_spans` says so.
        scheme: None to read spans as conlleval.pl does, or "IOB2", "IOE2", "IOBES" or "BILOU" to read only well-formed
            ones; see `SpanCounts`.

    Attributes:
        tokens: `ClassMetrics` of the marginals over all tokens; its predicted label is the most probable one.

    Raises:
        SettingsError: no labels or one twice, n_bins is not a positive integer, there is no such scheme, or labels are
            not its tags.
        ImportError: spans are to be found and seqeval is missing.
    """

    def __init__(
        self, classes: Sequence[Any], *, n_bins: int = 15, spans: bool | None = None, scheme: str | None = None
    ) -> None:
        self.classes: tuple[Any, ...] = tuple(np.asarray(classes).tolist())
        self._codes = {name: code for code, name in enumerate(self.classes)}
        if len(self._codes) < len(self.classes):
            raise SettingsError(f"the {len(self.classes)} labels have {len(self._codes)} names; names must be unique")
        self.tokens = ClassMetrics(len(self.classes), n_bins=n_bins, ks=())
        if scheme is not None and spans is False:
            raise SettingsError(f"scheme {scheme!r} is how spans are read; leave it out with spans=False")
        wanted = scheme is not None or looks_like_spans(self.classes) if spans is None else spans
        self._spans = SpanCounts(self.classes, scheme) if wanted else None
        self._confusion = Confusion(len(self.classes))
        self._n_tokens = 0
        self._n_sequences = 0
        self._n_wrong_sequences = 0
        self._negative_log = 0.0
        # Whether blocks come with probabilities of whole sequences.
        self._structured: bool | None = None
        self._n_structured_tokens = 0
        self._sequence_negative_log = 0.0
        self._correct: list[NDArray[np.bool_]] = []
        self._confidence: list[NDArray[np.float32]] = []

    @property
    def n_unknown(self) -> int:
        """Number of tokens so far whose label was never seen in training."""
        return self.tokens.n_unknown

    def update(
        self,
        y_true: Any,
        predicted: Any,
        marginals: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        sequence_log_prob: ArrayLike | None = None,
    ) -> None:
        """Add a block of sequences.

        Args:
            y_true: true labels, a list of S arrays, or one array of B labels with `lengths`. A label is a code, -1 if
                never seen in training, or a string, its name. A token of a label never seen is always an error; by
                its name, spans of it are known.
            predicted: labels of the tokens in either form, all of them known.
            marginals: B x V probabilities p(y_t); rows sum to 1 within 1e-3.
            lengths: S numbers of tokens, each at least 1, if the labels are not lists of sequences.
            sequence_log_prob: S, ln p(y_1, .., y_T) of the true labels, in all blocks or none. Where one of them was
                never seen, the entry may be anything.

        Raises:
            DataError: labels, lengths, marginals or probabilities do not fit together, a label is no code, or a
                probability is NaN or cannot be one. The block then leaves no trace.
        """
        truth, sizes = _flatten(y_true, lengths, "y_true")
        found, _ = _flatten(predicted, sizes, "predicted")
        codes, labels = self._encode(truth, "y_true"), self._encode(found, "predicted")
        for token in np.flatnonzero(labels == UNKNOWN)[:1]:
            raise DataError(
                f"token {token} of this block has the predicted label {found[token]}, which is none of the classes"
            )
        starts = np.cumsum(sizes) - sizes
        unknown = codes == UNKNOWN
        known_sequences = ~np.logical_or.reduceat(unknown, starts)
        log_prob = self._check_log_prob(sequence_log_prob, sizes, known_sequences)
        block = np.asarray(marginals)
        self.tokens.update(block, codes)

        wrong = codes != labels
        self._confusion.add(codes, labels)
        own = block[~unknown, codes[~unknown]].astype(np.float64)
        self._n_tokens += len(codes)
        self._n_sequences += len(sizes)
        self._n_wrong_sequences += int(np.logical_or.reduceat(wrong, starts).sum())
        self._negative_log -= float(np.log(np.maximum(own, SMALLEST)).sum())
        self._structured = log_prob is not None
        if log_prob is not None:
            self._n_structured_tokens += int(sizes[known_sequences].sum())
            self._sequence_negative_log -= float(log_prob.sum())
        self._correct.append(~wrong)
        self._confidence.append(block[np.arange(len(labels)), labels].astype(np.float32))
        if self._spans is not None:
            true_names, names = self._names(truth), self._names(found)
            for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
                self._spans.add(true_names[start:end], names[start:end])

    def _encode(self, values: NDArray[Any], name: str) -> NDArray[np.int64]:
        if values.dtype.kind == "U":
            if not isinstance(self.classes[0], str):
                raise DataError(f"{name} holds strings, but labels are such as {self.classes[0]!r}; pass their codes")
            return np.asarray([self._codes.get(value, UNKNOWN) for value in values.tolist()], dtype=np.int64)
        for token in np.flatnonzero((values < UNKNOWN) | (values >= len(self.classes)))[:1]:
            raise DataError(
                f"token {token} of this block has the label {values[token]} in {name}; codes are 0 to "
                f"{len(self.classes) - 1}, or -1 for one never seen in training"
            )
        return values.astype(np.int64)

    def _check_log_prob(
        self, given: ArrayLike | None, sizes: NDArray[np.int64], known: NDArray[np.bool_]
    ) -> NDArray[np.float64] | None:
        if self._structured not in (None, given is not None):
            raise DataError("sequence_log_prob must come with all blocks or with none")
        if given is None:
            return None
        values = np.asarray(given)
        if values.shape != sizes.shape or values.dtype.kind != "f":
            raise DataError(
                f"sequence_log_prob must be a float for each of {len(sizes)} sequences; got {values.dtype} of shape "
                f"{values.shape}"
            )
        # Written so that NaN fails it too.
        for row in np.flatnonzero(known & ~(values <= SUM_TOLERANCE * sizes))[:1]:
            raise DataError(
                f"sequence {row} of this block has the log-probability {values[row]:.6g}; it must be at most 0: pass "
                "path score less log partition function, and check for NaN"
            )
        return np.asarray(np.maximum(values[known].astype(np.float64), sizes[known] * np.log(SMALLEST)))

    def _names(self, values: NDArray[Any]) -> list[Any]:
        # The code -1 takes the last, which is no tag.
        names = (*self.classes, None)
        return [label if isinstance(label, str) else names[label] for label in values.tolist()]

    def compute(self) -> dict[str, float]:
        """Give the metrics of all sequences so far.

        Returns:
            "token_error", share of tokens with a wrong label; "sequence_error", share of sequences with any;
            "marginal_error", token error of the most probable labels by the marginals; "nll_unstruct", -sum_t ln p(y_t)
            over tokens of known label (D 3.12), p at least 2^-149, and "nll_unstruct_per_token"; with
            `sequence_log_prob` "nll_struct", -sum ln p(y_1, .., y_T) over sequences of known labels (D 3.13), at most
            103.3 nats per token, and "nll_struct_per_token"; "brier" and "ece" of the marginals, as
            `ClassMetrics.compute`; "aurc" and "excess_aurc", areas of `risk_coverage`; for spans "span_precision",
            "span_recall" and "span_f1" over all types (micro), where a run of tokens whose label has no known tag is a
            span that was missed; "n_sequences", "n_tokens" and "n_unknown", tokens of labels never seen in training.

        Raises:
            DataError: no sequences have been added.
        """
        if self._n_sequences == 0:
            raise DataError("no sequences have been added; call update with a block of them first")
        marginal, selective = self.tokens.compute(), self.risk_coverage()
        metrics = {
            "token_error": float(selective.risk[-1]),
            "sequence_error": self._n_wrong_sequences / self._n_sequences,
            "marginal_error": marginal["error"],
            "nll_unstruct": self._negative_log,
            "nll_unstruct_per_token": self._negative_log / max(1, self._n_tokens - self.n_unknown),
        }
        if self._structured:
            metrics["nll_struct"] = self._sequence_negative_log
            metrics["nll_struct_per_token"] = self._sequence_negative_log / max(1, self._n_structured_tokens)
        metrics |= {
            "brier": marginal["brier"],
            "ece": marginal["ece"],
            "aurc": selective.area,
            "excess_aurc": selective.excess_area,
        }
        if self._spans is not None:
            spans = self._spans.total()
            metrics |= {"span_precision": spans.precision, "span_recall": spans.recall, "span_f1": spans.f1}
        counts = {"n_sequences": self._n_sequences, "n_tokens": self._n_tokens, "n_unknown": self.n_unknown}
        return metrics | {name: float(count) for name, count in counts.items()}

    def risk_coverage(self) -> RiskCoverage:
        """Give the errors of the tokens so far that are most confident, by the probability of the predicted label.

        Raises:
            DataError: no sequences have been added.
        """
        if not self._correct:
            raise DataError("no sequences have been added; call update with a block of them first")
        return risk_coverage(np.concatenate(self._correct), np.concatenate(self._confidence))

    def per_label(self) -> PerClass:
        """Give the counts of each label's tokens so far, as predicted, and its precision, recall and F1."""
        return self._confusion.per_class()

    def confusion(self) -> csr_matrix:
        """Give the number of tokens of each true and predicted label so far.

        Returns:
            V x V counts, true labels down, predicted labels across; tokens of a label never seen are left out.
        """
        return self._confusion.matrix()

    def span_scores(self) -> dict[str, SpanScore]:
        """Give the counts of spans so far for each known type, in alphabetical order; that of letters alone is "_".

        Raises:
            SettingsError: labels are not the tags of spans.
        """
        if self._spans is None:
            raise SettingsError("these labels are not read as tags of spans; see looks_like_spans and the option spans")
        return self._spans.by_type()


def evaluate_sequences(
    y_true: Any,
    predicted: Any,
    marginals: ArrayLike,
    classes: Sequence[Any],
    *,
    lengths: ArrayLike | None = None,
    sequence_log_prob: ArrayLike | None = None,
    n_bins: int = 15,
    spans: bool | None = None,
    scheme: str | None = None,
) -> dict[str, float]:
    """Compute every metric of sequence labelling.

    Arguments, result and errors are those of `SequenceMetrics`, its `update` and `compute`.
    """
    metrics = SequenceMetrics(classes, n_bins=n_bins, spans=spans, scheme=scheme)
    metrics.update(y_true, predicted, marginals, lengths=lengths, sequence_log_prob=sequence_log_prob)
    return metrics.compute()


def _flatten(labels: Any, lengths: ArrayLike | None, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels of all tokens, codes or strings, and the lengths of the sequences."""
    if isinstance(labels, str) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0 or not len(labels):
        raise DataError(f"{name} must hold the labels of one or more sequences; got {labels!r}")
    if np.ndim(next(iter(labels))) > 0:
        parts = [np.asarray(part) for part in labels]
        kind = "iu" if parts[0].dtype.kind in "iu" else "UO"
        for row, part in enumerate(parts):
            if part.ndim != 1 or len(part) == 0 or part.dtype.kind not in kind:
                raise DataError(
                    f"sequence {row} of {name} must hold one or more labels, integer codes or strings, as all do; got "
                    f"{part.dtype} of shape {part.shape}"
                )
        values, sizes = np.concatenate(parts), np.asarray([len(part) for part in parts], dtype=np.int64)
        if lengths is not None and not np.array_equal(sizes, np.asarray(lengths)):
            raise DataError(f"the sequences of {name} do not have the lengths given or those of y_true")
    elif lengths is None:
        raise DataError(f"{name} must be a list of sequences, or come with their lengths")
    else:
        values, given = np.asarray(labels), np.asarray(lengths)
        if given.ndim != 1 or given.dtype.kind not in "iu" or not np.all(given >= 1) or given.sum() != len(values):
            raise DataError(
                f"the lengths of sequences must be integers, at least 1, that add up to the {len(values)} labels of "
                f"{name}; got {given.dtype} of shape {given.shape}"
                f"{f' that add up to {given.sum()}' if given.dtype.kind in 'iu' else ''}"
            )
        sizes = given.astype(np.int64)
    if values.dtype.kind == "O":
        values = np.asarray(values.tolist())
    if values.ndim != 1 or values.dtype.kind not in "iuU":
        raise DataError(f"labels in {name} must be integer codes or strings; got {values.dtype}")
    return values, sizes
