"""Draws of functions that are linear in features, with weights of their own for every sequence of inputs.

What a sequence's label depends on is the joint distribution of the functions at all its inputs, while sequences may be
drawn independently of each other: then their noise averages out in a batch, as with local reparameterisation.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.chain import pad, unpad
from extremegp.engine.sparse import Inputs, SparseRows, matmul


def sequence_noise(
    x: Inputs,
    deviations: Float[Tensor, "D P"] | Float[Tensor, " D"],
    lengths: Int[Tensor, " S"],
    shape: tuple[int, int],
    generator: torch.Generator,
) -> Float[Tensor, "R B P"]:
    """x_i'(s_p * e) of every row i, with R x P standard normal vectors e for each sequence.

    Args:
        x: the rows of S sequences, one after the other.
        deviations: s_p, or one s for all p.
        lengths: rows of each sequence.
        shape: R and P.
        generator: decides the draws.
    """
    n_draws, n_functions = shape
    if isinstance(x, SparseRows):
        # Only weights of features that a sequence has are ever drawn.
        sequences = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
        pairs, positions = torch.unique(sequences[x.rows] * x.n_columns + x.columns, return_inverse=True)
        own = deviations.index_select(0, pairs % x.n_columns)
        weights = _scaled_noise(own, (len(pairs),), shape, generator)
        product = matmul(replace(x, columns=positions, n_columns=len(pairs)), weights)
    else:
        weights = _scaled_noise(deviations, (len(lengths), x.shape[1]), shape, generator)
        product = unpad(pad(x, lengths) @ weights, lengths)
    return product.view(-1, n_draws, n_functions).transpose(0, 1)


def _scaled_noise(
    deviations: Tensor, leading: tuple[int, ...], shape: tuple[int, int], generator: torch.Generator
) -> Float[Tensor, "*U RP"]:
    noise = torch.randn(*leading, *shape, generator=generator, device=deviations.device, dtype=deviations.dtype)
    own = deviations.unsqueeze(-1) if deviations.ndim == 1 else deviations
    weights: Tensor = own.unsqueeze(-2) * noise
    return weights.flatten(-2)
