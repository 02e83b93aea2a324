from __future__ import annotations

import torch

from extremegp.inducing import FreeInducingInputs


def _start() -> torch.Tensor:
    return torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])


def test_learnt_inputs_start_and_stay_at_unit_norm():
    inducing = FreeInducingInputs(_start())
    expected = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
    torch.testing.assert_close(inducing(), expected)
    assert len(inducing) == 3
    with torch.no_grad():
        inducing.transposed.mul_(5.0)
    inducing.project()
    torch.testing.assert_close(inducing(), expected)


def test_without_normalisation_projecting_changes_nothing():
    inducing = FreeInducingInputs(_start(), normalise=False)
    inducing.project()
    assert torch.equal(inducing(), _start())


def test_fixed_inputs_are_no_learnt_parameter_and_stay_as_given():
    inducing = FreeInducingInputs(_start(), learn=False)
    inducing.project()
    assert torch.equal(inducing(), _start())
    assert [parameter.requires_grad for parameter in inducing.parameters()] == [False]


def test_a_row_of_zeros_stays_finite():
    inducing = FreeInducingInputs(torch.zeros(2, 3))
    inducing.project()
    assert torch.equal(inducing(), torch.zeros(2, 3))


def test_the_start_is_copied():
    start = _start()
    FreeInducingInputs(start)
    assert torch.equal(start, _start())


def test_gradients_reach_the_inputs():
    inducing = FreeInducingInputs(_start())
    (inducing() * torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert inducing.transposed.grad is not None
    assert torch.equal(inducing.transposed.grad, torch.arange(6.0).reshape(3, 2).T)
