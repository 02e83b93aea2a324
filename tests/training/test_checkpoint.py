from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from extremegp.errors import ModelFormatError
from extremegp.storage.tensors import read_tensors, write_tensors
from extremegp.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from extremegp.training.row_adam import RowAdam

PROGRESS = Progress(
    step_scales=[1.0],
    step=7,
    total_steps=20,
    bound_sum=-3.5,
    seconds=1.25,
    best_score=0.5,
    best_epoch=1,
    history=[{"epoch": 1.0}],
)


def _run(seed: int, steps: int) -> tuple[torch.nn.Linear, torch.optim.Adam]:
    torch.manual_seed(seed)
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
    for _ in range(steps):
        _step(module, optimizer)
    return module, optimizer


def _step(module: torch.nn.Linear, optimizer: torch.optim.Adam) -> None:
    optimizer.zero_grad()
    module(torch.arange(3.0)).square().sum().backward()
    optimizer.step()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    module, optimizer = _run(0, 4)
    best = {name: tensor + 1 for name, tensor in module.state_dict().items()}
    path = tmp_path / "run.ckpt"
    save_checkpoint(path, model=module, optimizers=[optimizer], best=best, progress=PROGRESS, fingerprint="f")
    return path


def _load(path: Path, fingerprint: str = "f") -> tuple[torch.nn.Linear, torch.optim.Adam, Progress, dict[str, Any]]:
    module, optimizer = _run(1, 0)
    progress, best = load_checkpoint(path, model=module, optimizers=[optimizer], fingerprint=fingerprint)
    return module, optimizer, progress, best


def test_everything_comes_back(saved: Path):
    original, original_optimizer = _run(0, 4)
    module, optimizer, progress, best = _load(saved)
    assert asdict(progress) == asdict(PROGRESS)
    for name, tensor in original.state_dict().items():
        assert torch.equal(module.state_dict()[name], tensor)
        assert torch.equal(best[name], tensor + 1)
    # The next steps are the same to the bit only if the moments are.
    for _ in range(3):
        _step(original, original_optimizer)
        _step(module, optimizer)
    assert torch.equal(module.weight, original.weight)


def test_another_run_is_refused(saved: Path):
    with pytest.raises(ModelFormatError, match="other data or settings"):
        _load(saved, "g")


def test_a_file_cut_short_is_refused(saved: Path):
    content = saved.read_bytes()
    for length in range(0, len(content), 97):
        saved.write_bytes(content[:length])
        with pytest.raises(ModelFormatError):
            _load(saved)


def test_a_tensor_file_that_is_no_checkpoint_is_refused(tmp_path: Path):
    write_tensors(tmp_path / "t", {"a": torch.zeros(1)}, {})
    with pytest.raises(ModelFormatError, match="not a checkpoint"):
        _load(tmp_path / "t")


NAN = torch.full((2,), float("nan"))


@pytest.mark.parametrize(
    ("tensors", "progress"),
    [
        ({"model.bias": None}, {}),
        ({"model.bias": torch.zeros(3)}, {}),
        ({"model.bias": NAN}, {}),
        ({"model.evil": torch.zeros(1)}, {}),
        ({"best.bias": None}, {}),
        ({"best.bias": torch.zeros(3)}, {}),
        ({"best.bias": NAN}, {}),
        ({"optimizer0.0.exp_avg": None}, {}),
        ({"optimizer0.0.exp_avg": torch.zeros(1)}, {}),
        ({"optimizer0.0.step": torch.zeros(2)}, {}),
        ({"optimizer0.1.exp_avg": NAN}, {}),
        ({"optimizer0.9.exp_avg": torch.zeros(1)}, {}),
        ({"optimizer0.x.exp_avg": torch.zeros(1)}, {}),
        ({}, {"step": None}),
        ({}, {"step": "7"}),
        ({}, {"step": -1}),
        ({}, {"step": 21}),
        ({}, {"total_steps": 1.5}),
        ({}, {"bound_sum": "x"}),
        ({}, {"seconds": "x"}),
        ({}, {"best_score": "x"}),
        ({}, {"best_epoch": "x"}),
        ({}, {"history": 3}),
        ({}, {"evil": 3}),
    ],
    ids=str,
)
def test_a_checkpoint_that_was_altered_is_refused(saved: Path, tensors: dict[str, Any], progress: dict[str, Any]):
    old_tensors, header = read_tensors(saved)
    new = {name: tensor for name, tensor in {**old_tensors, **tensors}.items() if tensor is not None}
    header["progress"] = {
        name: value for name, value in {**header["progress"], **progress}.items() if value is not None
    }
    write_tensors(saved, new, header)
    with pytest.raises(ModelFormatError):
        _load(saved)


def _two_optimizers(seed: int, steps: int) -> tuple[torch.nn.Module, list[torch.optim.Optimizer]]:
    """A narrow parameter under Adam and a wide one under RowAdam, of which every step touches two rows."""
    module = torch.nn.ParameterDict({"narrow": torch.full((2,), float(seed)), "wide": torch.full((9, 3), float(seed))})
    optimizers = [
        torch.optim.Adam([module["narrow"]], lr=0.1, fused=True),
        RowAdam([module["wide"]], lr=0.1),
    ]
    for step in range(steps):
        _row_step(module, optimizers, step)
    return module, optimizers


def _row_step(module: torch.nn.Module, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    rows, gradient = torch.tensor([[step % 4, 4 + step % 5]]), torch.arange(6.0).view(2, 3) + step
    module["narrow"].grad = torch.tensor([1.0, -step])
    module["wide"].grad = torch.sparse_coo_tensor(rows, gradient, (9, 3), is_coalesced=True, check_invariants=True)
    for optimizer in optimizers:
        optimizer.step()


def test_moments_and_step_counts_of_rows_come_back_too(tmp_path: Path):
    progress = Progress(step=7, total_steps=20, step_scales=[1.0, 0.3])
    original, optimizers = _two_optimizers(0, 7)
    save_checkpoint(tmp_path / "c", model=original, optimizers=optimizers, best={}, progress=progress, fingerprint="f")
    module, fresh = _two_optimizers(1, 2)
    load_checkpoint(tmp_path / "c", model=module, optimizers=fresh, fingerprint="f")
    for step in range(7, 12):
        _row_step(original, optimizers, step)
        _row_step(module, fresh, step)
    assert torch.equal(module["wide"], original["wide"])
    assert torch.equal(module["narrow"], original["narrow"])
    tensors, header = read_tensors(tmp_path / "c")
    write_tensors(tmp_path / "c", {**tensors, "optimizer1.0.step": torch.tensor(7.0)}, header)
    with pytest.raises(ModelFormatError, match="wrong shape"):
        load_checkpoint(tmp_path / "c", model=module, optimizers=fresh, fingerprint="f")


def test_without_validation_there_are_no_best_parameters(tmp_path: Path):
    module, optimizer = _run(0, 1)
    progress = Progress(step=1, total_steps=2, step_scales=[1.0])
    save_checkpoint(tmp_path / "c", model=module, optimizers=[optimizer], best={}, progress=progress, fingerprint="f")
    _, _, restored, best = _load(tmp_path / "c")
    assert best == {}
    assert restored == progress
