"""Where the inducing inputs live (T 2.5; S 2.2, A.6)."""

from extremegp.engine.inducing.base import InducingInputs
from extremegp.engine.inducing.blocks import BlockInducingInputs
from extremegp.engine.inducing.free import FreeInducingInputs, SeparateInducingInputs
from extremegp.engine.inducing.sparse import SparseInducingInputs
from extremegp.engine.inducing.subspace import SubspaceInducingInputs

__all__ = [
    "BlockInducingInputs",
    "FreeInducingInputs",
    "InducingInputs",
    "SeparateInducingInputs",
    "SparseInducingInputs",
    "SubspaceInducingInputs",
]
