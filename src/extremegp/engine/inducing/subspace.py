"""Inducing inputs in a subspace, Z = A Xt."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from sklearn.utils.extmath import randomized_svd
from torch import Tensor, nn

from extremegp.engine.centres import distinct_centres, in_memory
from extremegp.engine.inducing.base import InducingInputs, vector_norms
from extremegp.engine.linalg import weighted_gram
from extremegp.engine.part import StepSizes, TrainingData
from extremegp.engine.points import InnerProducts, Points
from extremegp.engine.sparse import Inputs, fill, matmul, weighted_square_norms


class SubspaceInducingInputs(InducingInputs):
    """Z = A Xt: M points in the span of R basis vectors (T 2.26-2.29, S 2.2).

    Inner products cost R per point instead of D: z.z' = A (Xt W Xt') A' and x.z = (X W Xt') A'. The projections X W Xt'
    are streamed: a batch's cost nnz(X_b) R, and they change with the weights W.

    Args:
        start: A at the start, M x R.
        basis: Xt, R x D, with orthonormal rows at the start.
        learn: whether A is learnt.
        learn_basis: whether Xt is learnt too (the papers' "-B").
        normalise: keep every row of A Xt at unit norm.
        coordinate_weights: whether kernels weigh the R coordinates in the subspace, and as coordinate R + 1 all that is
            orthogonal to it, instead of the D features: Xt W Xt' is then diagonal and costs nothing.
    """

    def __init__(
        self,
        start: Float[Tensor, "M R"],
        basis: Float[Tensor, "R D"],
        *,
        learn: bool = True,
        learn_basis: bool = False,
        normalise: bool = True,
        coordinate_weights: bool = False,
    ) -> None:
        super().__init__()
        if learn_basis and coordinate_weights:
            raise ValueError("weights of subspace coordinates need a fixed orthonormal basis")
        self.mixture = nn.Parameter(start.clone(), requires_grad=learn)
        self.transposed_basis = nn.Parameter(basis.T.contiguous(), requires_grad=learn_basis)
        self.normalise, self.coordinate_weights = normalise, coordinate_weights
        if not start.is_meta:
            self.project()

    def __len__(self) -> int:
        return len(self.mixture)

    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        return _SubspacePoints(self)

    def forward(self) -> Float[Tensor, "M D"]:
        return self.mixture @ self.transposed_basis.T

    def start(self, data: TrainingData) -> None:
        x, n_basis = in_memory(data, len(self)), self.transposed_basis.shape[1]
        _, _, basis = randomized_svd(x, n_basis, random_state=int(data.rng.integers(2**31)))
        fill(self.transposed_basis, basis.T)
        # Rows of A have the norms of those of A Xt, as the basis is orthonormal.
        fill(self.mixture, self.unit(distinct_centres(np.asarray(x @ basis.T), len(self), data)))

    def step_elements(self, sizes: StepSizes) -> int:
        basis = self.transposed_basis
        return 4 * self.mixture.numel() + (7 if basis.requires_grad else 3) * basis.numel()

    def coordinates(self) -> nn.Parameter:
        return self.mixture

    def norms(self) -> Tensor:
        # Without the D-dimensional product where the basis is orthonormal and stays so.
        return vector_norms(self() if self.transposed_basis.requires_grad else self.mixture, dim=1)


class _SubspacePoints(Points):
    def __init__(self, inducing: SubspaceInducingInputs) -> None:
        self.inducing = inducing
        self.dtype, self.device = inducing.mixture.dtype, inducing.mixture.device

    def __len__(self) -> int:
        return len(self.inducing)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return (_CoordinateProducts if self.inducing.coordinate_weights else _SubspaceProducts)(self.inducing, weights)

    def dense(self) -> Float[Tensor, "M D"]:
        return self.inducing.forward()


class _SubspaceProducts(InnerProducts):
    def __init__(self, inducing: SubspaceInducingInputs, weights: Tensor) -> None:
        self.weights, self.mixture = weights, inducing.mixture
        weighted, within = weighted_gram(inducing.transposed_basis.T, weights)
        self.projection = weighted.T
        mixture = self.mixture.double()
        self.gram = mixture @ within @ mixture.T

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        return matmul(x, self.projection) @ self.mixture.T, weighted_square_norms(x, self.weights)


class _CoordinateProducts(InnerProducts):
    """With the metric w_rest I + Xt' diag(w - w_rest) Xt on orthonormal rows Xt."""

    def __init__(self, inducing: SubspaceInducingInputs, weights: Tensor) -> None:
        self.projection = inducing.transposed_basis
        self.inside, self.rest = (weights, weights) if len(weights) == 1 else (weights[:-1], weights[-1:])
        self.weighted = inducing.mixture * self.inside
        self.gram = self.weighted.double() @ inducing.mixture.double().T

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        projected = matmul(x, self.projection)
        inside = projected.square() @ (self.inside - self.rest).expand(projected.shape[1])
        return projected @ self.weighted.T, weighted_square_norms(x, self.rest) + inside
