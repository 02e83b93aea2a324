"""The programs in `benchmarks/` run, on a dataset made up here, and count what they say they count."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.__main__ import studies
from benchmarks.classes import class_data
from benchmarks.sequences import sequence_data
from benchmarks.speed import growth, step_speed

from benchmarks import common, protocol
from extremegp import MultiClassGPClassifier, SequenceGPClassifier
from extremegp.data import CHUNKING_TEMPLATE, deskew, open_dataset, read_xc
from extremegp.engine.inducing import InducingInputs
from extremegp.presets import CLASS_PRESETS
from tests.benchmarks.conftest import FOLDS, made_chunks, made_sequences

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
STUDIES = (
    "gallery",
    "tuning",
    "multilabel",
    "conditional",
    "peers",
    "posteriors",
    "step_speed",
    "calibration",
    "novelty",
    "known_truth",
    "feature_scale",
    "natural_gradients",
    "label_sampling",
    "growth",
    "label_trees",
    "latency",
    "streams",
    "decisions",
    "guarantees",
    "explanations",
    "label_issues",
    "annotation",
    "serving",
    "derived_sets",
    "prediction_speed",
    "propensity",
    "multiclass",
    "multiclass_methods",
    "class_scale",
    "gpstruct",
    "conll2000",
)
SMALL = ("epochs=2", "n_inducing=5", "n_latent=3")


def run(folder: Path, name: str, *arguments: str, datasets: Path) -> tuple[str, dict[str, Any]]:
    """The standard output and the JSON of a benchmark."""
    environment = os.environ | {
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    result = folder / "result.json"
    words = [
        sys.executable,
        "-m",
        "benchmarks",
        "run",
        name,
        "--data",
        str(datasets),
        "--json",
        str(result),
        *arguments,
    ]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(result.read_text(encoding="utf-8"))


def test_products_are_counted_in_every_variant() -> None:
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


def test_products_inside_autograd_functions_and_backward_are_counted() -> None:
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


def test_the_readme_has_a_command_for_every_study() -> None:
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"`python -m benchmarks run (\w+)", readme)) == sorted(STUDIES)
    assert sorted(studies()) == sorted(STUDIES)


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_every_study_explains_its_options(study: str) -> None:
    words = [sys.executable, "-m", "benchmarks", "run", study, "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--data DIR" in done.stdout


@pytest.mark.slow
def test_novelty_is_compared_with_other_ways_on_labels_and_on_classes(tmp_path: Path, datasets: Path) -> None:
    settings = [word for setting in ("epochs=2", "n_inducing=5") for word in ("--param", setting)]
    output, result = run(tmp_path, "novelty", "--sets", "tiny,mnist", *settings, datasets=datasets)
    for name, foreign in (("tiny", {"random rows", "features permuted"}), ("mnist", {"pixels permuted"})):
        told = result["sets"][name]["told"]
        assert {"novelty", "logistic regression, 1 - max p", "Mahalanobis distance"} <= told.keys()
        for parts in told.values():
            assert parts.keys() == foreign
            assert all(0 <= area <= 1 for of in parts.values() for area in of.values())
        assert f"**{name}**" in output
        assert result["sets"][name]["epistemic"].keys() == {"training", "test", *foreign}
    assert result["sets"]["mnist"]["told"]["novelty"]["pixels permuted"]["auroc"] > 0.9


@pytest.mark.slow
def test_intervals_are_counted_where_the_truth_is_known(tmp_path: Path, datasets: Path) -> None:
    settings = ("--rows", "60", "--seeds", "2", "--gap-seeds", "2", "--param", "epochs=2")
    output, result = run(tmp_path, "known_truth", *settings, datasets=datasets)
    assert [0 <= of[part] <= 1 for of in result["draws"]["60"] for part in ("inside", "gap")] == [True] * 4
    assert all(0 < low <= high < 1 for low, high in result["gaps"])
    assert " of 2 |" in output


@pytest.mark.slow
def test_multilabel_summarises_its_seeds(tmp_path: Path, datasets: Path) -> None:
    settings = [word for setting in SMALL for word in ("--set", setting)]
    output, result = run(tmp_path, "multilabel", "--sets", "tiny", "--seeds", "0,1", *settings, datasets=datasets)
    precision = [100 * run["metrics"]["P@1"] for run in result["runs"]]
    assert f"| {np.mean(precision):.2f} ± {np.std(precision, ddof=1):.2f} / " in output
    assert [run["train"]["epochs"] for run in result["runs"]] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["omikuji", "napkinxc", "logistic", "lightgbm"])
def test_peers_learn_what_is_easy(tmp_path: Path, datasets: Path, peer: str) -> None:
    if peer != "logistic" and importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    _, result = run(tmp_path, "peers", "--set", "tiny", "--peers", peer, *parameters, datasets=datasets)
    methods = result["results"].keys() - {"extremegp"}
    assert methods
    # Rows without one of the six labels (0.7^6 of them) cannot be right.
    assert all(result["results"][method]["metrics"]["P@1"] > 0.75 for method in methods)
    assert all(record["train_cpu_seconds"] > 0 for record in result["results"].values())
    assert all(0 < record["row_seconds"] <= record["row_seconds_p99"] for record in result["results"].values())
    assert all(record["model_megabytes"] > 0 for record in result["results"].values())


@pytest.mark.slow
def test_peers_are_tuned_on_training_rows_and_differences_have_errors(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    picture = ("--plot", str(tmp_path / "peers.png"))
    how = ("--peers", "logistic", "--tune", "--held-out", "0.2", *picture)
    printed, result = run(tmp_path, "peers", "--set", "tiny", *how, *parameters, datasets=datasets)
    found = result["results"]["logistic"]
    assert found["settings"] in [{"strength": c} for c in (1.0, 3.0, 10.0, 30.0)]
    ours, theirs = (result["results"][name]["metrics"]["P@1"] for name in ("extremegp", "logistic"))
    mean, error = found["extremegp_above"]["P@1"]
    assert mean == pytest.approx(ours - theirs)
    assert 0 <= error < 0.1
    assert f"{100 * mean:+.2f} ± {100 * error:.2f}" in printed
    assert all(0 <= found["metrics"][f"ECE@{k}"] < 0.3 for k in (1, 3, 5))
    assert 0.5 < found["metrics"]["sum 11 to 100"] < 2
    assert (tmp_path / "peers.png").stat().st_size > 0


def test_exact_probabilities_have_a_calibration_error_that_rows_decide() -> None:
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.4, 1.0, size=400)
    few, many = common.ece_if_exact(confidence), common.ece_if_exact(np.repeat(confidence, 100))
    assert 0.03 < few < 0.08
    assert many == pytest.approx(few / 10, rel=0.15)
    hits = rng.random(len(confidence)) < confidence
    bins = np.minimum((confidence * 15).astype(int), 14)
    once = sum(abs((hits[bins == b] - confidence[bins == b]).sum()) for b in range(15)) / len(confidence)
    assert once == pytest.approx(few, abs=0.04)


def test_a_paired_bootstrap_finds_the_error_of_a_mean_difference() -> None:
    rng = np.random.default_rng(0)
    theirs = rng.random(400)
    ours = theirs + 0.1 + 0.2 * rng.standard_normal(400)
    mean, error = common.paired(ours, theirs)
    assert mean == pytest.approx((ours - theirs).mean())
    assert error == pytest.approx((ours - theirs).std() / 20, rel=0.1)
    assert common.paired(theirs, theirs) == (0.0, 0.0)


@pytest.mark.slow
def test_label_trees_stand_beside_peers(tmp_path: Path, datasets: Path) -> None:
    small = ("--param", "n_trees=1", "--param", "leaf_size=2")
    printed, result = run(
        tmp_path, "peers", "--set", "tiny", "--model", "tree", "--peers", "logistic", "--held-out", "0.2", *small,
        datasets=datasets,
    )  # fmt: skip
    assert result["results"]["extremegp"]["metrics"]["P@1"] > 0.7
    assert "| extremegp |" in printed
    for found in result["results"].values():
        assert 0 < found["metrics"]["log_loss"] < 0.5
        assert 0 <= found["metrics"]["ece"] < 0.2
        assert 0 <= found["metrics"]["risk"] < 0.4


@pytest.mark.slow
def test_posteriors_are_timed_and_compared(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--time-sizes", "3,5", "--bound-sizes", "3,5", "--epochs", "2", "--rounds", "2", "--steps", "3")
    sets = ("--time-set", "tiny", "--bound-set", "tiny", "--batch-size", "40")
    output, result = run(tmp_path, "posteriors", *sizes, *sets, datasets=datasets)
    assert [len(record["step_seconds"]) for record in result["time"].values()] == [6] * 4
    bounds = {name: record["negative_elbo"] for name, record in result["bound"].items()}
    assert f"{100 * (bounds['mean-field'] / bounds['full'] - 1):+.3f} %" in output


@pytest.mark.slow
def test_propensity_compares_with_its_first_variant(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL[1:] for word in ("--param", parameter)]
    chosen = ("--sets", "tiny", "--epochs", "2", "--seeds", "0,1", "--variants", "none,auto,1:1.5")
    output, result = run(tmp_path, "propensity", *chosen, *parameters, datasets=datasets)
    assert [record["variant"] for record in result["runs"]] == ["none"] * 2 + ["auto"] * 2 + ["1:1.5"] * 2
    psp = [100 * np.mean([record["metrics"]["PSP@1"] for record in result["runs"][i : i + 2]]) for i in (0, 2)]
    row = next(line for line in output.splitlines() if line.startswith("| auto, difference |"))
    assert float(row.split("|")[3].split("/")[0]) == pytest.approx(psp[1] - psp[0], abs=0.006)


@pytest.mark.slow
def test_step_speed_counts_products_and_times_sections(tmp_path: Path, datasets: Path) -> None:
    n_latent, n_inducing, batch, n_features, n_labels = 3, 5, 50, 12, 6
    sizes = ("--n-latent", str(n_latent), "--n-inducing", str(n_inducing), "--batch-size", str(batch))
    short = ("--warm-epochs", "1", "--epochs", "2", "--matmul-size", "64")
    _, result = run(tmp_path, "step_speed", "--set", "tiny", *sizes, *short, datasets=datasets)
    likelihood = 6 * 2 * batch * n_latent * n_labels
    gram = 2 * n_inducing**2 * n_features
    assert result["operations"]["float32"] > likelihood + 2 * batch * n_inducing * (n_inducing + 2 * n_latent)
    assert result["operations"]["float64"] % gram == 0
    assert result["steps"] == 7
    # Sections share out the whole step; their medians add up to about its median.
    assert all(seconds > 0 for seconds in result["section_seconds"].values())
    assert 0 < result["share"] < 1


@pytest.mark.slow
def test_natural_gradients_and_adam_are_timed_to_the_same_bound(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    options = ("--set", "tiny", "--posteriors", "shared-basis,full", "--steps", "0.1", "--epochs", "4", *parameters)
    output, result = run(tmp_path, "natural_gradients", *options, datasets=datasets)
    assert [r["posterior"] for r in result["results"]] == ["shared-basis", "full"]
    for r in result["results"]:
        assert len(r["adam"]["elbo_per_row"]) == len(r["natural"]["elbo_per_row"])
        assert r["bound"] <= np.mean(r["natural"]["elbo_per_row"][-3:]) + 1e-9
    assert "final, natural" in output


def test_feature_scale_measures_time_and_memory_of_every_width(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--features", "500,50000", "--rows", "200", "--labels", "20", "--stored", "20")
    small = ("--inducing", "10", "--batch", "50", "--epochs", "1")
    output, result = run(tmp_path, "feature_scale", *sizes, *small, datasets=datasets)
    assert [r["n_features"] for r in result["results"]] == [500, 50000]
    assert all(r["step_ms"] > 0 and r["peak_mib"] >= r["data_mib"] > 0 for r in result["results"])
    assert "times the first" in output


def test_label_sampling_times_steps_and_measures_noise(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--labels", "50,5000", "--n-sampled", "60", "--n-latent", "3", "--n-inducing", "5", "--batch-size", "20")
    noise = ("--noise-rows", "100", "--noise-labels", "200", "--noise-epochs", "1", "--draws", "20")
    shares = ("--steps", "5", "--shares", "0.02,0.5,1.0")
    output, result = run(tmp_path, "label_sampling", *sizes, *noise, *shares, datasets=datasets)
    assert result["step_seconds"].keys() == {"50", "5000"}
    assert "| 5,000 |" in output
    for sampling in ("frequency", "uniform"):
        data, gradient = zip(*(record[sampling] for record in result["noise"].values()), strict=True)
        # All labels leave no noise but that of single precision.
        assert data[0] > data[1] > 1e-3 > 1e-4 > data[2]
        assert gradient[0] > gradient[1] > 1e-2 > 1e-3 > gradient[2]


@pytest.mark.slow
def test_latency_is_that_of_processes_of_their_own(tmp_path: Path, datasets: Path) -> None:
    small = ("--calls", "5", "--batch-size", "16", "--processes", "2", "--param", "n_trees=1", "--param", "leaf_size=2")
    command = (tmp_path, "latency", "--sets", "tiny", "--models", str(tmp_path / "models"), *small)
    output, result = run(*command, datasets=datasets)
    found = result["results"]["tiny"]
    # PyTorch is among what is imported.
    assert 0.1 < found["import_seconds"] < found["first_seconds"]
    assert 0 < found["median"] <= found["p99"]
    assert found["file_bytes"] == (tmp_path / "models" / "tiny" / "tensors.safetensors").stat().st_size
    assert len(found["runs"]) == 2
    assert "| tiny |" in output
    # It is not trained again.
    before = (tmp_path / "models" / "tiny" / "config.json").stat().st_mtime_ns
    run(*command, datasets=datasets)
    assert (tmp_path / "models" / "tiny" / "config.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_streams_learn_every_document(tmp_path: Path, datasets: Path) -> None:
    command = (tmp_path, "streams", "--sets", "tiny", "--methods", "learns;retrained")
    output, result = run(*command, datasets=datasets)
    found = result["results"]["tiny"]
    # Some are forgotten in the end.
    assert found["learns"]["n_rows"] < 200
    assert len(found["learns"]["precision"]) == 9
    assert np.mean(found["learns"]["precision"], axis=0)[0] > 0.6
    assert found["learns"]["milliseconds"].keys() >= {"predict", "learn", "forget"}
    assert "| 90 % |" in output


@pytest.mark.slow
def test_rows_to_annotate_are_compared(tmp_path: Path, datasets: Path) -> None:
    command = (
        tmp_path,
        "annotation",
        "--sets",
        "tiny",
        "--pool",
        "120",
        "--steps",
        "2",
        "--methods",
        "random,posterior",
    )
    output, result = run(*command, "--param", "n_trees=1", datasets=datasets)
    found = result["results"]["tiny"]
    assert found["sizes"] == [6, 33, 60]
    assert np.array(found["curves"]["posterior"]).shape == (1, 3, 2)
    assert found["needed"]["random"] <= 60
    assert "rows needed for P@5" in output


@pytest.mark.slow
def test_decisions_are_compared(tmp_path: Path, datasets: Path) -> None:
    output, result = run(tmp_path, "decisions", "--sets", "tiny", "--model", "tree", datasets=datasets)
    found = result["results"]["tiny"]
    assert found["example_f1"].keys() == {"best", "half", "all", "band", "label"}
    assert found["example_f1"]["best"]["mean"] > 0.5
    assert "left to people" in output


@pytest.mark.slow
def test_promises_are_kept(tmp_path: Path, datasets: Path) -> None:
    options = ("--sets", "tiny", "--methods", "extremegp", "--level", "0.8", "--splits", "5")
    _, result = run(tmp_path, "guarantees", *options, datasets=datasets)
    found = result["results"]["tiny: extremegp"]["all"]
    assert abs(found["recall"][0] - 0.8) < 0.1
    assert found["kept"] == [1.0]


@pytest.mark.slow
def test_named_documents_are_those_that_matter(tmp_path: Path, datasets: Path) -> None:
    options = ("--sets", "tiny", "--rows", "20", "--removed", "3")
    _, result = run(tmp_path, "explanations", *options, datasets=datasets)
    found = result["results"]["tiny"]
    assert found["off"] < 1e-5
    assert found["shares"]["mean"] > found["nearest"]["mean"]


@pytest.mark.slow
def test_serving_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "data" / "small").mkdir(parents=True)
    texts = [f"word{a} word{b} word{a + b}\tlabel{a % 4} other{b % 3}\n" for a in range(20) for b in range(20)]
    with gzip.open(tmp_path / "data" / "small" / "train.tsv.gz", "wt") as stream:
        stream.writelines(texts)
    small = ("--sets", "small", "--models", str(tmp_path / "models"), "--clients", "4", "--requests", "80")
    output, result = run(tmp_path, "serving", *small, datasets=tmp_path / "data")
    found = result["results"]["small"]
    assert (found["learnt"], found["errors"], found["lost"]) == (8, 0, 0)
    assert 0 < found["one"]["median"] <= found["one"]["p99"]
    assert "| small |" in output


@pytest.mark.slow
def test_prediction_speed_measures_recall_on_other_rows_than_it_tunes_on(tmp_path: Path, datasets: Path) -> None:
    pytest.importorskip("faiss")
    sizes = ("--labels", "300,20000", "--n-latent", "8", "--rows", "40", "--tuning-rows", "50", "--batch-size", "16")
    calls = ("--calls", "3", "--batches", "1", "--recalls", "0.5,0.95")
    output, result = run(tmp_path, "prediction_speed", *sizes, *calls, datasets=datasets)
    assert len(result["results"]) == 4
    for record in result["results"]:
        assert [found["wanted"] for found in record["approximate"]] == [0.5, 0.95]
        for found in record["approximate"]:
            # Five labels of each of fifty rows.
            assert found["setting"]["n_rows"] == 50
            assert found["setting"]["recall"] * 250 == pytest.approx(round(found["setting"]["recall"] * 250))
            assert found["recall"] * 200 == pytest.approx(round(found["recall"] * 200))
            assert found["recall"] > found["wanted"] - 0.1
            assert 0 < found["median"] <= found["p99"]
        # All of few labels are looked at.
        assert record["n_labels"] > 300 or [found["recall"] for found in record["approximate"]] == [1, 1]
    assert "| clustered, 20,000, P 8 |" in output


@pytest.mark.slow
def test_growth_measures_each_size_alone_and_draws_it(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--rows", "300,900", "--features", "300,5000", "--labels", "300", "--base", "300", "--steps", "4")
    small = ("--latent", "3", "--inducing", "5", "--batch", "50", "--sampled", "20", "--plot", "growth.png")
    output, result = run(tmp_path, "growth", *sizes, *small, datasets=datasets)
    assert [record["rows"] for record in result["rows"]] == [300, 900]
    assert [record["features"] for record in result["features"]] == [300, 5000]
    # The common point is measured once.
    assert result["rows"][0] == result["features"][0] == result["labels"][0]
    for record in (*result["rows"], *result["features"]):
        assert record["step_seconds"] > 0
        assert record["resident_peak_bytes"] > record["peak_bytes"] > 0
        assert record["data_bytes"] > 4 * record["rows"]
    assert "| 5,000 |" in output
    assert (tmp_path / "growth.png").stat().st_size > 5000


@pytest.mark.slow
def test_growth_makes_one_epoch_and_tells_that_of_public_sizes(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--one-epoch", "--size", "600", "--public", "WikiLSHTC-325K", "--public-rows", "200", "--steps", "3")
    small = ("--latent", "3", "--inducing", "5", "--batch", "50", "--sampled", "20")
    output, result = run(tmp_path, "growth", *sizes, *small, datasets=datasets)
    assert result["epoch"]["steps"] == 12
    assert result["epoch"]["fit_seconds"] >= result["epoch"]["epoch_seconds"] >= 12 * 1e-4
    wiki = result["WikiLSHTC-325K"]
    assert (wiki["rows"], wiki["features"], wiki["labels"]) == (200, 1_617_899, 325_056)
    minutes = -(-1_778_351 // 50) * wiki["step_seconds"] / 60
    assert f"| 1,778,351 | 1,617,899 | 325,056 | {1e3 * wiki['step_seconds']:.1f} | {minutes:.1f} |" in output


def test_rows_are_as_sparse_whatever_the_sizes_and_tell_their_labels(tmp_path: Path) -> None:
    stored = []
    for name, n_features in (("narrow", 2_000), ("wide", 500_000)):
        growth.write(tmp_path / name, growth.Sizes(3_000, n_features, 1_000, 40, 4), seed=0)
        data = open_dataset(tmp_path / name)
        stored.append(data.X.nnz / 3_000)
        assert data.X.shape == (3_000, n_features)
        np.testing.assert_allclose(np.asarray(data.X.multiply(data.X).sum(1)), 1.0, rtol=1e-5)
    assert min(stored) > 30
    assert max(stored) < 1.1 * min(stored)
    # Of two rows that share many features, one's labels are often the other's; of two at random, seldom.
    x, y = data.X[:1_500], data.Y
    shared = x @ data.X[1_500:].T
    nearest = np.asarray(shared.argmax(1)).ravel()
    together = y[:1_500].multiply(y[1_500:][nearest]).sum() / y[:1_500].multiply(y[1_500:]).sum()
    assert together > 1.1


@pytest.mark.slow
def test_calibration_compares_probabilities_and_draws_them(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL for word in ("--param", parameter)]
    picture = tmp_path / "reliability.png"
    arguments = ("--set", "tiny", *parameters, "--plot", str(picture))
    output, result = run(tmp_path, "calibration", *arguments, datasets=datasets)
    assert len(result["metrics"]) == 3
    assert all(f"{metrics['log_loss']:.3f}" in output for metrics in result["metrics"].values())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_conditional_gains_are_over_the_labels_that_are_not_known(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in (*SMALL, "mean_function=zero") for word in ("--param", parameter)]
    output, result = run(tmp_path, "conditional", "--sets", "tiny", *parameters, datasets=datasets)
    found = result["results"]["tiny"]["found"]
    truth = read_xc(datasets / "tiny" / "test.txt.xz").Y
    counts = np.diff(truth.indptr)
    assert result["results"]["tiny"]["rows"] == (counts > 0).sum()
    assert result["results"]["tiny"]["rows_with_more"] == (counts > 1).sum()
    # All five labels that are not known are among the five best.
    for measured in found.values():
        assert measured["P"][2] == pytest.approx((counts[counts > 0] - 1).mean() / 5)
    plain, noise = found["without conditioning"], found["with instance noise"]
    assert f"{100 * (noise['P'][0] - plain['P'][0]):+.2f}/" in output


def test_the_most_probable_ring_is_that_of_the_greatest_density() -> None:
    points = np.random.default_rng(0).uniform(-6, 6, size=(200, 2))
    angles = np.linspace(0, 2 * np.pi, 4000, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    densities = [
        np.exp(-np.square(points[:, None] - radius * circle).sum(axis=2) / (2 * class_data.RING_NOISE**2)).mean(axis=1)
        for radius in class_data.RING_RADII
    ]
    np.testing.assert_array_equal(class_data.most_probable_ring(points), np.argmax(densities, axis=0))


def test_every_synthetic_class_has_a_training_row_near_its_test_rows() -> None:
    split = class_data.load(Path("nowhere"), "synthetic:400:20:50")
    assert split.x.shape == (400, 20)
    np.testing.assert_array_equal(np.unique(split.y), np.arange(50))
    centres = np.stack([split.x[split.y == k].mean(axis=0) for k in range(50)])
    nearest = np.square(split.test_x[:, None] - centres).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == split.test_y) > 0.9


def test_first_labels_are_classes_and_rows_without_are_left_out(datasets: Path) -> None:
    split, source = class_data.load(datasets, "tiny"), read_xc(datasets / "tiny" / "train.txt.xz")
    labels = source.Y.toarray()
    assert split.n_dropped == (labels.sum(axis=1) == 0).sum() > 0
    np.testing.assert_array_equal(split.y, labels.argmax(axis=1)[labels.any(axis=1)])


@pytest.mark.slow
def test_multiclass_summarises_its_seeds_and_keeps_its_runs(tmp_path: Path, datasets: Path) -> None:
    parameters = [word for parameter in SMALL[:2] for word in ("--param", parameter)]
    arguments = ("--sets", "tiny,rings:20", "--seeds", "0,1", "--peers", "logistic", *parameters)
    output, result = run(tmp_path, "multiclass", *arguments, datasets=datasets)
    assert [record["job"]["set"] for record in result["runs"]] == ["tiny"] * 3 + ["rings:20"] * 3
    errors = [100 * record["metrics"]["error"] for record in result["runs"]]
    assert f"| extremegp | {np.mean(errors[:2]):.2f} ± {np.std(errors[:2], ddof=1):.2f} | " in output
    # A class is a linear function of six features.
    assert errors[2] < 10
    assert all(record["peak_mib"] >= record["data_mib"] > 0 for record in result["runs"])

    train, test = (read_xc(datasets / "tiny" / f"{part}.txt.xz") for part in ("train", "test"))
    rows = [np.flatnonzero(np.diff(part.Y.indptr)) for part in (train, test)]
    classes = [part.Y[kept].toarray().argmax(axis=1) for part, kept in zip((train, test), rows, strict=True)]
    classifier = MultiClassGPClassifier(features="standard", epochs=2, n_inducing=5, random_state=1, verbose=False)
    score = classifier.fit(train.X[rows[0]], classes[0]).score(test.X[rows[1]], classes[1])
    # One row may be near a tie, which threads decide.
    assert errors[1] / 100 == pytest.approx(1 - score, abs=1 / len(rows[1]) + 1e-9)

    again, second = run(tmp_path, "multiclass", *arguments, datasets=datasets)
    assert second["runs"] == result["runs"]
    assert again == output


@pytest.mark.slow
def test_gpytorch_stands_beside_classes(tmp_path: Path, datasets: Path) -> None:
    pytest.importorskip("gpytorch")
    how = (
        "--sets",
        "rings:60",
        "--seeds",
        "0",
        "--peers",
        "gpytorch",
        "--gpytorch-epochs",
        "150",
        "--param",
        "epochs=2",
    )
    output, result = run(tmp_path, "multiclass", *how, datasets=datasets)
    _, peer = result["runs"]
    # No linear functions tell rings apart.
    assert peer["metrics"]["error"] < 0.3
    assert peer["seconds"] > 0
    assert "| GPyTorch, sparse GP, softmax, M = 100 |" in output


@pytest.mark.slow
def test_methods_for_classes_are_drawn(tmp_path: Path, datasets: Path) -> None:
    only = ("--only", "f3.4,f3.7,reliability", "--methods", "default,OVSE-P,OVSE-F", "--sets", "mnist")
    arguments = (*only, "--epochs", "2", "--pair-epochs", "20", "--out", str(tmp_path / "pictures"))
    _, result = run(tmp_path, "multiclass_methods", *arguments, datasets=datasets)
    # OVSE-P and -F with their bounds, the start of inducing inputs, the default.
    assert len(result["runs"]) == 4
    pictures = {path.name for path in (tmp_path / "pictures").glob("*.png")}
    assert pictures == {"figure_3.4b.png", "figure_3.7.png", "reliability_mnist.png"}

    settings = dict(CLASS_PRESETS["OVSE-P"].settings) | {"features": "scale"}
    by_params = {json.dumps(record["job"], sort_keys=True): record for record in result["runs"]}
    job = {"set": "mnist", "params": settings | {"epochs": 20}, "seed": 0}
    pairs = by_params[json.dumps(job, sort_keys=True)]
    assert len(pairs["history"]) == 20
    job["params"] |= {"learn_inducing": False, "epochs": 1, "time_budget": 1e-3}
    start = by_params[json.dumps(job | {"score": False}, sort_keys=True)]
    before, after = (np.array([row.split() for row in r["inducing"]], dtype=float) for r in (start, pairs))
    images = np.load(datasets / "mnist" / "mnist.npz")
    still = MultiClassGPClassifier(**settings, epochs=1, learning_rate=1e-9, random_state=0, verbose=False).fit(
        deskew(images["x_train"].reshape(90, -1)), images["y_train"]
    )
    inducing = next(module for module in still.model_.modules() if isinstance(module, InducingInputs))
    shown = inducing().reshape(-1, 36)[[0, 67, 135, 202]]  # of 3 classes with 90 each, as there are rows
    shift = before - shown.numpy()
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], (4, 36)), atol=1e-3)
    assert before.min() > -1e-3
    assert np.abs(after - before).max() > 0.01

    (tmp_path / "result.json").write_text(json.dumps({"runs": result["runs"][1:]}), encoding="utf-8")
    _, second = run(tmp_path, "multiclass_methods", *arguments, datasets=datasets)
    assert second["runs"][:-1] == result["runs"][1:]
    assert second["runs"][-1]["job"] == result["runs"][0]["job"]


@pytest.mark.slow
def test_class_scale_measures_every_number_of_classes(tmp_path: Path, datasets: Path) -> None:
    sizes = ("--classes", "10,40", "--rows", "600", "--features", "20", "--likelihoods", "one-vs-each,ar-softmax")
    small = ("--sampled", "20", "--latent", "20", "--inducing", "40", "--batch", "50", "--epochs", "10")
    output, result = run(tmp_path, "class_scale", *sizes, *small, datasets=datasets)
    assert [record["split"]["n_classes"] for record in result["runs"]] == [10, 40, 10, 40]
    assert [record["job"]["params"]["n_sampled_classes"] for record in result["runs"]] == [10, 20, 10, 20]
    for record in result["runs"]:
        assert record["metrics"]["accuracy"] > 5 / record["split"]["n_classes"]
        seconds = [epoch["seconds"] for epoch in record["history"]]
        assert f" | {1e3 * min(np.diff([0.0, *seconds])) / 12:.1f} | " in output
    assert "| 2.5 |" in output


# Sequences


def test_sequences_and_their_folds_are_read_as_they_were_written(sequence_datasets: Path) -> None:
    data, folds = sequence_data.gpstruct(sequence_datasets, "basenp")
    X, y = made_sequences()
    assert data == (X, y)
    assert folds == [tuple(([X[i] for i in side], [y[i] for i in side]) for side in fold) for fold in FOLDS]


@pytest.mark.slow
def test_novelty_of_sequences_says_how_uncertain_tokens_are(tmp_path: Path, sequence_datasets: Path) -> None:
    settings = [word for setting in ("epochs=30", "n_random_features=50") for word in ("--param", setting)]
    output, result = run(tmp_path, "novelty", "--sets", "basenp", *settings, datasets=sequence_datasets)
    found = result["sets"]["basenp"]["epistemic"]
    assert [*found] == ["training", "test", "words shuffled", "words never seen"]
    assert found["words never seen"] == max(found.values())
    assert result["sets"]["basenp"]["below_0.01"]["training"] == 0
    assert "| words never seen | " in output


def test_a_label_that_a_method_does_not_know_costs_its_tokens_alone() -> None:
    rows = np.array([[0.75, 0.25], [0.5, 0.5]], dtype=np.float32)

    def method(train: Any, test: Any) -> Any:
        log_prob = np.array([-np.inf, np.log(0.1)])
        return sequence_data.Answers(np.array(["a", "c"]), [np.array(["a", "a"])] * 2, [rows] * 2, log_prob)

    test = sequence_data.Labelled([[["f"], ["g"]]] * 2, [["a", "b"], ["c", "a"]])
    measured = sequence_data.measure(method, test, test, ["c", "b", "a"])
    assert measured["token_error"] == 2 / 4
    # Of the surest three, the third is the first of the two that are equally unsure, and wrong like the second of 0.75.
    assert measured["error_of_surest"] == pytest.approx(2 / 3)
    assert measured["nll_unstruct"] == pytest.approx(-np.log([0.75, 1e-15, 0.25, 0.5]).sum())
    assert measured["nll_struct"] == pytest.approx(-np.log(0.75 * 1e-15 * 0.1))


@pytest.mark.slow
def test_gpstruct_averages_its_folds_and_makes_only_the_runs_that_are_missing(
    tmp_path: Path, sequence_datasets: Path
) -> None:
    parameters = {"epochs": 30, "n_random_features": 20, "n_draws": 4}
    words = [word for key, value in parameters.items() for word in ("--param", f"{key}={value}")]
    arguments = ("--sets", "basenp,chunking", "--preset", "default,LOGREG,logistic", *words)
    output, result = run(tmp_path, "gpstruct", *arguments, datasets=sequence_datasets)
    runs = result["runs"]
    assert len(runs) == 2 * 3 * len(FOLDS)
    assert output.count("12 sequences, ") == 2

    errors = [100 * run["token_error"] for key, run in runs.items() if key.startswith("LOGREG/basenp/")]
    row = next(line for line in output.splitlines() if line.startswith("| LOGREG |"))
    assert f"| {np.mean(errors):.2f} ± {np.std(errors, ddof=1):.2f} | " in row
    assert row.endswith("| 5.08 | 624 | - |")
    assert "| best in the thesis | - | - | - | - | - | - | - | 8.50 | 386 | - |" in output

    X, y = made_sequences()
    train, held = FOLDS[1]
    own = SequenceGPClassifier(**parameters, labels=["0", "1", "2", "3"], random_state=0, verbose=False)
    own.fit([X[i] for i in train], [y[i] for i in train])
    marginals = np.concatenate(own.predict_marginals([X[i] for i in held]))
    truth = np.concatenate([y[i] for i in held]).astype(int)
    record = runs[next(key for key in runs if key.startswith("default/basenp/1/"))]
    assert record["nll_unstruct"] == pytest.approx(-np.log(marginals[np.arange(len(truth)), truth]).sum(), rel=1e-3)
    assert record["n_tokens"] == len(truth)
    # The tokens of the fold whose label training never saw are always wrong, the others never.
    unseen = runs[next(key for key in runs if key.startswith("logistic/basenp/0/"))]
    assert unseen["token_error"] == pytest.approx(1 / unseen["n_tokens"])

    (key, missing), *kept = runs.items()
    kept[0][1]["token_error"] = 0.75
    (tmp_path / "result.json").write_text(json.dumps(result | {"runs": dict(kept)}), encoding="utf-8")
    _, second = run(tmp_path, "gpstruct", *arguments, datasets=sequence_datasets)
    assert {name: second["runs"][name] for name, _ in kept} == dict(kept)
    measured = second["runs"][key]
    assert measured["seconds"] > 0
    names = missing.keys() - {"seconds", "peak_mib"}
    assert {name: measured[name] for name in names} == pytest.approx({name: missing[name] for name in names}, rel=1e-4)


@pytest.mark.slow
def test_peers_for_sequences_learn_what_is_easy(tmp_path: Path, sequence_datasets: Path) -> None:
    pytest.importorskip("pycrfsuite")
    _, result = run(tmp_path, "gpstruct", "--sets", "basenp", "--preset", "crfsuite", datasets=sequence_datasets)
    # The label that one sequence has is in the test part of two folds.
    assert [run["token_error"] * run["n_tokens"] for run in result["runs"].values()] == pytest.approx([1, 0, 0, 0, 1])


@pytest.mark.slow
def test_chunks_are_found_with_the_features_of_the_template(tmp_path: Path, sequence_datasets: Path) -> None:
    small = ("--param", "epochs=150", "--param", "n_random_features=20", "--param", "n_draws=4")
    arguments = ("--preset", "default,LOGREG,logistic", "--limit", "8", *small)
    output, result = run(tmp_path, "conll2000", *arguments, datasets=sequence_datasets)
    assert "CoNLL-2000: 8 training and 8 test sentences, " in output
    assert "| D Table 5.13: deep SDGP1 | 4.17 | 7222 | 4942 | - | - | - | - |" in output
    assert result["runs"].keys() == {"default", "LOGREG", "logistic"}
    for method, record in result["runs"].items():
        assert record["token_error"] == 0
        assert record["span_f1"] == 1
        assert f"| {method} | 0.00 | {record['nll_unstruct']:.0f} | {record['nll_struct']:.0f} | 100.00 | " in output

    (X, y), (test_X, test_y) = (made_chunks(n_sentences, seed) for seed, n_sentences in enumerate((30, 12)))
    own = SequenceGPClassifier(template=CHUNKING_TEMPLATE, latents="linear-point", transitions="none", epochs=150)
    own.set_params(random_state=0, verbose=False).fit(X[:8], y[:8])
    log_prob = own.log_prob(test_X[:8], test_y[:8])
    assert result["runs"]["LOGREG"]["nll_struct"] == pytest.approx(-log_prob.sum(), rel=1e-3)


@pytest.mark.slow
def test_label_trees_and_their_parts_are_judged_alike(tmp_path: Path, datasets: Path) -> None:
    printed, result = run(
        tmp_path, "label_trees", "--sets", "tiny", "--ablation", "--factor-budget", "2", "--param", "n_trees=1",
        "--param", "leaf_size=2", datasets=datasets,
    )  # fmt: skip
    found = result["results"]["tiny"]
    assert len(found) == 5
    assert found["label trees"]["metrics"]["P@1"] > 0.7
    assert all(result["metrics"]["P@1"] > 0.3 for result in found.values())
    assert found["label trees"]["peak_gb"] > 0.1
    assert "**tiny**" in printed


@pytest.mark.slow
def test_defaults_are_chosen_on_training_rows_alone(tmp_path: Path, datasets: Path) -> None:
    variants = ("--variants", "default; latents=landmarks", "--sets", "tiny")
    output, result = run(tmp_path, "tuning", *variants, datasets=datasets)
    assert {key.split("/")[1] for key in result["runs"]} == {"default", "latents=landmarks"}
    assert "| default | +0.00 / +0.0 % | +0.00 / +0.0 % |" in output


def test_report_sets_show_settings_their_training_rows_alone(datasets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "REPORT", ("tiny",))
    whole, split = common.load_split(datasets, "tiny"), protocol.validation_split(datasets, "tiny")
    assert split.x.shape[0] + split.test_x.shape[0] == whole.x.shape[0]
    rows = {tuple(row) for row in whole.x.toarray()}
    assert all(tuple(row) in rows for row in split.test_x.toarray())
    assert not set(protocol.TUNING) & set(protocol.REPORT)


@pytest.mark.slow
def test_a_sentence_is_drawn_with_its_unsure_words(tmp_path: Path, sequence_datasets: Path) -> None:
    how = ("--only", "sentence", "--out", str(tmp_path), "--words", "1,99")
    _, result = run(tmp_path, "gallery", *how, datasets=sequence_datasets)
    assert result["pictures"] == ["sentence"]
    assert (tmp_path / "sentence.png").stat().st_size > 2000
