"""Several processes give what one gives: torchrun starts them on this machine, and they talk by gloo."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import safetensors.numpy
import scipy.sparse
import torch
from tests.training.several_processes import (
    AT_ONCE,
    BY_ROWS,
    DRAWN,
    INTERRUPT_AT,
    LONG,
    MODELS,
    OF_SEQUENCES,
    PLANS,
    SETTINGS,
    STEPS_PER_EPOCH,
    chosen,
    interrupted,
    one_step,
    trained,
    whole,
)
from typer.testing import CliRunner

from extremegp.cli import app
from extremegp.data import write_xc
from extremegp.errors import DataError, SettingsError
from extremegp.training import ProcessLostError, World, world
from extremegp.training.distributed import _with_peers

ROOT = Path(__file__).parents[2]
EXACT = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-12},
    torch.float32: {"rtol": 1e-5, "atol": 1e-5},
    torch.int64: {"rtol": 0.0, "atol": 0.0},
}


def torchrun(n: int, *command: object) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return [*launcher, *map(str, command)]


def environment() -> dict[str, str]:
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture(scope="module", params=[2, 3])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """What every one of two or three processes found, and the folder with their checkpoints."""
    folder = tmp_path_factory.mktemp("several")
    interrupted(World(), folder / "one.ckpt", by=0)
    for name in OF_SEQUENCES:
        changes, plan = BY_ROWS[name]
        interrupted(World(), folder / f"{name}.ckpt", 0, PLANS[plan], changes)
    script = Path(__file__).with_name("several_processes.py")
    done = subprocess.run(
        torchrun(request.param, script, folder), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{i}.pt", weights_only=False) for i in range(request.param)], folder


def assert_close(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, integrated: bool = False
) -> None:
    """To rounding; if it is integrated, to the error of a quadrature whose nodes depend on what rows come together."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        to = {"rtol": 1e-5, "atol": 1e-7} if integrated else EXACT[tensor.dtype]
        torch.testing.assert_close(found[name], tensor, **to, msg=lambda text, name=name: name + text)


def without_seconds(history: list[dict[str, float]]) -> list[list[float]]:
    return [[value for name, value in record.items() if name != "seconds"] for record in history]


@pytest.mark.parametrize(
    ("model", "changes", "plan"),
    [
        *((model, changes, plan) for model, changes in MODELS.items() for plan in ("natural", "sampled")),
        *((model, *of_rows) for model, of_rows in BY_ROWS.items()),
    ],
    ids=str,
)
def test_the_bound_and_every_gradient_are_those_of_one_process(
    results: Any, model: str, changes: dict[str, Any], plan: str
):
    expected = one_step(World(), PLANS[plan], **changes)
    assert len(expected) > 4
    assert all(float(gradient.abs().max()) > 0 for gradient in expected.values())
    for found in results[0]:
        assert_close(found["step"][model, plan], expected, integrated="softmax" in model)


@pytest.mark.parametrize("name", [*PLANS, *BY_ROWS])
def test_a_run_ends_at_the_model_of_one_process_in_every_process(results: Any, name: str):
    if name in BY_ROWS:
        changes, plan = BY_ROWS[name]
        expected = trained(World(), PLANS[plan], changes)
    else:
        expected = trained(World(), PLANS[name])
    first = results[0][0]["run"][name]
    for found in results[0]:
        run = found["run"][name]
        integrated = "softmax" in name
        assert_close(run["state"], expected["state"], integrated=integrated)
        rtol = 1e-6 if integrated else 1e-10
        np.testing.assert_allclose(without_seconds(run["history"]), without_seconds(expected["history"]), rtol=rtol)
        # Not only close: rounding must not lead the processes apart.
        assert all(torch.equal(run["state"][name], tensor) for name, tensor in first["state"].items())


@pytest.mark.parametrize("name", DRAWN)
def test_a_bound_by_draws_rises_as_high_as_that_of_one_process_and_leaves_equal_models(results: Any, name: str):
    expected = [record["elbo"] for record in trained(World(), LONG, DRAWN[name])["history"]]
    first = results[0][0]["drawn"][name]
    for found in results[0]:
        run = found["drawn"][name]
        elbo = [record["elbo"] for record in run["history"]]
        assert np.isfinite(elbo).all()
        assert elbo != expected
        assert np.mean(elbo[-5:]) == pytest.approx(np.mean(expected[-5:]), abs=0.1 * (expected[-1] - expected[0]))
        assert all(torch.equal(run["state"][name], tensor) for name, tensor in first["state"].items())


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_several_processes_resume_what_one_began_on_sequences(results: Any, name: str):
    changes, plan = BY_ROWS[name]
    expected = trained(World(), PLANS[plan], changes, validate=lambda: 0.5)
    for found in results[0]:
        assert_close(found[f"resumed {name}"]["state"], expected["state"])


