"""What a training run will need, worked out before it starts."""

from __future__ import annotations

from pathlib import Path

import psutil

from extremegp.errors import MemoryPlanError

_CGROUP = Path("/sys/fs/cgroup")


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
    *,
    n_features: int,
    n_labels: int,
    n_latent: int,
    n_inducing: int,
    batch_size: int,
    posterior: str,
    linear_term: bool,
    n_stored: int,
    item_size: int = 4,
) -> int:
    """Bytes that training takes at its peak, within a factor of two.

    Every parameter is held with its gradient and two moments, arrays of the batch and the weighted inducing inputs with
    their gradients; K_Z and its factors are float64.

    Args:
        n_features: D.
        n_labels: K.
        n_latent: P.
        n_inducing: M.
        batch_size: B.
        posterior: "full" and "full-u" hold P factors of M x M and arrays of P x B x M.
        linear_term: whether D x P linear coefficients are learnt.
        n_stored: stored entries of inputs and labels.
        item_size: bytes of a number of the wide arrays.
    """
    d, k, p, m, b = n_features, n_labels, n_latent, n_inducing, batch_size
    full = posterior.startswith("full")
    parameters = d * m + k * (p + 1) + p * m + (p * m * m if full else p * m + m * m) + (d * p if linear_term else 0)
    batch = 4 * b * m + 6 * b * p + (3 * p * b * m if full else 0) + 6 * min(b * k, 1 << 20)
    return item_size * (4 * parameters + 2 * batch + 3 * d * m) + 8 * 12 * m * m + 12 * n_stored


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
