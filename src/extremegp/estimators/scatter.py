"""The scatter of instances by which known labels speak of others, estimated once a model is trained."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from extremegp.engine.latents import Marginals
from extremegp.engine.model import VariationalModel
from extremegp.engine.utilities import Utilities
from extremegp.estimators.examples import Examples
from extremegp.prediction.instance_noise import estimate_instance_noise
from extremegp.prediction.known_labels import InstanceNoise
from extremegp.prediction.label_scatter import LabelScatter, estimate_scatter
from extremegp.prediction.predictor import Predictor

_NOISE_ROWS, _VARIANCE_ROWS = 20_000, 500


def instance_noise(
    model: VariationalModel, data: Examples, mean_logits: NDArray[np.float32] | None, rng: np.random.Generator
) -> InstanceNoise | LabelScatter | None:
    """The scatter of instances, estimated on at most 20,000 rows; None where no labels can be known."""
    if not model.likelihood.takes_known_labels or (model.mixing.independent and mean_logits is None):
        return None
    # In latent space it is learnt from what one label says of the others; in label space from all that rows have.
    rows = np.arange(data.y.shape[0]) if model.mixing.independent else np.flatnonzero(np.diff(data.y.indptr))
    rows = np.sort(rng.choice(rows, min(_NOISE_ROWS, len(rows)), replace=False))
    logits = None if mean_logits is None else mean_logits[rows]
    if model.mixing.independent and logits is not None:
        weights = None if data.weights is None else data.weights[rows]
        some = np.sort(rng.choice(len(rows), min(_VARIANCE_ROWS, len(rows)), replace=False))
        found = [
            block.marginals().variance for _, block in Predictor(model).utilities(data.x[rows[some]], logits[some])
        ]
        variances = torch.cat(found).mean(0).float().cpu()
        scatter = estimate_scatter(
            torch.from_numpy(logits), data.y[rows], rng=rng, variances=variances, weights=weights
        )
        return LabelScatter(scatter.loadings.to(model.mixing.bias))
    blocks = [block for _, block in Predictor(model.without_regression_variance()).utilities(data.x[rows], logits)]
    latents = Marginals.concatenate([block.latents for block in blocks])
    offsets = [block.offset for block in blocks if block.offset is not None]
    utilities = Utilities(model.mixing, latents, torch.cat(offsets) if offsets else None)
    propensities = getattr(model.likelihood, "propensities", None)
    weights = None if data.weights is None else data.weights[rows]
    return estimate_instance_noise(utilities, data.y[rows], rng=rng, propensities=propensities, weights=weights)
