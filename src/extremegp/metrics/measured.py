"""All that one pass over the predictions of labelled rows of many labels tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from extremegp.metrics.labels import LabelMetrics
from extremegp.metrics.probability import ProbabilityMetrics, Reliability, TopProbabilityMetrics
from extremegp.metrics.report import evaluate_topk
from extremegp.metrics.risks import LabelRisks, RowRisks, TopLabelRisks
from extremegp.metrics.topk import TopK


class Measured(NamedTuple):
    """What one pass over the predictions of labelled rows tells.

    Attributes:
        metrics: by name; those of ranking as fractions.
        reliability: diagrams by what they are of.
        labels: what is known of every label.
        risks: what is lost where only the surest rows are predicted; the areas are among the metrics.
    """

    metrics: dict[str, float]
    reliability: dict[str, Reliability]
    labels: LabelMetrics
    risks: RowRisks


def measure(
    blocks: Iterable[tuple[slice, Any, Any]],
    truth: Any,
    *,
    ks: Sequence[int],
    propensity: Any,
    train_counts: Any,
    threshold: float = 0.5,
) -> Measured:
    """All metrics from one pass over blocks of (rows, scores to rank by, probabilities).

    Args:
        blocks: cover all N rows in order; scores and probabilities are B x K.
        truth: N x K indicator.
        ks: ranks to evaluate at.
        propensity: K propensities.
        train_counts: training rows with each label (K).
        threshold: the probability from which on a label is predicted.
    """
    quality, labels = ProbabilityMetrics(ks=ks), LabelMetrics(truth.shape[1], threshold=threshold)
    risks = LabelRisks()

    def best() -> Iterator[TopK]:
        for rows, scores, probabilities in blocks:
            quality.update(probabilities, truth[rows])
            labels.update(probabilities, truth[rows])
            risks.update(probabilities, truth[rows])
            yield TopK.from_scores(scores, max(ks))

    ranking = evaluate_topk(truth, TopK.concatenate([*best()]), propensity, ks, train_counts=train_counts)
    reliability = {"all labels": quality.reliability(), f"{quality.top} best of a row": quality.reliability(top=True)}
    metrics = ranking | quality.compute() | labels.compute() | risks.compute()
    return Measured(metrics, reliability, labels, risks)


def measure_top(
    ranked: Iterable[tuple[slice, TopK, Any]],
    truth: Any,
    *,
    ks: Sequence[int],
    propensity: Any,
    train_counts: Any,
    threshold: float = 0.5,
    top: int = 20,
) -> Measured:
    """The metrics that need no more than the best labels of every row, `top` of them and at least max(ks).

    As `measure`, but of blocks as `Predictor.top` and its like give them. What is told of every label, and of curves,
    is better with more of the best.

    Args:
        ranked: blocks of rows.
        truth: as in `measure`.
        ks: likewise.
        propensity: likewise.
        train_counts: likewise.
        threshold: likewise.
        top: labels of a row whose probabilities are judged.
    """
    quality, labels = TopProbabilityMetrics(top, ks=ks), LabelMetrics(truth.shape[1], threshold=threshold)
    risks = TopLabelRisks(top)

    def best() -> Iterator[TopK]:
        for rows, of_block, probabilities in ranked:
            quality.update(of_block, probabilities, truth[rows])
            labels.update_top(of_block, probabilities, truth[rows])
            risks.update(of_block, probabilities, truth[rows])
            yield TopK(of_block.labels[:, : max(ks)], of_block.scores[:, : max(ks)])

    ranking = evaluate_topk(truth, TopK.concatenate([*best()]), propensity, ks, train_counts=train_counts)
    reliability = {f"{top} best of a row": quality.reliability()}
    metrics = ranking | quality.compute() | labels.compute() | risks.compute()
    return Measured(metrics, reliability, labels, risks)
