"""The programs in `benchmarks/` run, on a dataset made up here, and count what they say they count."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from extremegp.data import write_xc

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = ("multilabel.py", "peers.py", "posteriors.py", "step_speed.py", "calibration.py")
SMALL = ("epochs=2", "n_inducing=5", "n_latent=3")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset "tiny", whose label k is feature k."""
    folder = tmp_path_factory.mktemp("datasets")
    rng = np.random.default_rng(0)
    (folder / "tiny").mkdir()
    for part, n_rows in (("train", 200), ("test", 80)):
        x = scipy.sparse.csr_matrix((rng.random((n_rows, 12)) < 0.3).astype(np.float32))
        write_xc(folder / "tiny" / f"{part}.txt.xz", x, x[:, :6])
    return folder


def run(folder: Path, name: str, *arguments: str, datasets: Path) -> tuple[str, dict[str, Any]]:
    """The standard output and the JSON of a benchmark."""
    environment = os.environ | {"MPLCONFIGDIR": str(folder / "matplotlib"), "OMP_NUM_THREADS": "1"}
    result = folder / "result.json"
    words = [sys.executable, str(BENCHMARKS / name), "--data", str(datasets), "--json", str(result), *arguments]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(result.read_text(encoding="utf-8"))


@pytest.fixture
def step_speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("step_speed")


def test_products_are_counted_in_every_variant(step_speed: ModuleType) -> None:
    a, b, c = torch.rand(2, 3), torch.rand(3, 5), torch.rand(2, 5)
    batch, other = torch.rand(4, 2, 3), torch.rand(4, 3, 5)
    for product in (
        lambda: a @ b,
        lambda: torch.mm(a, b, out=torch.empty(2, 5)),
        lambda: torch.addmm(c, a, b),
        lambda: c.clone().addmm_(a, b),
        lambda: torch.nn.functional.linear(a, b.T),
    ):
        with step_speed.ProductCounter() as counter:
            product()
        assert counter.operations == {"float32": 2 * 2 * 3 * 5}
    for product in (lambda: batch @ other, lambda: torch.zeros(4, 2, 5).baddbmm_(batch, other)):
        with step_speed.ProductCounter() as counter:
            product()
        assert counter.operations == {"float32": 4 * 2 * 2 * 3 * 5}


def test_products_inside_autograd_functions_and_backward_are_counted(step_speed: ModuleType) -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.new_zeros(x.shape).addmm_(x, x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad @ x.T + x.T @ grad

    x = torch.rand(7, 7, dtype=torch.float64, requires_grad=True)
    with step_speed.ProductCounter() as counter:
        Square.apply(x).sum().backward()
    assert counter.operations == {"float64": 3 * 2 * 7**3}


def test_the_readme_has_a_command_for_every_script() -> None:
    commands = re.findall(r"`python benchmarks/(\w+\.py)", (BENCHMARKS / "README.md").read_text(encoding="utf-8"))
    helpers = {"common.py", "peer_worker.py"}
    assert sorted(commands) == sorted(SCRIPTS)
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*SCRIPTS, *helpers}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_its_options(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--data DIR" in done.stdout


@pytest.mark.slow
def test_multilabel_summarises_its_seeds(tmp_path: Path, datasets: Path) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    output, result = run(tmp_path, "multilabel.py", "--sets", "tiny", "--seeds", "0,1", *settings, datasets=datasets)
    precision = [100 * run["metrics"]["P@1"] for run in result["runs"]]
    assert f"| {np.mean(precision):.2f} ± {np.std(precision, ddof=1):.2f} / " in output
    assert [run["train"]["epochs"] for run in result["runs"]] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["omikuji", "napkinxc", "logistic"])
def test_peers_learn_what_is_easy(tmp_path: Path, datasets: Path, peer: str) -> None:
    if peer != "logistic" and importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    _, result = run(tmp_path, "peers.py", "--set", "tiny", "--peers", peer, *parameters, datasets=datasets)
    methods = result["results"].keys() - {"extremegp"}
    assert methods
    # Rows without one of the six labels (0.7^6 of them) cannot be right.
    assert all(result["results"][method]["metrics"]["P@1"] > 0.75 for method in methods)
    assert all(record["train_cpu_seconds"] > 0 for record in result["results"].values())


@pytest.mark.slow
def test_posteriors_are_timed_and_compared(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--time-sizes", "3,5", "--bound-sizes", "3,5", "--epochs", "2", "--rounds", "2", "--steps", "3")
    sets = ("--time-set", "tiny", "--bound-set", "tiny", "--batch-size", "40")
    output, result = run(tmp_path, "posteriors.py", *sizes, *sets, datasets=datasets)
    assert [len(record["step_seconds"]) for record in result["time"].values()] == [6] * 4
    bounds = {name: record["negative_elbo"] for name, record in result["bound"].items()}
    assert f"{100 * (bounds['mean-field'] / bounds['full'] - 1):+.3f} %" in output


@pytest.mark.slow
def test_step_speed_counts_products_and_times_sections(tmp_path: Path, datasets: Path) -> None:
    n_latent, n_inducing, batch, n_features, n_labels = 3, 5, 50, 12, 6
    sizes = ("--n-latent", str(n_latent), "--n-inducing", str(n_inducing), "--batch-size", str(batch))
    short = ("--warm-epochs", "1", "--epochs", "2", "--matmul-size", "64")
    _, result = run(tmp_path, "step_speed.py", "--set", "tiny", *sizes, *short, datasets=datasets)
    likelihood = 6 * 2 * batch * n_latent * n_labels
    gram = 2 * n_inducing**2 * n_features
    assert result["operations"]["float32"] > likelihood + 2 * batch * n_inducing * (n_inducing + 2 * n_latent)
    assert result["operations"]["float64"] % gram == 0
    assert result["steps"] == 7
    # Sections share out the whole step; their medians add up to about its median.
    assert all(seconds > 0 for seconds in result["section_seconds"].values())
    assert 0 < result["share"] < 1


@pytest.mark.slow
def test_calibration_compares_probabilities_and_draws_them(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    picture = tmp_path / "reliability.png"
    arguments = ("--set", "tiny", *parameters, "--plot", str(picture))
    output, result = run(tmp_path, "calibration.py", *arguments, datasets=datasets)
    assert len(result["metrics"]) == 3
    assert all(f"{metrics['log_loss']:.3f}" in output for metrics in result["metrics"].values())
    assert picture.read_bytes().startswith(b"\x89PNG")
