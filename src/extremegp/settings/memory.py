"""What a training run will need, worked out before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import psutil

from extremegp.engine.likelihoods.local import HIDDEN_UNITS
from extremegp.errors import MemoryPlanError
from extremegp.settings.model import ModelSettings
from extremegp.settings.sequence_building import SequenceSettings

_CGROUP = Path("/sys/fs/cgroup")
_BYTES_PER_LABEL = 100  # of what has a number or two for each label, where they are sampled
# Arrays of batch and classes that likelihoods take; those not here go through the labels in pieces.
_CLASS_ARRAYS = {
    "softmax": 30,
    "softmax-mc": 30,
    "one-vs-each": 10,
    "probit-one-vs-each": 8,
    "ar-softmax": 6,
    "ar-logit": 20,
    "robust-max": 8,
}


def available_memory() -> int:
    """Bytes that this process may still use: free memory, or what its control group's limit leaves if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


def training_memory(
    settings: ModelSettings,
    *,
    n_rows: int,
    batch_size: int,
    n_stored: int,
    labels_per_step: int | None = None,
    item_size: int = 4,
    optimizer_state: Literal["full", "half"] = "full",
    n_copies: int = 0,
) -> int:
    """Bytes that training takes at its peak, within a factor of two.

    Every parameter is held with its gradient and two moments, arrays of the batch and the weighted inducing inputs with
    their gradients; K_Z and its factors are float64. Where labels are sampled, the mixing has gradients and temporary
    copies for the rows of a step only.

    Args:
        settings: the model.
        n_rows: N.
        batch_size: B.
        n_stored: stored entries of inputs and labels.
        labels_per_step: L, the labels that a step looks at; None for all.
        item_size: bytes of a number of the wide arrays.
        optimizer_state: of sampled labels, as `RowAdam` takes it.
        n_copies: of all parameters: one of the best ones so far, one of those that a run resumes from.
    """
    d, k, p, m, b = settings.n_features, settings.n_labels, settings.n_latent, settings.n_inducing, batch_size
    if settings.latents != "gp":
        m = 0
    full = settings.posterior.startswith("full")
    own_kernel = settings.kernel.startswith("se-p-ell") or settings.inducing == "separate"
    parsimonious = settings.posterior == "parsimonious" and m > 0
    inducing = _inducing_elements(settings, batch_size)
    linear = d * p * (2 if settings.latents == "linear-mean-field" else 1)
    parameters = p * m + (p * m * m if full else p * m + m * m) + d
    parameters += linear if settings.linear_term or settings.latents != "gp" else 0
    parameters += HIDDEN_UNITS * d if settings.local == "amortised" else 0
    one_each = settings.mixing == "identity"
    functions = labels_per_step or p if one_each else p
    # Scales of the functions and biases, but Bernoulli labels take the scales as a diagonal matrix.
    width = 2 if one_each and settings.likelihood not in ("bernoulli", "independent") else p + 1
    looked_at = b * (labels_per_step or k)
    classes = _CLASS_ARRAYS.get(settings.likelihood, 0) * looked_at
    mixing, of_labels = 4 * k * width, 0
    if labels_per_step is not None:
        mixing = ((1 if optimizer_state == "half" else 3) * k + 8 * labels_per_step) * width
        # Moments in bfloat16; counts of steps, the sampler's arrays and the clusters of hard labels.
        of_labels = k * (_BYTES_PER_LABEL + (4 * width if optimizer_state == "half" else 0))
    expectations = 0 if classes else (10 if settings.propensity else 6) * min(looked_at, 1 << 20)
    each = 3 * functions * b * m if full or own_kernel or parsimonious else 0
    batch = 4 * b * m + 6 * b * functions + each + expectations
    # Natural steps of full covariances are in float64.
    of_posterior = {"full": 4 * p, "parsimonious": 9 * p}.get(settings.posterior, 0)
    factors = 8 * m * m * (12 * (p if own_kernel else 1) + of_posterior)
    copies = n_copies * (parameters + k * width)
    arrays = 4 * parameters + mixing + copies + 2 * batch + classes + inducing
    training = item_size * arrays + of_labels + factors + 12 * n_stored
    return training + _regression_bytes(settings, n_rows)


