from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import kstest

from extremegp.engine.normals import SEED_LIMIT, STREAM, _quantiles, seeded_normals, seeded_rows


def test_saved_models_depend_on_these_very_bits():
    """Where this fails, `STREAM` must be another number, and models that were saved must still get the old one."""
    assert STREAM == 1
    numbers = seeded_normals(5, (999, 7)).numpy()
    assert hashlib.blake2b(numbers.tobytes(), digest_size=8).hexdigest() == "419c25f4b5de05bf"
    last = seeded_normals(SEED_LIMIT - 1, (1, 3)).numpy()
    assert last.dtype == np.float32
    assert not np.array_equal(last, numbers[:1, :3])


def test_blocks_make_no_difference():
    n = 2 * (1 << 16) + 7
    np.testing.assert_array_equal(seeded_normals(3, (n, 1))[:1001, 0], seeded_normals(3, (1, 1001))[0])
    np.testing.assert_array_equal(seeded_normals(3, (1, n))[0, -7:], seeded_normals(3, (n, 1))[-7:, 0])


def test_the_quantiles_are_those_of_the_normal_distribution():
    ends = np.arange(1000, dtype=np.uint32)
    between = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    numbers = np.concatenate([ends, np.uint32(2**32 - 1) - ends, between])
    np.testing.assert_allclose(_quantiles(numbers), ndtri((numbers + 0.5) / 2**32), rtol=1e-14)


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_they_are_normal_and_independent(seed: int):
    numbers = seeded_normals(seed, (400, 500)).numpy().astype(np.float64)
    assert kstest(numbers.ravel(), "norm").pvalue > 1e-3
    covariance = numbers @ numbers.T / 500
    assert np.abs(covariance - np.eye(400)).max() < 6.5 / np.sqrt(500)
    assert abs((numbers.ravel()[1:] * numbers.ravel()[:-1]).mean()) < 4 / np.sqrt(numbers.size)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 1000])
def test_rows_by_themselves_are_those_of_the_whole_to_the_bit(width: int):
    whole = seeded_normals(5, (400, width))
    rows = [0, 1, 2, 3, 399, 7, 131]
    assert torch.equal(seeded_rows(5, rows, width), whole[rows])
    assert seeded_rows(5, [], width).shape == (0, width)
