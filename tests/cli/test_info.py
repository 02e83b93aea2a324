"""`extremegp info`, `presets` and `demo`."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import N_FEATURES, N_LABELS, Run

import extremegp
from extremegp import datasets
from extremegp.data import read_xc
from extremegp.data.debtags import DebtagsDataset
from extremegp.presets import CLASS_PRESETS, INDUCING, KERNELS, POSTERIORS, PRESETS, SEQUENCE_PRESETS
from extremegp.settings.parts import KERNEL_NAMES, REGISTRIES


def test_info_describes_the_model(files: Path, model: Path, run: Run) -> None:
    result = json.loads(run("info", model, "--json", "-").stdout)
    counts = np.asarray(read_xc(files / "train.txt").Y.sum(axis=0)).ravel()
    assert (result["version"], result["format_version"]) == (extremegp.__version__, 2)
    assert (result["settings"]["n_features"], result["settings"]["n_labels"]) == (N_FEATURES, N_LABELS)
    assert result["frequent_labels"][0]["rows"] == counts.max()
    assert (result["training"]["rows"], result["training"]["epochs"]) == (60, 40)
    assert result["training"]["elbo_last"] > result["training"]["elbo_first"]
    assert result["bytes"]["tensors.safetensors"] == (model / "tensors.safetensors").stat().st_size


def test_info_is_a_table(model: Path, run: Run) -> None:
    shown, everything = (run("info", model, *more).stdout for more in ((), ("--all",)))
    asked = (
        "MultiLabelGPClassifier",
        " UTC",
        "extremegp 0",
        "train.txt: 60 rows",
        "seed",
        "--set",
        "final ELBO per row",
    )
    for part in (*asked, "green, dark"):
        assert part in shown
        assert part in everything
    for part in ("n_subspace", "relative_jitter", "tensors.safetensors", "format 2"):
        assert part not in shown
        assert part in everything


def test_info_says_what_made_the_model(files: Path, model: Path, run: Run) -> None:
    result = json.loads(run("info", model, "--json", "-").stdout)
    origin = result["origin"]
    assert (origin["version"], origin["seed"], origin["command"]["--set"][0]) == (extremegp.__version__, 0, "epochs=40")
    assert origin["command"] == {"--set": ["epochs=40", "n_inducing=20"], "--labels-names": "names.txt"}
    assert origin["settings"].items() >= {"epochs": 40}.items()
    assert (origin["training"]["source"], origin["training"]["n_rows"]) == ("train.txt", 60)
    assert str(files) not in json.dumps(origin)
    history = extremegp.load(model).history_
    assert result["training"]["elbo_last"] == pytest.approx(history[-1]["elbo"] / 60)
    assert result["training"]["elbo_per"] == "row"


def test_info_says_what_was_tried_for_hyper_parameters(files: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "model"
    run("train", files / "train.txt", "--out", folder, "--set", "latents=landmarks", "--set", "epochs=3", "--quiet")
    told = json.loads(run("info", folder, "--json", "-").stdout)["hyperparameters"]
    assert told == [asdict(each) for each in extremegp.load(folder).hyperparameters_ or ()]
    family, kernel, utilities, noise = told
    shown, everything = (run("info", folder, *more).stdout for more in ((), ("--all",)))
    lines, all_lines = ([line.split() for line in text.splitlines()] for text in (shown, everything))
    assert ["median", "lengthscale", f"{kernel['chosen']['median_lengthscale']:.4g}"] in lines
    assert f"chosen by {utilities['by']}" in shown
    scales = sorted({each["weight_scale"] for each in utilities["tried"]})
    listed = ", ".join(f"{scale:.4g}" for scale in scales).split()
    assert ["weight", "scale", f"{utilities['chosen']['weight_scale']:.4g}", *listed] in lines
    assert ["noise", "variance", f"{noise['chosen']['noise_variance']:.4g}"] in [line[:3] for line in lines]
    assert ["family", *family["chosen"]["family"].split()] == next(line for line in lines if line[:1] == ["family"])[
        : 1 + len(family["chosen"]["family"].split())
    ]
    for each in (*family["tried"], *utilities["tried"], *noise["tried"]):
        values = [value if isinstance(value, str) else f"{value:.4g}" for value in each.values()]
        line = " ".join(values).split()
        assert line not in lines
        assert line in all_lines


def test_info_of_a_model_that_chose_nothing_says_nothing_of_it(files: Path, run: Run, tmp_path: Path) -> None:
    old = Path(__file__).parents[1] / "storage" / "format1" / "labels"
    folder, zero = tmp_path / "model", ("--set", "mean_function=zero", "--set", "n_inducing=5", "--set", "epochs=1")
    run("train", files / "train.txt", "--out", folder, *zero, "--quiet")
    for model, told in ((folder, []), (old, None)):
        assert json.loads(run("info", model, "--json", "-").stdout)["hyperparameters"] == told
        assert "chosen by" not in run("info", model, "--all").stdout


def test_info_of_a_model_of_format_1_says_that_nothing_is_known_of_its_origin(run: Run) -> None:
    old = Path(__file__).parents[1] / "storage" / "format1"
    assert "did not say when and from what" in run("info", old / "labels").stdout
    result = json.loads(run("info", old / "sequences", "--json", "-").stdout)
    assert (result["origin"], result["format_version"], result["training"]["elbo_per"]) == (None, 1, "token")
    assert -10 < result["training"]["elbo_last"] < 0


def test_info_describes_classes(class_model: Path, run: Run) -> None:
    result = json.loads(run("info", class_model, "--json", "-").stdout)
    assert (result["estimator"], result["n_classes"]) == ("MultiClassGPClassifier", 3)
    assert result["feature_names"] == ["width", "height"]
    assert [row["rows"] for row in result["frequent_classes"]] == [20, 20, 20]
    shown = run("info", class_model, "--all").stdout
    for part in ("likelihood", "softmax", "n_classes", "width, height", "most frequent classes", "cedar"):
        assert part in shown


@pytest.mark.parametrize("damage", ["cut", "altered", "config", "missing"])
def test_a_damaged_model_is_named(model: Path, tmp_path: Path, run: Run, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(model, copy)
    tensors = copy / "tensors.safetensors"
    content = tensors.read_bytes()
    if damage == "cut":
        tensors.write_bytes(content[:-10])
    elif damage == "altered":
        tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "config":
        (copy / "config.json").write_text("{")
    else:
        tensors.unlink()
    run.fails("info", copy, naming=str(copy))


def test_a_folder_without_a_model_is_named(tmp_path: Path, run: Run) -> None:
    run.fails("info", tmp_path, naming="config.json")
    run.fails("info", tmp_path / "none", naming="none: no such model folder")


def test_presets_are_listed(run: Run) -> None:
    listed = json.loads(run("presets", "--json", "-").stdout)
    assert listed.keys() == PRESETS.keys() | CLASS_PRESETS.keys() | SEQUENCE_PRESETS.keys()
    assert len(listed) == len(PRESETS) + len(CLASS_PRESETS) + len(SEQUENCE_PRESETS)
    assert {name for name, preset in listed.items() if preset["task"] == "multiclass"} == CLASS_PRESETS.keys()
    assert {name for name, preset in listed.items() if preset["task"] == "sequence"} == SEQUENCE_PRESETS.keys()
    assert listed["ARD-FX"]["settings"] == {
        "kernel": "ard",
        "linear_term": False,
        "mean_function": "zero",
        "posterior": "full-u",
        "optimizer": "adam",
        "inducing": "free",
        "learn_inducing": False,
    }
    assert listed["ARD-FX"]["paper"] is None
    assert listed["ARD-S-B"]["paper"] == {
        "table": "T Table 4.6",
        "dataset": "bibtex",
        "P@1": 62.35,
        "P@3": 37.68,
        "P@5": 27.79,
    }
    assert listed["RM-F"]["settings"]["likelihood"] == "robust-max"
    assert listed["OVSE-F-SH"]["paper"] == {"table": "T Table 3.2", "errors": {"mnist": 4.04}}
    assert listed["ARSOFT-IL"]["paper"] is None
    assert listed["ARD-S-B-SB"]["paper"] is None
    shown = run("presets").stdout
    assert all(part in shown for part in (*KERNELS, *INDUCING, *POSTERIORS, *CLASS_PRESETS))
    assert all(
        part in shown for part in ("SDGP1", "SDGP2-10", "DGP-3", "-RBF", "-PF", "-VR", "-PL", "GP-VAR", "LOGREG")
    )
    assert ["OVE", "3.2", "12.2", "64.1", "83.6", "X", "Table", "1"] in [line.split() for line in shown.splitlines()]
    assert "62.35/37.68/27.79" in shown
    assert run("presets", "--quiet").output == ""


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("LINEAR", "linear"),
        ("LINEAR-L", "linear-ell"),
        ("SE", "se"),
        ("SE-P-L", "se-p-ell"),
        ("ARD", "ard"),
        ("ARD/LINEAR", "ard+linear"),
        ("ARD/LINEAR-EXACT", "ard"),
        ("ARD-GPR", "ard"),
        ("ARD-GPR-PS", "ard"),
    ],
)
def test_every_kernel_of_the_papers_has_its_variants(name: str, kernel: str) -> None:
    assert PRESETS[name].settings["kernel"] == kernel
    assert PRESETS[f"{name}-FX"].settings["learn_inducing"] is False
    assert PRESETS[f"{name}-UN"].settings["normalise_inducing"] is False
    assert PRESETS[f"{name}-S"].settings["inducing"] == "subspace"
    assert PRESETS[f"{name}-S-B"].settings["inducing"] == "subspace-basis"
    ours = name.startswith("ARD-GPR")
    assert PRESETS[name].settings["posterior"] == ("shared-basis" if ours else "full-u")
    assert (f"{name}-SB" in PRESETS) is not ours
    assert ours or PRESETS[f"{name}-SB"].settings["posterior"] == "shared-basis"
    assert PRESETS[f"{name}-S-FX-PP"].settings["posterior"] == "parsimonious"
    assert PRESETS[name].settings["linear_term"] is (name == "ARD/LINEAR-EXACT")


def test_presets_only_hold_parameters_that_exist() -> None:
    known = extremegp.MultiLabelGPClassifier().get_params().keys()
    for preset in PRESETS.values():
        assert preset.settings.keys() <= known
        assert preset.settings["kernel"] in KERNEL_NAMES
        assert preset.settings["posterior"] in REGISTRIES["posterior"]
        assert preset.settings["inducing"] in REGISTRIES["inducing"]


def test_every_preset_of_classes_can_be_trained(class_files: Path, tmp_path: Path, run: Run) -> None:
    known = extremegp.MultiClassGPClassifier().get_params().keys()
    for name, preset in CLASS_PRESETS.items():
        assert preset.settings.keys() <= known
        args = ("--out", tmp_path / name, "--preset", name, "--set", "epochs=1", "--set", "n_inducing=5", "--json", "-")
        if preset.settings.get("mixing") == "factor":
            args += ("--set", "n_latent=2")
        # The preset tells the task of data that could have many labels.
        result = json.loads(run("train", class_files / "train.svm", *args).stdout)
        assert result["estimator"] == "MultiClassGPClassifier"
        assert result["settings"]["likelihood"] == preset.settings.get("likelihood", "softmax")


@pytest.fixture
def small_debtags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the demo's data and steps."""

    def shrunk(part: DebtagsDataset, n_rows: int) -> DebtagsDataset:
        return DebtagsDataset(part.texts[:n_rows], part.labels[:n_rows], part.names[:n_rows], part.label_names)

    train, test = datasets.load_debtags()
    monkeypatch.setattr(datasets, "load_debtags", lambda: (shrunk(train, 100), shrunk(test, 40)))
    monkeypatch.setattr(importlib.import_module("extremegp.cli.demo"), "SETTINGS", {"n_inducing": 10, "epochs": 3})


