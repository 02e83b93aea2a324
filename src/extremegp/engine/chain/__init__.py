"""Exact inference in linear chains over ragged sequences, padded and batched; `inference` has the conventions."""

from extremegp.engine.chain.inference import (
    clamp,
    entropy,
    k_best,
    log_partition,
    marginals,
    pad,
    pair_marginals,
    partial_log_prob,
    path_score,
    piecewise_pseudo_likelihood,
    sample,
    sequence_log_prob,
    sequence_log_probs,
    unpad,
    viterbi,
)

__all__ = [
    "clamp",
    "entropy",
    "k_best",
    "log_partition",
    "marginals",
    "pad",
    "pair_marginals",
    "partial_log_prob",
    "path_score",
    "piecewise_pseudo_likelihood",
    "sample",
    "sequence_log_prob",
    "sequence_log_probs",
    "unpad",
    "viterbi",
]
