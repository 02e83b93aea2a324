"""Inducing inputs anywhere in the input space, for all latent functions or for each."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.centres import dense_rows, distinct, distinct_centres, in_memory
from extremegp.engine.inducing.base import InducingInputs, vector_norms
from extremegp.engine.part import StepSizes, TrainingData
from extremegp.engine.points import DensePoints, InnerProducts, Points
from extremegp.engine.sparse import Inputs, Matrix, fill, matmul, weighted_square_norms


class FreeInducingInputs(InducingInputs):
    """M points anywhere in the D-dimensional input space.

    Args:
        start: their start, M x D.
        learn: whether they are learnt (False is the papers' "-FX").
        normalise: keep every row at unit norm.
    """

    def __init__(self, start: Float[Tensor, "M D"], *, learn: bool = True, normalise: bool = True) -> None:
        super().__init__()
        # The transpose is stored, so that X Z' gathers contiguous rows for every stored feature of X.
        self.transposed = nn.Parameter(start.T.contiguous(), requires_grad=learn)
        self.normalise = normalise
        if not start.is_meta:  # There are no values to scale, and on meta tensors a norm imports PyTorch's compiler.
            self.project()

    def __len__(self) -> int:
        return self.transposed.shape[1]

    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        return DensePoints(self())

    def forward(self) -> Float[Tensor, "M D"]:
        return self.transposed.T

    def start(self, data: TrainingData) -> None:
        fill(self.transposed, self.unit(distinct_centres(in_memory(data, len(self)), len(self), data)).T)

    def start_at(self, centres: Matrix, rng: np.random.Generator) -> None:
        fill(self.transposed, self.unit(distinct(dense_rows(centres), rng)).T)

    def step_elements(self, sizes: StepSizes) -> int:
        return 5 * self.transposed.numel()

    def coordinates(self) -> nn.Parameter:
        return self.transposed

    def norms(self) -> Tensor:
        return vector_norms(self.transposed, dim=0)


class SeparateInducingInputs(InducingInputs):
    """M points for each of P latent functions, anywhere in the input space: T 3.24's Z_k, P M D parameters.

    Args:
        start: their start, P x M x D.
        learn: whether they are learnt.
        normalise: keep every point at unit norm.
    """

    per_function = True

    def __init__(self, start: Float[Tensor, "P M D"], *, learn: bool = True, normalise: bool = True) -> None:
        super().__init__()
        self.transposed = nn.Parameter(start.movedim(2, 0).contiguous(), requires_grad=learn)
        self.normalise = normalise
        if not start.is_meta:
            self.project()

    def __len__(self) -> int:
        return self.transposed.shape[2]

    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        return _SeparatePoints(self.transposed if functions is None else self.transposed.index_select(1, functions))

    def forward(self) -> Float[Tensor, "P M D"]:
        return self.transposed.movedim(0, 2)

    def start(self, data: TrainingData) -> None:
        """Every class starts from its own rows (T 3.8.3), with rows of others where it has fewer than M."""
        by_class = _likely(data.y).tocsc()
        for k in range(data.y.shape[1]):
            own = by_class.indices[by_class.indptr[k] : by_class.indptr[k + 1]]
            others = data.rng.choice(data.n_rows, size=max(0, len(self) - len(own)), replace=False)
            centres = distinct_centres(data.x[np.concatenate([own, others])], len(self), data)
            fill(self.transposed[:, k], self.unit(centres).T)

    def step_elements(self, sizes: StepSizes) -> int:
        return 9 * self.transposed.numel()

    def coordinates(self) -> nn.Parameter:
        return self.transposed

    def norms(self) -> Tensor:
        return vector_norms(self.transposed, dim=0)


def _likely(y: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """The labels of every row; of soft ones, those at least half as likely as its most likely one."""
    if (y.data >= 1).all():
        return y
    most = y.max(axis=1).toarray().ravel().repeat(np.diff(y.indptr))
    entries = y.tocoo()
    kept = entries.data >= 0.5 * np.minimum(most, 1)
    return scipy.sparse.csr_matrix((entries.data[kept], (entries.row[kept], entries.col[kept])), shape=y.shape)


class _SeparatePoints(Points):
    def __init__(self, transposed: Float[Tensor, "D P M"]) -> None:
        self.transposed, self.dtype, self.device = transposed, transposed.dtype, transposed.device

    def __len__(self) -> int:
        return self.transposed.shape[2]

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return _SeparateProducts(self.transposed, weights)

    def dense(self) -> Float[Tensor, "P M D"]:
        return self.transposed.movedim(0, 2)

    def between(self, start: int, stop: int) -> Points:
        return _SeparatePoints(self.transposed[start:stop])


class _SeparateProducts(InnerProducts):
    def __init__(self, transposed: Float[Tensor, "D P M"], weights: Tensor) -> None:
        self.weights = weights
        self.weighted = transposed * weights[:, None, None]
        z = transposed.movedim(1, 0).double()
        self.gram = z.mT @ self.weighted.movedim(1, 0).double()

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        # One product with the points of all functions side by side.
        product = matmul(x, self.weighted.flatten(1))
        return product.reshape(-1, *self.weighted.shape[1:]).movedim(1, 0), weighted_square_norms(x, self.weights)
