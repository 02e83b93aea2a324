"""From utilities to E_q[log p(y | f)] and probabilities; one file per family."""

from extremegp.engine.integrals.races import entropy_parts
from extremegp.engine.likelihoods.augment_reduce import AugmentReduceLogit, AugmentReduceSoftmax
from extremegp.engine.likelihoods.base import BatchContext, ClassLikelihood, Likelihood
from extremegp.engine.likelihoods.bernoulli import BernoulliLabels, IndependentClasses
from extremegp.engine.likelihoods.one_vs_each import OneVsEach, ProbitOneVsEach
from extremegp.engine.likelihoods.robust_max import RobustMax
from extremegp.engine.likelihoods.softmax import SoftmaxMonteCarlo
from extremegp.engine.likelihoods.softmax_exact import Softmax

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
