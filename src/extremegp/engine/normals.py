"""Standard normal numbers that a seed gives back to the bit: on any machine, and with any version of what is used here.

The bits are Philox's (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), a stream that NumPy keeps.
What follows are sums, products, quotients and square roots in float64, one at a time, which IEEE 754 defines exactly,
as algorithm AS 241 has them (Wichura 1988, "The percentage points of the normal distribution"), with a logarithm of
our own, as those of mathematical libraries differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STREAM = 1
"""The version of the numbers: another algorithm is another number."""

SEED_LIMIT = 1 << 62

_BLOCK = 1 << 16
_LN2 = 0.6931471805599453
_CENTRE = (
    (
        3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
        4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3,
    ),
    (
        1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
        2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3,
    ),
)  # fmt: skip
_TAIL = (
    (
        1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
        1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4,
    ),
    (
        1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
        1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9,
    ),
)  # fmt: skip


def seeded_normals(seed: int, shape: tuple[int, int]) -> Tensor:
    """Independent standard normal numbers, float32, in the order of rows.

    Args:
        seed: decides them, from 0 to below 2^62.
        shape: of the result.
    """
    drawn = np.empty(shape[0] * shape[1], dtype=np.float32)
    bits = np.random.Philox(key=seed)
    for start in range(0, len(drawn), 2 * _BLOCK):
        block = drawn[start : start + 2 * _BLOCK]
        halves = bits.random_raw(-(-len(block) // 2)).astype("<u8").view("<u4")[: len(block)]
        block[:] = _quantiles(halves)
    return torch.from_numpy(drawn.reshape(shape))


def seeded_rows(seed: int, rows: Sequence[int], width: int) -> Tensor:
    """Some of the rows of what `seeded_normals` gives, without the others.

    Args:
        seed: as there.
        rows: which.
        width: of the whole.
    """
    numbers = np.empty((len(rows), width), dtype=np.uint32)
    for place, row in enumerate(rows):
        word, odd = divmod(row * width, 2)
        bits = np.random.Philox(key=seed)
        # A count of the generator makes four words.
        bits.advance(word // 4)
        words = bits.random_raw(word % 4 + (odd + width + 1) // 2)[word % 4 :]
        numbers[place] = words.astype("<u8").view("<u4")[odd : odd + width]
    return torch.from_numpy(_quantiles(numbers.ravel()).astype(np.float32).reshape(len(rows), width))


def _quantiles(numbers: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Of the normal distribution, at (k + 1/2) / 2^32."""
    p = (numbers + 0.5) * 2.0**-32
    q = p - 0.5
    r = 0.180625 - q * q
    found: NDArray[np.float64] = q * _polynomial(_CENTRE[0], r) / _polynomial(_CENTRE[1], r)
    outer = np.flatnonzero(np.abs(q) > 0.425)
    r = np.sqrt(-_log(np.minimum(p[outer], 1.0 - p[outer]))) - 1.6
    found[outer] = np.copysign(_polynomial(_TAIL[0], r) / _polynomial(_TAIL[1], r), q[outer])
    return found


def _polynomial(coefficients: Sequence[float], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """sum_i coefficients_i x^i."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total


def _log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """With x = m 2^e and s = (m - 3/4) / (m + 3/4), e log 2 + log 3/4 + 2 artanh s."""
    mantissa, exponent = np.frexp(x)
    s = (mantissa - 0.75) / (mantissa + 0.75)
    # A power series, |s| being at most 1/5.
    series = _polynomial([1 / (2 * k + 1) for k in range(13)], s * s)
    found: NDArray[np.float64] = exponent * _LN2 - 0.2876820724517809 + 2.0 * s * series
    return found
