"""What is trained on one device is what is trained on another, and what was saved on one loads on the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import backend_registration

from extremegp import load
from extremegp.engine.linalg import tensor_float32
from tests.pretend_device import CASES, CLASSIFIERS, LABELS, fitted, predictions

ROOT = Path(__file__).parents[1]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DISGUISE = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="needs a PyTorch that takes devices written in Python",
)
# Other cases draw random numbers, which are others on another device, or choose labels by what rounding may exchange.
CHANCE = ("classes, softmax of a factor model", "labels, hard")
DETERMINISTIC = [case for case in (*LABELS, *CLASSIFIERS, "sequences, points") if case not in CHANCE]


@pytest.fixture(scope="module")
def wrong() -> dict[str, str]:
    """What went wrong on a device that is the CPU in disguise, by case."""
    program = Path(__file__).with_name("pretend_device.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@DISGUISE
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_tensor_of_the_cpu_meets_one_of_the_device(wrong: dict[str, str], case: str) -> None:
    assert case not in wrong, wrong[case]


@GPU
@pytest.mark.parametrize("case", DETERMINISTIC)
def test_a_gpu_trains_what_the_cpu_trains(case: str, tmp_path: Path) -> None:
    here, there = fitted(case, "cpu"), fitted(case, "cuda")
    assert all(parameter.is_cuda for parameter in there.model_.parameters())
    there.save(tmp_path / "model")
    moved = load(tmp_path / "model", device="cpu")
    for on_cpu, on_gpu, after_moving in zip(*map(predictions, (here, there, moved)), strict=True):
        np.testing.assert_allclose(after_moving, on_gpu, rtol=1e-3, atol=1e-4)
        # Training adds up in another order, and products with loadings are in TF32.
        np.testing.assert_allclose(on_gpu, on_cpu, rtol=3e-2, atol=3e-3)


@GPU
def test_only_products_inside_the_block_are_rounded_to_tf32() -> None:
    a, b = torch.rand(2, 256, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = (a.double() @ b.double()).float()
    with tensor_float32(a.device):
        rounded = a @ b
    assert (a @ b - exact).abs().max() < 1e-4 < (rounded - exact).abs().max() < 0.1


def test_tf32_ends_with_its_block_and_leaves_other_devices_alone() -> None:
    matmul = torch.backends.cuda.matmul
    assert not matmul.allow_tf32
    with tensor_float32(torch.device("cpu")):
        assert not matmul.allow_tf32

    def fails() -> None:
        with tensor_float32(torch.device("cuda")):
            assert matmul.allow_tf32
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not matmul.allow_tf32


def test_tf32_stays_where_it_was_asked_for_already() -> None:
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = True
    try:
        with tensor_float32(torch.device("cuda")):
            pass
        assert matmul.allow_tf32
    finally:
        matmul.allow_tf32 = False