def sequence_memory(
    settings: SequenceSettings,
    *,
    batch_sequences: int,
    batch_tokens: int,
    batch_stored: int,
    n_draws: int,
    n_stored: int,
    item_size: int = 4,
) -> int:
    """Bytes that training a model of sequences takes at its peak, within a factor of two.

    Args:
        settings: the model.
        batch_sequences: S, sequences of a batch.
        batch_tokens: B, tokens of a batch of the longest sequences.
        batch_stored: stored entries of the inputs of such a batch; B D if they are dense.
        n_draws: R, draws of a step.
        n_stored: stored entries of all inputs.
        item_size: bytes of a number.
    """
    d, v, b, m = settings.n_features, settings.n_labels, batch_tokens, settings.n_inducing
    p = v * (1 + v * (settings.transitions == "indexed"))
    parameters, of_batch, of_sequence, factors = 0, 0, 0, 0
    if settings.latents == "random-features":
        features = settings.n_random_features * (2 if settings.kernel == "se" else 1)
        width, deep = settings.n_reduced or d, settings.n_layers - 1
        networks = 2 if settings.transitions == "indexed" else 1
        inputs = networks * (width + deep * (settings.n_hidden + width * settings.feed_forward))
        # What is drawn once has neither gradient nor moments; its product with the deviations has a gradient.
        frequencies = inputs * settings.n_random_features * (3 if settings.frequencies == "prior-fixed" else 12) // 4
        parameters = frequencies + 2 * features * (deep * settings.n_hidden + p) + networks * d * settings.n_reduced
        passes = n_draws if deep or settings.frequencies == "var-resampled" else 1
        of_batch = 4 * networks * b * features * settings.n_layers * passes
        of_sequence = features
    elif settings.latents == "gp":
        full = settings.posterior.startswith("full")
        parameters = p * m + (p * m * m if full else p * m + m * m)
        of_batch = (2 * p if full or settings.posterior == "parsimonious" else 4) * b * m
        # Inducing inputs stay where they are; only the columns that one of them has are ever dense.
        of_batch += 5 * m * settings.support_size + min(d, m * settings.support_size) * (b + m)
        of_sequence = m
        factors = 8 * m * m * (12 + (9 * p if settings.posterior == "parsimonious" else 0))
    if settings.latents.startswith("linear") or settings.linear_term:
        parameters += d * p * (2 if settings.latents == "linear-mean-field" else 1)
    if settings.latents in ("linear", "linear-mean-field"):
        # Of sparse inputs, sequences draw weights of the features that they have.
        of_sequence = min(d, batch_stored // batch_sequences)
    weights = 3 * batch_sequences * of_sequence * n_draws * p
    chain = 12 * n_draws * b * p
    return item_size * (4 * parameters + of_batch + weights + chain) + factors + 12 * n_stored


def _inducing_elements(settings: ModelSettings, batch_size: int) -> int:
    """Elements of the inducing inputs, and of what inner products with them take."""
    d, m, r, s = settings.n_features, settings.n_inducing, settings.n_subspace, settings.support_size
    if settings.latents != "gp":
        return 0
    if settings.inducing == "separate":
        return 9 * d * m * settings.n_latent
    if settings.inducing == "free":
        return 7 * d * m
    if settings.inducing == "sparse":
        return 5 * m * s + 3 * min(d, m * s) * (batch_size + m)
    return 4 * r * m + (7 if settings.inducing == "subspace-basis" else 3) * r * d


def _regression_bytes(settings: ModelSettings, n_rows: int) -> int:
    """What a regression on the rows takes: square matrices of its points, predictions of all rows for all labels."""
    points = settings.n_mean_points
    if not points:
        return 0
    # A subset of the rows is worked out in float64.
    squares = 3 if points == n_rows else 10
    return 4 * (squares * points * points + 3 * n_rows * settings.n_labels + 800 * settings.n_features)


def check_memory(needed: int, *, settings: str, available: int | None = None) -> None:
    """Refuse a plan that cannot fit.

    Args:
        needed: bytes.
        settings: the settings to lower, for the message.
        available: bytes there are; by default measured.

    Raises:
        MemoryPlanError: `needed` is more than there is.
    """
    available = available_memory() if available is None else available
    if needed > available:
        raise MemoryPlanError(
            f"training would need about {needed / 2**30:.1f} GB and {available / 2**30:.1f} GB are free: "
            f"lower {settings}"
        )
