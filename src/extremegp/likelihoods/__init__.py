"""From utilities to E_q[log p(y | f)] and probabilities; one file per family."""

from extremegp.likelihoods.bernoulli import BernoulliLabels

__all__ = ["BernoulliLabels"]
