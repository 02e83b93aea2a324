"""Models as plain arithmetic say what the models say."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import scipy.sparse
from scipy.special import erf
from typer.testing import CliRunner

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.cli import app
from extremegp.engine.families import FAMILIES
from extremegp.errors import SettingsError
from extremegp.export import PortableModel, described_model, portable, to_onnx

D, K = 30, 8
SMALL: dict[str, Any] = {"random_state": 0, "verbose": False}


def labelled(n_rows: int, seed: int = 0) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    rng, truth = np.random.default_rng(seed), np.random.default_rng(5).normal(size=(D, K))
    x = np.abs(rng.normal(size=(n_rows, D))) * (rng.random((n_rows, D)) < 0.4)
    x[:, 0] = 1
    return scipy.sparse.csr_matrix(x.astype(np.float32)), (x @ truth + rng.normal(size=(n_rows, K)) > 1).astype(
        np.int64
    )


def landmarks(**changes: Any) -> tuple[Any, Any]:
    x, y = labelled(120)
    return MultiLabelGPClassifier(n_inducing=40, epochs=10, **SMALL, **changes).fit(x, y), labelled(30, 1)[0]


def counts() -> tuple[Any, Any]:
    x, y = labelled(100)
    of_counts = x.copy()
    of_counts.data = np.ceil(of_counts.data * 3)
    model = MultiLabelGPClassifier(latents="regression", features="tfidf", n_inducing=30, **SMALL).fit(of_counts, y)
    return model, of_counts[:20]


def texts() -> tuple[Any, Any]:
    texts = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(8)]
    labels = [[f"label{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(8)]
    return MultiLabelGPClassifier(features="text", n_inducing=30, epochs=10, **SMALL).fit(texts, labels), texts[:20]


def blocks() -> tuple[Any, Any]:
    (x, y), numbers = labelled(100), np.random.default_rng(3).normal(size=(100, 4)).astype(np.float32)
    kinds = {"words": "unit", "numbers": "standard"}
    model = MultiLabelGPClassifier(latents="regression", features=kinds, n_inducing=30, **SMALL)
    return model.fit({"words": x, "numbers": numbers}, y), {"words": x[:9], "numbers": numbers[:9]}


def many_labels() -> tuple[Any, Any]:
    x, _ = labelled(80)
    y = (np.random.default_rng(2).random((80, 650)) < 0.02).astype(np.int64)
    return MultiLabelGPClassifier(latents="landmarks", n_inducing=20, epochs=3, **SMALL).fit(x, y), x[:9]


def family(number: int) -> Callable[[], tuple[Any, Any]]:
    def made() -> tuple[Any, Any]:
        x, y = labelled(100)
        model = MultiLabelGPClassifier(latents="regression", n_inducing=30, **SMALL).fit(x, y)
        for kept in (model.model_.latents.mean, model.model_.latents.landmarks.kept):
            kept.family.fill_(number)
        return model, labelled(20, 1)[0]

    return made


def classes(kind: str) -> Callable[[], tuple[Any, Any]]:
    def made() -> tuple[Any, Any]:
        x, y = labelled(150)
        x = x.toarray()
        return MultiClassGPClassifier(features=kind, n_inducing=40, **SMALL).fit(x, y.argmax(1)), x[:20] * 1.1

    return made


def changed() -> tuple[Any, Any]:
    model, test = classes("standard")()
    x, y = labelled(20, 6)
    return model.learn(x.toarray(), y.argmax(1)).forget(["0", "7"]), test


CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "landmarks": landmarks,
    "propensities": lambda: landmarks(propensity=(0.55, 1.5)),
    "loadings": many_labels,
    "tf-idf": counts,
    "texts": texts,
    "blocks": blocks,
    "after learning": changed,
    **{f"classes of {kind}": classes(kind) for kind in ("scale", "root", "standard", "raw")},
    **{name: family(number) for number, name in enumerate(FAMILIES)},
}


@pytest.mark.parametrize("case", CASES)
def test_they_agree_with_the_model(case: str):
    model, X = CASES[case]()
    buffer = io.BytesIO()
    described_model(model).save(buffer)
    buffer.seek(0)
    found = PortableModel.load(buffer)
    assert found.names == model.classes_.tolist()
    inputs = model.features_.transform(X) if model.features_.kind in ("text", "blocks") else X
    dense = np.asarray(inputs.toarray() if scipy.sparse.issparse(inputs) else inputs, np.float32)
    session = onnxruntime.InferenceSession(to_onnx(found).SerializeToString())
    results = session.run(None, {"input": dense})
    means = model.decision_function(X)
    tolerance = 1e-5 * max(1.0, np.abs(means).max())
    for mean in (found.mean(inputs), results[0]):
        np.testing.assert_allclose(mean, means, atol=tolerance)
    if isinstance(model, MultiLabelGPClassifier):
        for p in (found.predict_proba(inputs), results[1]):
            np.testing.assert_allclose(p, model.predict_proba(X), atol=1e-5)
    else:
        assert len(results) == 1
        with pytest.raises(ValueError, match="means alone"):
            found.predict_proba(inputs)
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == found.names


def test_the_error_function_is_near_enough():
    x = np.linspace(-6, 6, 4001)
    assert np.abs(portable._erf(x) - erf(x)).max() < 2e-7


def test_the_file_needs_numpy_alone(tmp_path: Path):
    model, X = landmarks()
    described_model(model).save(tmp_path / "model.npz")
    np.save(tmp_path / "x.npy", X.toarray())
    source = Path(portable.__file__).read_text()
    (tmp_path / "alone.py").write_text(source)
    script = (
        "import sys, numpy as np, alone; m = alone.PortableModel.load('model.npz');"
        "np.save('p.npy', m.predict_proba(np.load('x.npy')));"
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'sklearn', 'extremegp')))"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), model.predict_proba(X), atol=1e-5)


def hostile(steps: Any = (("Add", "mean", ("x", "k")),), **changes: Any) -> io.BytesIO:
    told = {"steps": steps, "names": ["a"], "n_features": 2} | changes
    buffer = io.BytesIO()
    np.savez(buffer, **{"c.k": np.zeros(1)}, model=np.frombuffer(json.dumps(told).encode(), np.uint8))
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    "source",
    [
        lambda: io.BytesIO(b"no archive"),
        lambda: hostile([("system", "mean", ("x", "k"))]),
        lambda: hostile([("Add", "mean", ("x", "nothing"))]),
        lambda: hostile([("Add", "mean", ("x",))]),
        lambda: hostile([("Add", "other", ("x", "k"))]),
        lambda: hostile([("Add", "mean")]),
        lambda: hostile([("Add", "mean", ("x", "k"))] * 100_001),
        lambda: hostile(n_features="many"),
        lambda: hostile(names=None),
    ],
)
def test_hostile_files_are_refused(source: Callable[[], io.BytesIO]):
    with pytest.raises(ValueError, match=r"cannot be done|no model|no result"):
        PortableModel.load(source())


def test_bad_inputs_are_refused():
    model = PortableModel.load(hostile())
    for wrong in (np.zeros(2), np.zeros((3, 1)), np.array([[0.0, np.nan]])):
        with pytest.raises(ValueError, match="X"):
            model.mean(wrong)


def test_other_models_are_refused():
    x, y = labelled(60)
    trees = LabelTreeGPClassifier(n_trees=1, n_inducing=5, **SMALL).fit(x, y)
    by_steps = MultiLabelGPClassifier(latents="gp", n_inducing=5, epochs=1, **SMALL).fit(x, y)
    for model in (trees, by_steps):
        with pytest.raises(SettingsError, match="plain arithmetic"):
            described_model(model)


def test_the_command_line_writes_both(tmp_path: Path):
    model, X = landmarks()
    model.save(tmp_path / "model")
    for suffix in ("onnx", "npz"):
        out = tmp_path / f"out.{suffix}"
        result = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--out", str(out), "--json", "-"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["bytes"] == out.stat().st_size
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    np.testing.assert_allclose(
        PortableModel.load(tmp_path / "out.npz").predict_proba(X), model.predict_proba(X), atol=1e-5
    )
    result = CliRunner().invoke(app, ["export", str(tmp_path / "model"), "--out", str(tmp_path / "out.pkl")])
    assert (result.exit_code, "suffix" in result.output) == (2, True)
