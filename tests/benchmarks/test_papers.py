"""The papers' tables and figures: each has its place, verdicts follow from runs, and pages from what is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.papers import headlines, page, quick
from benchmarks.papers import kept as kept_runs
from benchmarks.papers.facts import PAPERS, Entry, Value, entries
from benchmarks.papers.kept import RUNS, Kept
from benchmarks.papers.plans import HERE, PLANS, Check, Plan, Row
from benchmarks.papers.specs import Spec, classes, labels, sequences
from benchmarks.papers.verdicts import LEFT_OUT, judged

from benchmarks import common
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier

ROOT = Path(__file__).parents[2]


def every_spec() -> set[Spec]:
    planned = {spec for plan in PLANS.values() for spec in plan.specs}
    return planned | set(headlines.specs()) | set(quick.chosen())


def test_every_table_and_figure_of_the_five_papers_is_there() -> None:
    found = Counter((entry.paper, "fig" in entry.number) for entry in entries().values())
    assert found == {
        ("T", False): 32,
        ("T", True): 36,
        ("ML", False): 8,
        ("ML", True): 5,
        ("S", False): 5,
        ("S", True): 2,
        ("X", False): 2,
        ("X", True): 1,
        ("D", False): 14,
        ("D", True): 20,
    }
    assert {entry.paper for entry in entries().values()} == PAPERS.keys()


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("T4.5", Value("bibtex", "ARD", "P@1", 62.98)),
        ("T3.2", Value("mnist", "RM-F", "error", 2.6)),
        ("ML4", Value("delicious", "MLGPF", "P@1", 69.09)),
        ("X1", Value("fashion-mnist", "ARSOFT-AMO", "accuracy", 87.4)),
        ("D5.9", Value("basenp", "SDGP1", "error", 4.96)),
    ],
)
def test_numbers_are_the_papers(number: str, value: Value) -> None:
    assert value in entries()[number].values


def test_nothing_whose_data_are_here_is_left_out_without_a_reason() -> None:
    for number, entry in entries().items():
        if not entry.illustration and HERE & set(entry.data):
            assert (number in PLANS) != (number in LEFT_OUT), number
    assert PLANS.keys() <= entries().keys()


def test_checks_are_about_rows_that_are_run() -> None:
    for number, plan in PLANS.items():
        rows = Counter((row.data, row.method) for row in plan.rows)
        assert max(rows.values()) == 1, number
        assert all((check.data, method) in rows for check in plan.checks for method in check.order), number


def test_runs_set_parameters_that_exist() -> None:
    estimators: dict[str, Any] = {
        "labels": MultiLabelGPClassifier,
        "classes": MultiClassGPClassifier,
        "sequences": SequenceGPClassifier,
    }
    for spec in every_spec():
        assert spec.settings.keys() <= estimators[spec.task]().get_params().keys(), spec


def test_papers_names_are_the_papers_posteriors() -> None:
    for spec in every_spec():
        if spec.method in ("ARD", "SE", "LINEAR", "OVE", "ARSOFT-AMO", "OVSE-F", "RM-F"):
            assert spec.settings["posterior"] in ("full", "full-u")
            assert spec.settings["optimizer"] == "adam"


ENTRY = Entry(
    "T4.5",
    "",
    ("bibtex",),
    "",
    "",
    False,
    (Value("bibtex", "A", "P@1", 60.0), Value("bibtex", "B", "P@1", 50.0)),
    "",
)
A, B = labels("bibtex", "ARD"), labels("bibtex", "SE")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (Row("bibtex", "A", (A,)), Row("bibtex", "B", (B,)))
    monkeypatch.setitem(PLANS, "T4.5", Plan(rows, (Check("bibtex", "P@1", ("B", "A")),), "why"))


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (61.0, 51.0, "exceeded"),
        (61.0, 50.0, "reproduced"),
        (60.4, 49.6, "reproduced"),
        (59.4, 52.0, "differs"),
        (62.0, 62.0, "differs"),
        (60.0, None, "partly run"),
        (None, None, "not run"),
    ],
)
def test_a_verdict_follows_from_numbers_and_their_order(a: float | None, b: float | None, word: str) -> None:
    runs = {spec.key: {"metrics": {"P@1": value}} for spec, value in ((A, a), (B, b)) if value is not None}
    verdict = judged(ENTRY, runs)
    assert verdict.word == word
    assert verdict.n_made == len(runs)
    assert verdict.why == "why"


@pytest.mark.parametrize(("a", "b", "word"), [(59.4, 52.0, "cut short"), (61.0, 48.0, "differs")])
def test_runs_that_a_time_budget_ended_decide_nothing(
    monkeypatch: pytest.MonkeyPatch, a: float, b: float, word: str
) -> None:
    cut = labels("bibtex", "ARD", time_budget=60.0)
    assert cut.has_budget
    assert not B.has_budget
    monkeypatch.setitem(PLANS, "T4.5", Plan((Row("bibtex", "A", (cut,)), Row("bibtex", "B", (B,)))))
    assert judged(ENTRY, {cut.key: {"metrics": {"P@1": a}}, B.key: {"metrics": {"P@1": b}}}).word == word


def test_a_mean_over_seeds_may_differ_by_its_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = tuple(labels("bibtex", "ARD", seed) for seed in (0, 1))
    monkeypatch.setitem(PLANS, "T4.5", Plan((Row("bibtex", "A", specs),)))
    runs = {spec.key: {"metrics": {"P@1": value}} for spec, value in zip(specs, (57.0, 61.0), strict=True)}
    (cell,) = judged(ENTRY, runs).cells
    assert (cell.mean, cell.n_runs, cell.ahead) == (59.0, 2, 0)
    assert cell.deviation == pytest.approx(8**0.5)
    runs[specs[1].key] = {"metrics": {"P@1": 58.0}}
    assert judged(ENTRY, runs).cells[0].ahead == -1
    # Half of the seeds are no mean.
    assert judged(ENTRY, {specs[0].key: {"metrics": {"P@1": 57.0}}}).cells == ()


def test_lower_is_better_where_it_is() -> None:
    entry = ENTRY._replace(
        number="T3.2", values=(Value("mnist", "RM-F", "error", 2.6), Value("mnist", "RM-F", "nlpd", 0.081))
    )
    (spec,) = (spec for row in PLANS["T3.2"].rows if row.method == "RM-F" for spec in row.specs)
    worse = judged(entry, {spec.key: {"metrics": {"error": 3.2, "nlpd": 0.09}}})
    assert [cell.ahead for cell in worse.cells] == [-1, -1]
    better = judged(entry, {spec.key: {"metrics": {"error": 2.0, "nlpd": 0.07}}})
    assert [cell.ahead for cell in better.cells] == [1, 1]


def test_runs_are_kept_beside_those_of_other_processes(tmp_path: Path) -> None:
    first, second = Kept(tmp_path / "runs.json"), Kept(tmp_path / "runs.json")
    first.put("a", {"metrics": {"P@1": 1.0}})
    second.put("b", {"error": "given up after 1 s"})
    kept = Kept(tmp_path / "runs.json")
    assert kept.runs.keys() == {"a", "b"}
    # What failed is made again.
    wanted = [Spec("labels", "x", "ARD")]
    kept.put(wanted[0].key, {"error": "no"})
    assert kept.missing([*wanted, *wanted]) == wanted
    kept.put(wanted[0].key, {"metrics": {}})
    assert kept.missing(wanted) == []


def test_runs_are_made_again_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(spec: Spec, data: Path) -> dict[str, Any]:
        made.append(spec.method)
        return {"metrics": {"P@1": 1.0}, "wall_seconds": 1.0}

    monkeypatch.setattr("benchmarks.papers.kept._made", make)
    kept, specs = Kept(tmp_path / "runs.json"), [labels("tiny", "ARD"), labels("tiny", "SE")]
    kept.make(specs[:1], tmp_path)
    kept.make(specs, tmp_path)
    assert made == ["ARD", "SE"]
    kept.make(specs, tmp_path, again=True)
    assert made == ["ARD", "SE", "ARD", "SE"]
    kept.make(specs, tmp_path, again=True, stop_at=0.0)
    assert len(made) == 4
    monkeypatch.setattr("benchmarks.papers.kept._made", lambda spec, data: {"error": "given up after 1 s"})
    kept.make([*specs, labels("tiny", "LINEAR")], tmp_path, again=True)
    assert sorted(Kept(kept.path).runs[spec.key].keys() & {"error", "metrics"} for spec in specs) == [{"metrics"}] * 2
    assert kept.missing([labels("tiny", "LINEAR")])


def test_a_file_of_something_else_is_not_taken_for_runs(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"runs\.json does not hold runs"):
        Kept(tmp_path / "runs.json")


def test_the_page_of_the_papers_and_the_tables_of_the_readme_are_those_of_the_kept_runs() -> None:
    page.write(check=True)


def test_every_kept_run_says_where_it_was_made() -> None:
    runs = Kept(RUNS).runs
    assert runs
    for key, run in runs.items():
        assert run["machine"]["cpu"], key
        assert run["commit"] not in ("", "unknown"), key
        assert run.get("error") or run["metrics"], key


def test_a_commit_is_marked_where_what_is_run_differs_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "ROOT", tmp_path)
    assert kept_runs.commit() == "unknown"
    for name in ("src/code.py", "benchmarks/results/papers.json"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("1\n", encoding="utf-8")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    head = kept_runs.commit()
    (tmp_path / "benchmarks" / "results" / "papers.json").write_text("2\n", encoding="utf-8")
    assert kept_runs.commit() == head.removesuffix("+")
    (tmp_path / "src" / "code.py").write_text("2\n", encoding="utf-8")
    assert kept_runs.commit() == f"{head}+"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "metric"),
    [
        (labels("tiny", "ARD-SB", epochs=3, n_inducing=5, n_latent=3), "PSP@1"),
        (labels("tiny", "ARD", how="time", n_inducing=5, n_latent=3, batch_size=20), "s/epoch"),
        (labels("tiny", "default", how="known"), "with P@1"),
        (classes("tiny-first", "OVE", epochs=3, n_inducing=5), "accuracy"),
        (sequences("basenp", "LOGREG", 1), "nll_struct"),
    ],
)
def test_a_run_measures_what_tables_show(
    tmp_path: Path, datasets: Path, sequence_datasets: Path, spec: Spec, metric: str
) -> None:
    data = sequence_datasets if spec.task == "sequences" else datasets
    kept = Kept(tmp_path / "runs.json")
    kept.make([spec], data)
    run = kept.runs[spec.key]
    assert "error" not in run
    assert run["metrics"][metric] > 0
    stamp = (tmp_path / "runs.json").read_bytes()
    Kept(tmp_path / "runs.json").make([spec], data)
    assert (tmp_path / "runs.json").read_bytes() == stamp


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_given_up_and_the_next_one_made(tmp_path: Path, datasets: Path) -> None:
    kept = Kept(tmp_path / "runs.json")
    long = labels("tiny", "ARD-SB", limit=1, epochs=100000)
    kept.make([long, labels("tiny", "ARD-SB", epochs=2, n_inducing=5, n_latent=3)], datasets)
    assert [run.get("error") for run in kept.runs.values()] == ["given up after 1 s", None]


@pytest.mark.slow
def test_the_program_lists_runs_and_refuses(tmp_path: Path) -> None:
    def program(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks", *words]
        return subprocess.run(command, cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True)

    listed = program("list").stdout
    assert all(number in listed for number in ("T4.5", "X-fig1", "D5.9", "peers", "known_truth"))
    assert "no table, figure or study T9.9" in program("run", "T9.9").stderr
    assert "name tables and figures" in program("run").stderr
    told = program("run", "D5.13").stdout
    runs = json.loads(RUNS.read_text(encoding="utf-8"))["runs"]
    assert f"{runs['sequences/conll2000/default/{}/0/']['metrics']['error']:.4g}" in told