@pytest.mark.parametrize("name", AT_ONCE)
def test_all_sequences_at_once_end_at_the_model_of_one_process(results: Any, name: str):
    expected = whole(World(), BY_ROWS[name][0])
    for found in results[0]:
        run, first = found[f"whole {name}"], results[0][0][f"whole {name}"]
        assert run["history"][0]["elbo"] == pytest.approx(expected["history"][0]["elbo"], rel=1e-8)
        for part, tensor in expected["state"].items():
            torch.testing.assert_close(run["state"][part], tensor, rtol=1e-3, atol=1e-4)
            assert torch.equal(run["state"][part], first["state"][part])


def test_one_process_that_is_interrupted_or_out_of_time_ends_all_after_the_same_iteration(results: Any):
    assert [found["whole, interrupted"] for found in results[0]] == [2] * len(results[0])
    assert [found["whole, out of time"] for found in results[0]] == [1.0] * len(results[0])


def test_several_processes_choose_the_functions_of_sequences_that_one_chooses(results: Any):
    expected = chosen()
    for found in results[0]:
        assert found["chosen"]["chosen"] == expected["chosen"]
        np.testing.assert_allclose(found["chosen"]["marginals"], expected["marginals"], atol=0.01)
        np.testing.assert_array_equal(found["chosen"]["marginals"], results[0][0]["chosen"]["marginals"])
        assert "integer random_state" in found["refused"]["seeds of sequences"]


def test_the_score_of_the_first_process_decides_for_all(results: Any):
    scores = iter([0.2, 0.6, 0.5, 0.4, 0.9])
    expected = trained(World(), replace(SETTINGS, epochs=5, patience=2), validate=lambda: next(scores))
    assert len(expected["history"]) == 4
    for found in results[0]:
        assert [record["validation_P@1"] for record in found["validated"]["history"]] == [0.2, 0.6, 0.5, 0.4]
        assert_close(found["validated"]["state"], expected["state"])


def test_a_time_budget_ends_all_processes_after_the_same_step(results: Any):
    first = results[0][0]["budget"]
    assert 1 <= len(first) < 10**6
    for found in results[0]:
        assert without_seconds(found["budget"]) == without_seconds(first)


def test_several_processes_resume_what_several_or_one_began(results: Any):
    expected = trained(World(), PLANS["sampled"], validate=lambda: 0.5)
    for found in results[0]:
        for resumed in (found["resumed"], found["resumed from one"]):
            assert_close(resumed["state"], expected["state"])
            np.testing.assert_allclose(
                without_seconds(resumed["history"]), without_seconds(expected["history"]), rtol=1e-10
            )


def test_one_process_resumes_what_several_began(results: Any, tmp_path: Path):
    path = tmp_path / "kept.ckpt"
    path.write_bytes((results[1] / "kept.ckpt").read_bytes())
    expected = trained(World(), PLANS["sampled"], validate=lambda: 0.5)
    resumed = trained(World(), PLANS["sampled"], validate=lambda: 0.5, checkpoint=path)
    assert_close(resumed["state"], expected["state"])
    assert resumed["history"][0]["seconds"] != expected["history"][0]["seconds"]


def test_a_checkpoint_of_several_processes_has_the_tensors_of_one(results: Any):
    kept, one = (safetensors.numpy.load_file(results[1] / name) for name in ("kept.ckpt", "several.ckpt"))
    assert INTERRUPT_AT > STEPS_PER_EPOCH
    assert any(name.startswith("best.") for name in kept)
    reference = results[1] / "reference.ckpt"
    interrupted(World(), reference, by=0)
    expected = safetensors.numpy.load_file(reference)
    assert {name: tensor.shape for name, tensor in kept.items()} == {n: t.shape for n, t in expected.items()}
    for name, tensor in expected.items():
        np.testing.assert_allclose(kept[name], tensor, rtol=1e-8, atol=1e-12, err_msg=name)
    assert one.keys() == kept.keys()


def test_what_cannot_be_shared_out_is_refused_by_every_process_with_a_way_out(results: Any):
    n = len(results[0])
    for found in results[0]:
        refused = found["refused"]
        for name in ("stored", "few labels", "small batches", "seeds"):
            assert refused[name].startswith("SettingsError: "), name
            assert "\n" not in refused[name]
        assert f"over {n} processes: start it as one process" in refused["stored"]
        assert "local='amortised'" in refused["stored"]
        assert f"{n - 1} labels" in refused["few labels"]
        assert {refused[name] for name in ("few classes", "optimal", *BY_ROWS)} == {"none"}
        assert "batches of 1 rows" in refused["small batches"]
        assert "integer random_state" in refused["seeds"]
        assert refused["fingerprint"].startswith("ModelFormatError: ")


