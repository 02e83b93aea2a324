"""How much blocks of features count beside each other in linear functions of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.blocks import Block, columns_of
from extremegp.engine.sparse import Matrix

_SUBSET, _LABELS, _STEPS, _RATE = 800, 2000, 60, 0.1


@torch.enable_grad()
def block_factors(
    x: Matrix, y: scipy.sparse.csr_matrix, blocks: Sequence[Block], *, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Factors of the features of every block, with which linear functions predict rows left out of a subset best.

    With them the mean squared norm of a block is its share, and shares add up to one. The criterion is the squared
    error of the leave-one-out predictions of a regression of the labels (Rasmussen and Williams 2006, section 5.4.2).

    Args:
        x: inputs, N x D.
        y: labels that are 1, N x K; the most frequent ones of the subset count.
        blocks: of the features.
        rng: decides the subset.
    """
    rows = np.sort(rng.choice(x.shape[0], size=min(_SUBSET, x.shape[0]), replace=False))
    grams, norms = [], []
    for columns in columns_of(blocks):
        part = scipy.sparse.csr_matrix(columns.of_matrix(x[rows]), dtype=np.float64)
        gram = torch.from_numpy((part @ part.T).toarray())
        norms.append(float(gram.diagonal().mean()) or 1.0)
        grams.append(gram / norms[-1])
    targets = _targets(y[rows])
    logits = torch.zeros(len(grams), dtype=torch.float64, requires_grad=True)
    log_noise = torch.tensor(math.log(0.2), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits, log_noise], lr=_RATE)
    together, identity = torch.stack(grams), torch.eye(len(rows), dtype=torch.float64)
    for _ in range(_STEPS):
        covariance = (together * logits.softmax(0)[:, None, None]).sum(0) + log_noise.exp() * identity
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        residual = (precision @ targets) / precision.diagonal().unsqueeze(1)
        optimizer.zero_grad()
        residual.square().mean(0).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    factors: NDArray[np.float64] = np.sqrt(logits.detach().softmax(0).numpy() / np.array(norms))
    return factors


def _targets(y: scipy.sparse.csr_matrix) -> Tensor:
    """The most frequent labels of some rows, centred."""
    counts = np.bincount(y.indices, minlength=y.shape[1])
    frequent = np.sort(np.argsort(-counts, kind="stable")[: min(_LABELS, np.count_nonzero(counts))])
    targets = torch.from_numpy(y[:, frequent].toarray()).double()
    return targets - targets.mean(0)
