"""Metrics: ranking and propensity-scored ranking from the k best labels, probabilities, labels, classes, sequences."""

from extremegp.data.schemes import looks_like_spans
from extremegp.metrics.classification import ClassMetrics, evaluate_classes
from extremegp.metrics.confusion import PerClass
from extremegp.metrics.labels import LabelMetrics, PerLabel, PrecisionRecall, evaluate_labels
from extremegp.metrics.probability import (
    ProbabilityMetrics,
    Reliability,
    TopProbabilityMetrics,
    brier_score,
    expected_calibration_error,
    log_loss,
)
from extremegp.metrics.propensity import PROPENSITY_PRESETS, propensities, psndcg_at_k, psp_at_k
from extremegp.metrics.ranking import macro_recall_at_k, ndcg_at_k, precision_at_k, recall_at_k
from extremegp.metrics.report import evaluate_topk
from extremegp.metrics.risks import ClassRisks, LabelRisks, RowRisks, TopLabelRisks
from extremegp.metrics.selective import RiskCoverage, loss_coverage, risk_coverage
from extremegp.metrics.sequences import SequenceMetrics, evaluate_sequences
from extremegp.metrics.spans import SpanScore
from extremegp.metrics.topk import TopK

__all__ = [
    "PROPENSITY_PRESETS",
    "ClassMetrics",
    "ClassRisks",
    "LabelMetrics",
    "LabelRisks",
    "PerClass",
    "PerLabel",
    "PrecisionRecall",
    "ProbabilityMetrics",
    "Reliability",
    "RiskCoverage",
    "RowRisks",
    "SequenceMetrics",
    "SpanScore",
    "TopK",
    "TopLabelRisks",
    "TopProbabilityMetrics",
    "brier_score",
    "evaluate_classes",
    "evaluate_labels",
    "evaluate_sequences",
    "evaluate_topk",
    "expected_calibration_error",
    "log_loss",
    "looks_like_spans",
    "loss_coverage",
    "macro_recall_at_k",
    "ndcg_at_k",
    "precision_at_k",
    "propensities",
    "psndcg_at_k",
    "psp_at_k",
    "recall_at_k",
    "risk_coverage",
]
