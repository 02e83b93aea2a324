"""The programs in `examples/` run and show what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(folder: Path, name: str, *arguments: str) -> str:
    """The standard output of an example, run in a folder of its own."""
    environment = os.environ | {"MPLCONFIGDIR": str(folder / "matplotlib")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, output: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, output)]


def test_quickstart_ranks_better_than_the_most_frequent_labels_and_restores_its_model(tmp_path: Path) -> None:
    output = run(tmp_path, "quickstart.py")
    (precision,) = numbers(r"P@1 +(\S+)", output)
    assert precision > 0.77  # 0.749 for the most frequent label
    assert "predicts the same: True" in output


def test_classes_are_told_apart_and_unknown_ones_are_uncertain(tmp_path: Path) -> None:
    output = run(tmp_path, "classes.py")
    assert numbers(r"accuracy +(\S+)", output)[0] > 0.97
    known, unknown = numbers(r"epistemic uncertainty (\S+)", output)
    assert unknown > 2 * known


def test_sequences_are_labelled_and_what_is_wrong_is_uncertain(tmp_path: Path) -> None:
    output = run(tmp_path, "sequences.py")
    assert numbers(r"token_error +(\S+)", output)[0] < 0.1  # 0.57 for the most frequent label
    whole, surest = numbers(r"(?:all tokens|half) (\d\.\d+)", output)
    assert surest < whole / 2
    right, wrong = numbers(r"is (?:right|wrong): (\S+) nats", output)
    assert wrong > 1.5 * right
    probabilities = numbers(r"p = (\S+)", output)
    assert len(probabilities) == 3
    assert probabilities == sorted(probabilities, reverse=True)
    assert "predicts the same: True" in output


@pytest.mark.slow
def test_text_pipeline_searches_its_grid_and_ranks_better_than_the_most_frequent_labels(tmp_path: Path) -> None:
    output = run(tmp_path, "text_pipeline.py")
    assert len(numbers(r"P@1 (\d\S+)  \{", output)) == 4
    assert numbers(r"test P@1, P@3, P@5: \[(\S+)", output)[0] > 0.77


@pytest.mark.slow
def test_uncertainty_integrates_to_better_calibration_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "reliability.png"
    output = run(tmp_path, "uncertainty.py", str(picture))
    integrated, plug_in = numbers(r"ECE (\S+)", output)
    assert integrated < plug_in
    assert picture.read_bytes().startswith(b"\x89PNG")
    shares = numbers(r"(\d+) % of the variance is epistemic", output)
    assert len(shares) == 3
    assert all(0 < share < 100 for share in shares)


def test_every_example_is_tested() -> None:
    tested = re.findall(r'run\(tmp_path, "(\w+\.py)"', Path(__file__).read_text(encoding="utf-8"))
    assert sorted(tested) == sorted(path.name for path in EXAMPLES.glob("*.py"))