@pytest.mark.usefixtures("small_debtags")
def test_the_demo_compares_with_a_baseline_and_shows_packages(tmp_path: Path, run: Run) -> None:
    result = run("demo", "--save", tmp_path / "model", "--json", tmp_path / "demo.json")
    assert result.exit_code == 0
    for part in ("P@1", "PSP@5", "log_loss", "ece", "most frequent tags", "seconds to train", "✓"):
        assert part in result.stdout
    written = json.loads((tmp_path / "demo.json").read_text())
    assert written["metrics"].keys() == written["baseline"].keys()
    assert len(written["examples"]) == 3
    assert all(example["package"] in result.stdout for example in written["examples"])
    test = datasets.load_debtags()[1]
    for example in written["examples"]:
        truth = test.labels[test.names.index(example["package"])]
        assert all(tag["true"] == (tag["label"] in truth) for tag in example["predicted"])
    assert extremegp.load(tmp_path / "model").n_rows_ == 100


@pytest.mark.usefixtures("small_debtags")
def test_the_demo_s_baseline_ranks_by_frequency(run: Run) -> None:
    train, test = datasets.load_debtags()
    labels = [label for row in train.labels for label in row]
    most = max(sorted(set(labels)), key=labels.count)
    baseline = json.loads(run("demo", "--json", "-").stdout)["baseline"]
    assert baseline["P@1"] == pytest.approx(np.mean([most in row for row in test.labels]))


@pytest.mark.usefixtures("small_debtags")
def test_the_demo_depends_on_its_seed_alone(run: Run) -> None:
    first, same, other = (json.loads(run("demo", "--seed", seed, "--json", "-").stdout) for seed in (0, 0, 1))
    assert first["metrics"] == same["metrics"]
    assert first["metrics"]["log_loss"] != other["metrics"]["log_loss"]


def test_the_demo_leaves_other_folders_alone(tmp_path: Path, run: Run) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    run.fails("demo", "--save", tmp_path, naming=str(tmp_path))


@pytest.mark.slow
def test_the_demo_beats_its_baseline(run: Run) -> None:
    result = json.loads(run("demo", "--json", "-").stdout)
    assert result["metrics"]["P@1"] > 0.88 > result["baseline"]["P@1"]
    assert result["metrics"]["log_loss"] < 0.75 * result["baseline"]["log_loss"]
