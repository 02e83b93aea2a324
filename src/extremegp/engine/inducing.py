"""Where the inducing inputs live (T 2.5; S 2.2, A.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.kernels import DensePoints, InnerProducts, Points
from extremegp.engine.linalg import weighted_gram
from extremegp.engine.sparse import Inputs, SparseRows, matmul, weighted_square_norms


class InducingInputs(nn.Module, ABC):
    """M inducing inputs z.

    Attributes:
        normalise: keep every z at unit norm, as suits unit-norm text (False is the papers' "-UN").
        index_limits: exclusive upper bounds of the entries of integer buffers, by name.
    """

    normalise: bool
    index_limits: Mapping[str, int] = {}

    @abstractmethod
    def __len__(self) -> int:
        """M."""

    @abstractmethod
    def points(self) -> Points:
        """What kernels compare inputs with."""

    @abstractmethod
    def forward(self) -> Float[Tensor, "*P M D"]:
        """Z itself, dense: for small D and for looking at."""

    @abstractmethod
    def coordinates(self) -> nn.Parameter:
        """The parameter that moves the inducing inputs."""

    @abstractmethod
    def norms(self) -> Tensor:
        """||z||, in a shape that divides the coordinates."""

    @torch.no_grad()
    def project(self) -> None:
        """Bring every z back to unit norm where that is asked for; called after every optimiser step."""
        if self.normalise and self.coordinates().requires_grad:
            self.coordinates().div_(self.norms().clamp_(min=1e-12))


def _norms(z: Tensor, *, dim: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(z, dim=dim, keepdim=True)
    return norms


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

    def points(self) -> Points:
        return DensePoints(self())

    def forward(self) -> Float[Tensor, "M D"]:
        return self.transposed.T

    def coordinates(self) -> nn.Parameter:
        return self.transposed

    def norms(self) -> Tensor:
        return _norms(self.transposed, dim=0)


class SeparateInducingInputs(InducingInputs):
    """M points for each of P latent functions, anywhere in the input space: T 3.24's Z_k, P M D parameters.

    Args:
        start: their start, P x M x D.
        learn: whether they are learnt.
        normalise: keep every point at unit norm.
    """

    per_function: ClassVar[Mapping[str, int]] = {"transposed": 1}

    def __init__(self, start: Float[Tensor, "P M D"], *, learn: bool = True, normalise: bool = True) -> None:
        super().__init__()
        self.transposed = nn.Parameter(start.movedim(2, 0).contiguous(), requires_grad=learn)
        self.normalise = normalise
        if not start.is_meta:
            self.project()

    def __len__(self) -> int:
        return self.transposed.shape[2]

    def points(self) -> Points:
        return _SeparatePoints(self.transposed)

    def forward(self) -> Float[Tensor, "P M D"]:
        return self.transposed.movedim(0, 2)

    def coordinates(self) -> nn.Parameter:
        return self.transposed

    def norms(self) -> Tensor:
        return _norms(self.transposed, dim=0)


class _SeparatePoints(Points):
    def __init__(self, transposed: Float[Tensor, "D P M"]) -> None:
        self.transposed, self.dtype, self.device = transposed, transposed.dtype, transposed.device

    def __len__(self) -> int:
        return self.transposed.shape[2]

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return _SeparateProducts(self.transposed, weights)


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

    def points(self) -> Points:
        return _SubspacePoints(self)

    def forward(self) -> Float[Tensor, "M D"]:
        return self.mixture @ self.transposed_basis.T

    def coordinates(self) -> nn.Parameter:
        return self.mixture

    def norms(self) -> Tensor:
        # Without the D-dimensional product where the basis is orthonormal and stays so.
        return _norms(self() if self.transposed_basis.requires_grad else self.mixture, dim=1)


class _SubspacePoints(Points):
    def __init__(self, inducing: SubspaceInducingInputs) -> None:
        self.inducing = inducing
        self.dtype, self.device = inducing.mixture.dtype, inducing.mixture.device

    def __len__(self) -> int:
        return len(self.inducing)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return (_CoordinateProducts if self.inducing.coordinate_weights else _SubspaceProducts)(self.inducing, weights)


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


class SparseInducingInputs(InducingInputs):
    """M points with S entries each at fixed places, so that a step costs the same however large D is (ML section 7).

    Only the entries on the supports are parameters. Both X Z' and Z Z' gather, for every entry of Z, one row of a table
    of the supports' columns, (M S) B and (M S) M multiplications; nothing of width D is touched.

    Args:
        columns: the features of every point, M x S, distinct within a row.
        start: the entries at the start, M x S.
        n_features: D.
        learn: whether the entries are learnt.
        normalise: keep every row at unit norm.
    """

    columns: Int[Tensor, "M S"]

    def __init__(
        self,
        columns: Int[Tensor, "M S"],
        start: Float[Tensor, "M S"],
        *,
        n_features: int,
        learn: bool = True,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.register_buffer("columns", columns.clone())
        self.entries = nn.Parameter(start.clone(), requires_grad=learn)
        self.normalise, self.n_features = normalise, n_features
        self.index_limits = {"columns": n_features}
        self._layout: _Layout | None = None
        if not start.is_meta:
            self.project()

    def __len__(self) -> int:
        return len(self.entries)

    def points(self) -> Points:
        if self._layout is None or not self._layout.is_of(self.columns):
            self._layout = _Layout(self.columns)
        return _SparsePoints(self.entries, self._layout)

    def forward(self) -> Float[Tensor, "M D"]:
        return self.entries.new_zeros(len(self), self.n_features).scatter(1, self.columns, self.entries)

    def coordinates(self) -> nn.Parameter:
        return self.entries

    def norms(self) -> Tensor:
        return _norms(self.entries, dim=1)


class _Layout:
    """The columns that occur in any support, numbered 0 to U - 1."""

    def __init__(self, columns: Int[Tensor, "M S"]) -> None:
        self._source = (columns, columns._version)
        self.columns = columns.reshape(-1)
        self.used, self.slots = torch.unique(self.columns, return_inverse=True)
        self.offsets = torch.arange(0, columns.numel() + 1, columns.shape[1], device=columns.device)
        self.rows = torch.arange(len(columns), device=columns.device).repeat_interleave(columns.shape[1])

    def is_of(self, columns: Tensor) -> bool:
        source, version = self._source
        return source is columns and version == columns._version

    def gathered(self, entries: Float[Tensor, " MS"], table: Float[Tensor, "U B"]) -> Float[Tensor, "M B"]:
        """sum_s entries_ms table[slot_ms], differentiable in the entries."""
        return nn.functional.embedding_bag(
            self.slots, table, self.offsets, mode="sum", per_sample_weights=entries, include_last_offset=True
        )

    def table_of_points(self, entries: Float[Tensor, " MS"]) -> Float[Tensor, "U M"]:
        """Z', the used columns of it, as a constant."""
        table = entries.new_zeros(len(self.used), len(self.offsets) - 1)
        table[self.slots, self.rows] = entries.detach()
        return table

    def table_of_inputs(self, x: Inputs) -> Float[Tensor, "U B"]:
        """X', the used columns of it."""
        if not isinstance(x, SparseRows):
            return x.T[self.used].contiguous()
        slots = torch.searchsorted(self.used, x.columns).clamp_(max=len(self.used) - 1)
        kept = self.used[slots] == x.columns
        table = x.values.new_zeros(len(self.used), x.shape[0])
        table[slots[kept], x.rows[kept]] = x.values[kept]
        return table


class _SparsePoints(Points):
    def __init__(self, entries: Float[Tensor, "M S"], layout: _Layout) -> None:
        self.entries, self.layout = entries, layout
        self.dtype, self.device = entries.dtype, entries.device

    def __len__(self) -> int:
        return len(self.entries)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return _SparseProducts(self.entries.reshape(-1), self.layout, weights)


class _SparseProducts(InnerProducts):
    def __init__(self, entries: Float[Tensor, " MS"], layout: _Layout, weights: Tensor) -> None:
        self.layout, self.weights = layout, weights
        self.weighted = entries * (weights.index_select(0, layout.columns) if len(weights) > 1 else weights)
        product = layout.gathered(self.weighted, layout.table_of_points(entries))
        # The same product with the factors exchanged carries the gradient of what is a constant table above.
        exchanged = layout.gathered(entries, layout.table_of_points(self.weighted))
        self.gram = (product + (exchanged - exchanged.detach()).T).double()

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        product = self.layout.gathered(self.weighted, self.layout.table_of_inputs(x))
        return product.T, weighted_square_norms(x, self.weights)
