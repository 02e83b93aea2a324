from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extremegp.training.schedule import batches_per_epoch, epoch_batches, one_cycle


def test_one_cycle_starts_low_peaks_at_one_and_ends_lower():
    settings = {"warmup": 0.25, "start": 0.1, "end": 0.01}
    assert one_cycle(0.0, **settings) == pytest.approx(0.1)
    assert one_cycle(0.25, **settings) == pytest.approx(1.0)
    assert one_cycle(1.0, **settings) == pytest.approx(0.01)


@pytest.mark.parametrize("warmup", [0.0, 0.3, 1.0])
def test_one_cycle_rises_over_the_warmup_falls_after_it_and_never_jumps(warmup: float):
    grid = np.linspace(0, 1, 1001)
    values = np.array([one_cycle(float(t), warmup=warmup) for t in grid])
    steps = np.diff(values)
    assert (steps[grid[1:] < warmup] > 0).all()
    assert (steps[grid[:-1] >= warmup] < 0).all()
    assert np.abs(steps).max() < 0.01
    assert ((values > 0) & (values <= 1)).all()


@given(st.integers(1, 200), st.integers(1, 250), st.integers(0, 5), st.integers(0, 5))
def test_batches_partition_the_rows_into_nearly_equal_parts(n_rows: int, batch_size: int, seed: int, epoch: int):
    batches = epoch_batches(n_rows, batch_size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches)) == list(range(n_rows))
    sizes = [len(batch) for batch in batches]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert len(batches) == batches_per_epoch(n_rows, batch_size)
    again = epoch_batches(n_rows, batch_size, seed=seed, epoch=epoch)
    assert all(np.array_equal(first, second) for first, second in zip(batches, again, strict=True))


def test_epochs_and_seeds_shuffle_differently():
    orders = [
        np.concatenate(epoch_batches(50, 10, seed=seed, epoch=epoch)).tolist() for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4
    assert list(range(50)) not in orders


@pytest.mark.parametrize("block", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("n_rows", [1, 10, 500, 501])
def test_an_order_in_blocks_has_every_row_once_and_is_a_function_of_seed_and_epoch(n_rows: int, block: int):
    orders = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        batches = epoch_batches(n_rows, 8, seed=seed, epoch=epoch, block=block)
        again = epoch_batches(n_rows, 8, seed=seed, epoch=epoch, block=block)
        assert all(np.array_equal(first, second) for first, second in zip(batches, again, strict=True))
        assert {len(batch) for batch in batches} <= {n_rows // len(batches), n_rows // len(batches) + 1}
        orders[seed, epoch] = np.concatenate(batches)
        assert sorted(orders[seed, epoch]) == list(range(n_rows))
    if n_rows >= 500:
        assert len({tuple(order) for order in orders.values()}) == 3


def test_rows_of_a_block_stay_near_each_other_in_an_order_of_their_own():
    block, n_rows = 10, 4000
    order = np.concatenate(epoch_batches(n_rows, 8, seed=0, epoch=0, block=block))
    places = np.argsort(order).reshape(-1, block)
    spread = places.max(axis=1) - places.min(axis=1)
    assert spread.max() < 16 * block
    assert np.median(spread) > 4 * block
    # Blocks come from everywhere.
    assert np.corrcoef(places.mean(axis=1), np.arange(len(places)))[0, 1] < 0.2
