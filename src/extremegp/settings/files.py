"""Settings of a model as files have them, of this version or an earlier one."""

from __future__ import annotations

from typing import Any

from extremegp.engine.blocks import Block
from extremegp.errors import SettingsError
from extremegp.settings.domains import choice, number

MOST = 2**40
"""Of any size."""


def blocks_of(values: Any) -> tuple[Block, ...]:
    """Blocks as JSON has them."""
    try:
        blocks = tuple(Block(*block) for block in values)
        for block in blocks:
            number("the features of a block", block.n_features, low=1, high=MOST, integer=True)
            choice("dense and unit of a block", block.dense, (True, False))
            choice("dense and unit of a block", block.unit, (True, False))
    except TypeError as error:
        raise SettingsError(f"not the blocks of a model: {values!r}") from error
    return blocks


def of_sequences(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of sequences as format version 1 has them: what all of them had in common was left out."""
    gp = values.get("latents") == "gp"
    return {
        **values,
        "n_latent": values.get("n_labels"),
        "likelihood": "linear-chain",
        "mixing": "identity",
        "inducing": "sparse" if gp else "free",
        "support_size": values.get("support_size") if gp else 0,
        "learn_inducing": False,
        "normalise_inducing": False,
        "linear_posterior": "point",
        "learn_scales": gp and not values.get("linear_term"),
        "bias_variance": 4.0,
    }
