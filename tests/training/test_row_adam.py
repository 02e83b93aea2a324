from __future__ import annotations

import pytest
import torch

from extremegp.training.row_adam import RowAdam

N_ROWS, WIDTH = 6, 3


def _gradients(count: int, *shape: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def _start(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel(), dtype=torch.float64).view(shape))


def _sparse(rows: list[int], values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, like.shape, is_coalesced=True, check_invariants=True)


@pytest.mark.parametrize("shape", [(N_ROWS, WIDTH), (N_ROWS,)])
@pytest.mark.parametrize("settings", [{}, {"betas": (0.5, 0.9), "eps": 1e-3}])
def test_with_gradients_for_every_row_it_is_adam(shape: tuple[int, ...], settings: dict[str, object]):
    ours, theirs = _start(*shape), _start(*shape)
    rows = RowAdam([ours], lr=0.1, **settings)
    dense = torch.optim.Adam([theirs], lr=0.1, **settings)
    for rate, gradient in zip((0.1, 0.3, 0.2, 0.05, 0.1), _gradients(5, *shape), strict=True):
        for optimizer in (rows, dense):
            optimizer.param_groups[0]["lr"] = rate
        ours.grad, theirs.grad = _sparse(list(range(N_ROWS)), gradient, ours), gradient
        rows.step()
        dense.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_row_moves_as_adam_would_on_the_steps_that_touch_it_and_else_keeps_still():
    parameter = _start(N_ROWS, WIDTH)
    optimizer = RowAdam([parameter], lr=0.1)
    touched = [[0, 2], [2, 5], [0, 1, 2], [1], [2, 5]]
    gradients = _gradients(len(touched), N_ROWS, WIDTH)
    for rows, gradient in zip(touched, gradients, strict=True):
        before = parameter.detach().clone()
        parameter.grad = _sparse(rows, gradient[rows], parameter)
        optimizer.step()
        others = [row for row in range(N_ROWS) if row not in rows]
        assert torch.equal(parameter[others], before[others])
        assert (parameter[rows] != before[rows]).all()
    for row in range(N_ROWS):
        alone = torch.nn.Parameter(_start(N_ROWS, WIDTH)[row].detach().clone())
        adam = torch.optim.Adam([alone], lr=0.1)
        for rows, gradient in zip(touched, gradients, strict=True):
            if row in rows:
                alone.grad = gradient[row]
                adam.step()
        torch.testing.assert_close(parameter[row], alone, rtol=1e-12, atol=1e-14)
    assert optimizer.state[parameter]["step"].tolist() == [2, 2, 4, 0, 0, 2]


def test_a_row_touched_late_takes_a_first_step_of_the_learning_rate():
    parameter = torch.nn.Parameter(torch.zeros(2, 1))
    optimizer = RowAdam([parameter], lr=0.1)
    for _ in range(500):
        parameter.grad = _sparse([0], torch.ones(1, 1), parameter)
        optimizer.step()
    parameter.grad = _sparse([1], torch.full((1, 1), 7.0), parameter)
    optimizer.step()
    assert float(parameter.detach()[1]) == pytest.approx(-0.1, rel=1e-6)


def test_parameters_without_gradients_and_steps_without_rows_change_nothing():
    first, second = _start(N_ROWS, WIDTH), _start(N_ROWS)
    optimizer = RowAdam([{"params": [first]}, {"params": [second]}], lr=0.1)
    second.grad = _sparse([], torch.zeros(0, dtype=torch.float64), second)
    optimizer.step()
    assert torch.equal(first, _start(N_ROWS, WIDTH))
    assert torch.equal(second, _start(N_ROWS))


def test_half_the_memory_moves_rows_as_full_moments_do_within_rounding():
    ours, theirs = _start(N_ROWS, WIDTH), _start(N_ROWS, WIDTH)
    half, dense = RowAdam([ours], lr=0.1, state="half"), torch.optim.Adam([theirs], lr=0.1)
    for gradient in _gradients(6, N_ROWS, WIDTH):
        ours.grad, theirs.grad = _sparse(list(range(N_ROWS)), gradient, ours), gradient
        half.step()
        dense.step()
    # bfloat16 keeps eight bits.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=6 * 0.1 * 2**-7)
    assert {half.state[ours][name].dtype for name in ("exp_avg", "exp_avg_sq")} == {torch.bfloat16}


@pytest.mark.parametrize("later", [0.0, 0.9, 1.1, 10.0])
def test_in_half_the_memory_second_moments_follow_slow_changes_as_full_ones_do(later: float):
    ours, theirs = _start(N_ROWS, WIDTH), _start(N_ROWS, WIDTH)
    half, full = RowAdam([ours], lr=0.1, state="half"), RowAdam([theirs], lr=0.1)
    scales = torch.linspace(0.1, 3.0, N_ROWS * WIDTH, dtype=torch.float64).view(N_ROWS, WIDTH)
    for step in range(1200):
        for parameter, optimizer in ((ours, half), (theirs, full)):
            gradient = scales * (1.0 if step < 200 else later)
            parameter.grad = _sparse(list(range(N_ROWS)), gradient, parameter)
            optimizer.step()
    # Rounded to the nearest, they would not fall at all.
    found, expected = (optimizer.state[p]["exp_avg_sq"].double() for p, optimizer in ((ours, half), (theirs, full)))
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


def test_of_a_vector_both_states_are_the_same():
    full, half = _start(N_ROWS), _start(N_ROWS)
    optimizers = RowAdam([full], lr=0.1), RowAdam([half], lr=0.1, state="half")
    for gradient in _gradients(4, 2):
        for parameter, optimizer in zip((full, half), optimizers, strict=True):
            parameter.grad = _sparse([1, 4], gradient, parameter)
            optimizer.step()
    assert torch.equal(full, half)


@pytest.mark.parametrize("state", ["full", "half"])
def test_what_is_kept_comes_back_bit_by_bit(state: str):
    first, second = _start(N_ROWS, WIDTH), _start(N_ROWS, WIDTH)
    one, other = (RowAdam([parameter], lr=0.1, state=state) for parameter in (first, second))
    gradients = _gradients(6, 2, WIDTH)
    for number, gradient in enumerate(gradients):
        if number == 3:
            with torch.no_grad():
                second.copy_(first)
            other.load_state_dict(one.state_dict())
            other.state[second] = {name: tensor.clone() for name, tensor in other.state[second].items()}
        for parameter, optimizer in ((first, one), (second, other))[: 1 + (number >= 3)]:
            parameter.grad = _sparse([1, 4], gradient, parameter)
            optimizer.step()
    assert torch.equal(first, second)
    layout = {name: (tensor.shape, tensor.dtype) for name, tensor in other.state[second].items()}
    assert layout == other.layout(second)


def test_a_dense_gradient_is_refused():
    parameter = _start(N_ROWS, WIDTH)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="coalesce"):
        RowAdam([parameter], lr=0.1).step()


def test_the_closure_of_the_interface_is_evaluated_with_gradients():
    parameter = _start(N_ROWS, WIDTH)
    optimizer = RowAdam([parameter], lr=0.1)

    def closure() -> float:
        loss = torch.nn.functional.embedding(torch.tensor([3]), parameter, sparse=True).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == pytest.approx(float(_start(N_ROWS, WIDTH)[3].sum().detach()))
    assert not torch.equal(parameter[3], _start(N_ROWS, WIDTH)[3])
