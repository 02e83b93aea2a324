"""From utilities to E_q[log p(y | f)] and predictions; one file a family."""

from extremegp.engine.likelihoods.augment_reduce import AugmentReduceLogit, AugmentReduceSoftmax
from extremegp.engine.likelihoods.base import ClassLikelihood, Likelihood, Prediction
from extremegp.engine.likelihoods.bernoulli import BernoulliLabels, IndependentClasses
from extremegp.engine.likelihoods.linear_chain import LinearChain
from extremegp.engine.likelihoods.one_vs_each import OneVsEach, ProbitOneVsEach
from extremegp.engine.likelihoods.robust_max import RobustMax
from extremegp.engine.likelihoods.softmax import Softmax, SoftmaxMonteCarlo

__all__ = [
    "AugmentReduceLogit",
    "AugmentReduceSoftmax",
    "BernoulliLabels",
    "ClassLikelihood",
    "IndependentClasses",
    "Likelihood",
    "LinearChain",
    "OneVsEach",
    "Prediction",
    "ProbitOneVsEach",
    "RobustMax",
    "Softmax",
    "SoftmaxMonteCarlo",
]