def test_a_process_can_still_train_alone(results: Any):
    expected = trained(World(), SETTINGS)
    for found in results[0]:
        assert all(torch.equal(found["alone"]["state"][name], part) for name, part in expected["state"].items())


# The command line


@pytest.fixture(scope="module")
def training_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(150, 8, 0.5, format="csr", rng=rng, dtype=np.float32)
    y = scipy.sparse.csr_matrix((rng.random((150, 6)) < 0.3).astype(np.float32))
    path = tmp_path_factory.mktemp("data") / "train.txt"
    write_xc(path, x, y)
    return path


OPTIONS = ("--set", "n_inducing=10", "--set", "epochs=8", "--set", "checkpoint_seconds=0", "--set", "dtype=float64")


def test_survivors_of_a_killed_process_say_so_and_the_same_command_resumes(training_file: Path, tmp_path: Path):
    out = tmp_path / "model"
    checkpoint = Path(f"{out}.checkpoint")
    command = torchrun(2, "-m", "extremegp", "train", training_file, "--out", out, *OPTIONS)
    run = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not checkpoint.exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.005)
    of_rank = {child.environ().get("RANK"): child for child in psutil.Process(run.pid).children()}
    of_rank["1"].kill()
    output, errors = run.communicate()
    assert run.returncode != 0
    assert not out.exists(), "training ended before the signal came"
    # torchrun itself adds lines of its own.
    own = [line for line in errors.splitlines() if "another process" in line]
    assert len(own) == 1
    assert re.fullmatch(
        rf"error: another process of this run ended \(.+\); the same command resumes from {re.escape(str(checkpoint))}",
        own[0],
    )
    assert "extremegp/training" not in errors, "a traceback of ours"
    assert output == ""

    again = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("saved to") == 1
    assert again.stderr.count(f"resuming from {checkpoint}") == 1
    assert not checkpoint.exists()
    whole = CliRunner().invoke(app, ["train", str(training_file), "--out", str(tmp_path / "one"), *OPTIONS])
    assert whole.exit_code == 0
    found, expected = (
        safetensors.numpy.load_file(tmp_path / name / "tensors.safetensors") for name in ("model", "one")
    )
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Single precision: sums over processes round differently at every step.
        np.testing.assert_allclose(found[name], tensor, rtol=1e-3, atol=1e-4, err_msg=name)


# One process


def test_a_world_of_one_gives_everything_back_and_calls_nobody():
    alone, part = World(), torch.arange(6.0).view(3, 2).requires_grad_()
    assert (alone.leads, alone.own(5), alone.parts(5)) == (True, slice(0, 5), [5])
    assert alone.rows(part, 3) is part
    assert alone.rows_at_first(part, 3) is part
    assert alone.any(True, False) == (True, False)
    assert alone.most(2.0, 1.0) == (2.0, 1.0)
    assert alone.said_by_first("what") == "what"
    assert alone.together(lambda: 3) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [7, 8, 20, 100_003])
def test_parts_are_in_order_and_differ_by_at_most_one(size: int, total: int):
    worlds = [World(rank, size) for rank in range(size)]
    rows = np.concatenate([np.arange(total)[here.own(total)] for here in worlds])
    assert rows.tolist() == list(range(total))
    assert max(worlds[0].parts(total)) - min(worlds[0].parts(total)) <= 1
    assert worlds[0].parts(total) == [len(range(total)[here.own(total)]) for here in worlds]


@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_without_torchrun_there_is_one_process(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert world("cpu") == World(0, 1, 1, torch.device("cpu"))


def test_processes_that_cannot_meet_are_an_error_of_settings(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(SettingsError, match="start them with torchrun"):
        world()


def test_a_lost_process_is_one_line_with_the_way_on():
    with pytest.raises(ProcessLostError) as caught, _with_peers():
        raise RuntimeError("[/a/b.cc:5] Connection closed by peer [127.0.0.1]:1. Check\nmore")
    assert caught.value.reason == "Connection closed by peer [127.0.0.1]:1"
    assert "nothing was saved yet" in str(caught.value)
    assert "resumes from run.ckpt" in str(ProcessLostError("gone", checkpoint="run.ckpt"))


def test_errors_that_travel_between_processes_stay_what_they_are():
    for error in (DataError("odd", path="f", line=3), SettingsError("odd")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
