"""From utilities to E_q[log p(y | f)] and probabilities; one file per family."""

from extremegp.likelihoods.augment_reduce import AugmentReduceLogit, AugmentReduceSoftmax
from extremegp.likelihoods.base import BatchContext, ClassLikelihood, Likelihood
from extremegp.likelihoods.bernoulli import BernoulliLabels, IndependentClasses
from extremegp.likelihoods.one_vs_each import OneVsEach, ProbitOneVsEach
from extremegp.likelihoods.races import entropy_parts
from extremegp.likelihoods.robust_max import RobustMax
from extremegp.likelihoods.softmax import SoftmaxMonteCarlo
from extremegp.likelihoods.softmax_exact import Softmax

__all__ = [
    "AugmentReduceLogit",
    "AugmentReduceSoftmax",
    "BatchContext",
    "BernoulliLabels",
    "ClassLikelihood",
    "IndependentClasses",
    "Likelihood",
    "OneVsEach",
    "ProbitOneVsEach",
    "RobustMax",
    "Softmax",
    "SoftmaxMonteCarlo",
    "entropy_parts",
]
