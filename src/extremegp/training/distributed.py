"""The processes of a training run, on one machine or on many, and what they say to each other (torch.distributed)."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from extremegp.errors import ExtremeGPError, SettingsError

T = TypeVar("T")

_BUCKET = 1 << 20  # elements from which on a tensor is worth a collective call of its own


class ProcessLostError(ExtremeGPError):
    """Another process of the run ended or hangs."""

    def __init__(self, reason: str, *, checkpoint: str | None = None) -> None:
        resume = f"the same command resumes from {checkpoint}" if checkpoint else "nothing was saved yet"
        super().__init__(f"another process of this run ended ({reason}); {resume}")
        self.reason = reason


@contextmanager
def _with_peers() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # Without the place in the source of gloo, and without its advice.
        reason = re.sub(r"^\[\S+:\d+\] ", "", str(error).strip()).splitlines() or ["no reason given"]
        raise ProcessLostError(reason[0].split(". ")[0]) from error


@dataclass(frozen=True)
class World:
    """The processes of a run; every one calls the same methods in the same order. One process alone calls nobody.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
        local_size: how many are on this machine.
        device: where this one computes.
    """

    rank: int = 0
    size: int = 1
    local_size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009

    @property
    def leads(self) -> bool:
        """Whether this process is the one that prints, and writes files."""
        return self.rank == 0

    def parts(self, total: int) -> list[int]:
        """How many of `total` things in a row each process has: as many as others, or one more."""
        return [stop - start for start, stop in pairwise(self._bounds(total))]

    def own(self, total: int) -> slice:
        """Which of `total` things in a row this process has."""
        return slice(*self._bounds(total)[self.rank : self.rank + 2])

    def _bounds(self, total: int) -> list[int]:
        return [total * rank // self.size for rank in range(self.size + 1)]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For every flag, whether some process raises it."""
        return tuple(most > 0 for most in self.most(*map(float, flags)))

    def most(self, *values: float) -> tuple[float, ...]:
        """The largest of every value over the processes."""
        if self.size == 1:
            return values
        held = torch.tensor(values, dtype=torch.float64)
        with _with_peers():
            dist.all_reduce(held, dist.ReduceOp.MAX)
        return tuple(held.tolist())

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype by their sums over the processes; small ones travel together."""
        if self.size == 1:
            return
        small = [tensor for tensor in tensors if tensor.numel() < _BUCKET]
        with _with_peers():
            for tensor in tensors:
                if tensor.numel() >= _BUCKET:
                    dist.all_reduce(tensor)
            if small:
                together = torch.cat([tensor.reshape(-1) for tensor in small])
                dist.all_reduce(together)
                sizes = [tensor.numel() for tensor in small]
                for tensor, total in zip(small, torch.split(together, sizes), strict=True):
                    tensor.copy_(total.view_as(tensor))

    def sparse_sum(self, gradient: Tensor) -> Tensor:
        """The sum over the processes of tensors that are sparse in their first dimension."""
        if self.size == 1:
            return gradient
        gradient = gradient.coalesce()
        most = int(self.most(float(gradient._nnz()))[0])
        rows, values = gradient.indices()[0], gradient.values()
        missing = most - len(rows)
        # Pads add nothing to the first row.
        rows = torch.cat([rows, rows.new_zeros(missing)])
        values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        every = [self.rows(part, most * self.size) for part in (rows, values)]
        return torch.sparse_coo_tensor(every[0][None], every[1], gradient.shape, check_invariants=False).coalesce()

    def rows(self, part: Float[Tensor, "n ..."], total: int) -> Float[Tensor, "total ..."]:
        """The rows of all processes, one after the other, on every process; `part` has those of `own(total)`."""
        if self.size == 1:
            return part
        gathered = list(part.new_empty((self.size, max(self.parts(total)), *part.shape[1:])))
        with _with_peers():
            dist.all_gather(gathered, self._padded(part, total))
        return torch.cat([rows[:n] for rows, n in zip(gathered, self.parts(total), strict=True)])

    def rows_at_first(self, part: Float[Tensor, "n ..."], total: int) -> Float[Tensor, "total ..."] | None:
        """`rows` in the memory of the first process; None on all others."""
        if self.size == 1:
            return part
        padded = self._padded(part.detach().cpu(), total)
        gathered = [torch.empty_like(padded) for _ in range(self.size)] if self.leads else None
        with _with_peers():
            dist.gather(padded, gathered)
        if gathered is None:
            return None
        return torch.cat([rows[:n] for rows, n in zip(gathered, self.parts(total), strict=True)])

    def _padded(self, part: Tensor, total: int) -> Tensor:
        """Collective calls want parts of one length."""
        most = max(self.parts(total))
        return part.contiguous() if len(part) == most else torch.cat([part, part.new_zeros(1, *part.shape[1:])])

    def differentiable_rows(self, part: Float[Tensor, "n C"], total: int) -> Float[Tensor, "total C"]:
        """`rows`, through which the gradients of all processes go back to where the rows come from."""
        whole: Tensor = _Rows.apply(part, self, total)
        return whole

    def of_first(self, tensor: Tensor) -> None:
        """Replace a tensor by that of the first process."""
        if self.size > 1:
            with _with_peers():
                dist.broadcast(tensor, 0)

    def said_by_first(self, what: T) -> T:
        """A plain object of the first process."""
        if self.size == 1:
            return what
        held = [what]
        with _with_peers():
            dist.broadcast_object_list(held, 0, device=torch.device("cpu"))
        return held[0]

    def said_by_each(self, what: T) -> list[T]:
        """The plain objects of all processes, in their order."""
        held = [what] * self.size
        if self.size > 1:
            with _with_peers():
                dist.all_gather_object(held, what)
        return held

    def together(self, work: Callable[[], T]) -> T:
        """What some work of every process gives.

        Raises:
            ExtremeGPError: the work of some process raised it; all processes raise that of the first such.
        """
        if self.size == 1:
            return work()
        result, failure = None, None
        try:
            result = work()
        except ExtremeGPError as error:
            failure = error
        failures: list[ExtremeGPError | None] = [None] * self.size
        failed = self.any(failure is not None)[0]
        if failed:
            with _with_peers():
                dist.all_gather_object(failures, failure)
            raise next(error for error in failures if error is not None)
        return result  # type: ignore[return-value]


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, world: World, total: int) -> Tensor:
        ctx.world, ctx.total = world, total
        return world.rows(part, total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        total = grad.clone(memory_format=torch.contiguous_format)
        ctx.world.add([total])
        return total[ctx.world.own(ctx.total)], None, None


def world(device: torch.device | str = "cpu", *, timeout: float = 1800.0) -> World:
    """The processes that this one is among: those that `torchrun` started, or itself alone.

    Args:
        device: where to compute; of "cuda" every process of a machine takes a GPU of its own.
        timeout: seconds to wait for another process before it counts as lost; the first call decides.

    Raises:
        SettingsError: the environment names processes that cannot be reached, or a machine has fewer GPUs than
            processes.
    """
    device, environment = torch.device(device), os.environ
    if not dist.is_available() or not (dist.is_initialized() or {"RANK", "WORLD_SIZE"} <= environment.keys()):
        return World(device=device)
    if not dist.is_initialized() and environment["WORLD_SIZE"] == "1":
        return World(device=device)
    if device.type == "cuda" and device.index is None:
        local = int(environment.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise SettingsError(
                f"process {local} of this machine has no GPU: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs, or set device='cpu'"
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        try:
            # Small things and what goes to files travel by gloo whatever the device.
            dist.init_process_group(
                "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=timedelta(seconds=timeout)
            )
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise SettingsError(
                f"RANK and WORLD_SIZE are set, but the processes cannot meet ({reason}); start them with torchrun, "
                "or unset both"
            ) from error
        atexit.register(_leave)
    size = dist.get_world_size()
    return World(dist.get_rank(), size, int(environment.get("LOCAL_WORLD_SIZE", "1")), device)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
