"""Latent functions: for a batch of inputs, the posterior marginals of P functions, and a KL term."""

from extremegp.engine.latents.base import (
    ConditionedLatents,
    JoinedLatents,
    Latents,
    Marginals,
    SumLatents,
    WeightedLatents,
)
from extremegp.engine.latents.columns import ColumnLatents
from extremegp.engine.latents.features import FeatureGP, LandmarkFunctions
from extremegp.engine.latents.linear import LinearFunctions
from extremegp.engine.latents.random_features import DeepRandomFeatures
from extremegp.engine.latents.regression import RegressionGP
from extremegp.engine.latents.sparse_gp import SparseGP

__all__ = [
    "ColumnLatents",
    "ConditionedLatents",
    "DeepRandomFeatures",
    "FeatureGP",
    "JoinedLatents",
    "LandmarkFunctions",
    "Latents",
    "LinearFunctions",
    "Marginals",
    "RegressionGP",
    "SparseGP",
    "SumLatents",
    "WeightedLatents",
]
