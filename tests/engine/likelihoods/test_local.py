from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, sparse_rows

from extremegp.engine.likelihoods.local import AmortisedLocals, StoredLocals
from extremegp.engine.sparse import SparseRows


def test_outputs_start_at_the_constants_and_do_not_stay_there():
    network = AmortisedLocals(6, (2.5, 0.0), hidden=8).double()
    x = torch.from_numpy(random_inputs(5, 6))
    expected = torch.tensor([2.5, 0.0], dtype=torch.float64).expand(5, 2)
    torch.testing.assert_close(network(x), expected)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.03)
    target = torch.stack([x[:, 0], -x[:, 1]], 1)
    for _ in range(400):
        optimiser.zero_grad()
        (network(x) - target).square().mean().backward()
        optimiser.step()
    torch.testing.assert_close(network(x), target, atol=0.05, rtol=0)


def test_sparse_and_dense_inputs_give_the_same_outputs_and_gradients():
    network = AmortisedLocals(6, (1.0,), hidden=8).double()
    with torch.no_grad():
        network.output_weights.normal_()
    x = random_inputs(5, 6)
    gradients = []
    for inputs in (torch.from_numpy(x), sparse_rows(x)):
        network.zero_grad()
        network(inputs).sin().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_hidden_units_start_in_their_range_for_inputs_of_any_size(scale: float):
    network = AmortisedLocals(784, (0.0,))
    with torch.no_grad():
        network.output_weights.normal_(std=1 / 8)
        network.output_bias.zero_()
    x = scale * torch.randn(200, 784, generator=torch.Generator().manual_seed(1))
    spread = network(x).std().item()
    assert 0.2 < spread < 1.5 if scale >= 1 else spread < 0.2


def test_a_million_sparse_features_cost_their_stored_entries_and_no_dense_row():
    network = AmortisedLocals(1_000_000, (0.0,), hidden=4)
    matrix = scipy.sparse.csr_matrix(
        (np.ones(30, np.float32), np.arange(30) * 33_000, np.arange(0, 31, 3)), shape=(10, 1_000_000)
    )
    assert network(SparseRows.from_scipy(matrix)).shape == (10, 1)


def test_the_same_network_is_drawn_every_time():
    first, again = (AmortisedLocals(5, (0.0,)) for _ in range(2))
    other = AmortisedLocals(5, (0.0,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.input_weights, again.input_weights)
    assert not torch.equal(first.input_weights, other.input_weights)


def test_stored_rows_move_alone_and_steps_are_those_of_a_running_mean():
    stored = StoredLocals(6, (2.0, 0.0), least_step=0.3)
    rows = torch.tensor([4, 1])
    assert stored.steps(rows).squeeze(1).tolist() == [1.0, 1.0]
    stored.store(rows, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert stored(torch.tensor([1, 0, 4])).tolist() == [[3.0, 4.0], [2.0, 0.0], [1.0, 2.0]]
    stored.store(rows[:1], torch.zeros(1, 2))
    assert stored.steps(torch.tensor([4, 1, 0])).squeeze(1).tolist() == pytest.approx([1 / 3, 1 / 2, 1.0])
    stored.store(rows[:1], torch.zeros(1, 2))
    assert stored.steps(rows[:1]).item() == pytest.approx(0.3)


@pytest.mark.parametrize("module", [AmortisedLocals(3, (math.log(9.0), 0.0)), StoredLocals(4, (math.log(9.0), 0.0))])
def test_state_is_finite_and_survives_saving_and_double(module: torch.nn.Module):
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert state
    assert all(tensor.isfinite().all() for tensor in state.values())
    module.double()
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in module.state_dict().values())
    module.load_state_dict(state)
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, state[name].to(tensor.dtype))
