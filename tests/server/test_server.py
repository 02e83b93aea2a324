"""Models over HTTP: what is asked natively, by Annif and by Label Studio, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.estimators.small import small_classifier as small_classes
from tests.estimators.small import small_data as class_data
from tests.label_tree.small import small_classifier

import extremegp
from extremegp.errors import DataError, SettingsError
from extremegp.server import Limits, ServedModel, make_app
from extremegp.storage import journal
from extremegp.storage.models import JOURNAL

pytestmark = pytest.mark.filterwarnings("ignore:.*no word that is known:UserWarning")

TOKEN = "a-token-of-tests"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}
TEXTS = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(12)]
LABELS = [[f"http://x/{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]
LIMITS = Limits(body_bytes=4096, documents=8, best=50, queue=16, seconds=20.0, body_seconds=2.0, batch=8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    small_classifier(features="text").fit(TEXTS, LABELS).save(folder / "subjects")
    small_classes().fit(*class_data()).save(folder / "classes")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "models"))


@pytest.fixture
def client(folder: Path) -> Iterator[TestClient]:
    models = [ServedModel(folder / name, LIMITS, changes=True) for name in ("subjects", "classes")]
    with TestClient(make_app(models, token=TOKEN, limits=LIMITS), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def reader(trained: Path) -> Iterator[TestClient]:
    models = [ServedModel(trained / name, LIMITS, changes=False) for name in ("subjects", "classes")]
    with TestClient(make_app(models, limits=LIMITS), raise_server_exceptions=False) as client:
        yield client


def test_suggestions_are_those_of_the_model(reader: TestClient, trained: Path):
    model = extremegp.load(trained / "subjects")
    found = reader.post("/models/subjects/suggest", json={"texts": TEXTS[:3], "k": 4, "uncertainty": True}).json()
    best, unsure = model.predict_topk(TEXTS[:3], 4), model.predict_uncertainty(TEXTS[:3])
    for row, each in enumerate(found["suggestions"]):
        assert [label["label"] for label in each["labels"]] == [model.classes_[k] for k in best.labels[row]]
        np.testing.assert_allclose([label["probability"] for label in each["labels"]], best.scores[row], rtol=1e-6)
        assert each["uncertainty"]["total"] == pytest.approx(float(unsure.total[row]), rel=1e-5)
    some = reader.post("/models/subjects/suggest", json={"text": TEXTS[0], "threshold": 0.5}).json()["suggestions"]
    assert all(label["probability"] >= 0.5 for label in some[0]["labels"])
    assert "uncertainty" not in some[0]


def test_classes_of_vectors_are_suggested(reader: TestClient, trained: Path):
    model, (x, _) = extremegp.load(trained / "classes"), class_data()
    rows = np.asarray(x.toarray() if hasattr(x, "toarray") else x)[:2].astype(float)
    found = reader.post("/models/classes/suggest", json={"vectors": rows.tolist(), "k": 2}).json()["suggestions"]
    best = model.predict_topk(rows, 2)
    for row, each in enumerate(found):
        assert [label["label"] for label in each["labels"]] == [model.classes_[k].item() for k in best.labels[row]]
        np.testing.assert_allclose([label["probability"] for label in each["labels"]], best.scores[row], rtol=1e-5)


def test_documents_and_words_say_why(reader: TestClient, trained: Path):
    model = extremegp.load(trained / "subjects")
    body = {"text": "word1 word2 word3", "labels": ["other1", "http://x/2"]}
    found = reader.post("/models/subjects/explain", json=body).json()["explanations"]
    for each, expected in zip(found, model.explain([body["text"]], body["labels"])[0], strict=True):
        assert (each["label"], each["regression"]) == (expected.label, pytest.approx(expected.regression, abs=1e-6))
        assert [share["name"] for share in each["features"]] == [share.name for share in expected.features]
        total = sum(share["share"] for share in each["documents"])
        assert total == pytest.approx(each["regression"] - each["frequency"], abs=1e-6)
    assert len(reader.post("/models/subjects/explain", json={"text": "word1", "k": 2}).json()["explanations"]) == 2


def test_classes_are_learnt_one_for_each_document(tmp_path: Path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    model = extremegp.MultiClassGPClassifier(n_inducing=20, random_state=0, verbose=False)
    model.fit(x, np.where(x[:, 0] > 0, "right", "left")).save(tmp_path / "sides")
    served = ServedModel(tmp_path / "sides", LIMITS, changes=True)
    with TestClient(make_app([served], token=TOKEN, limits=LIMITS), raise_server_exceptions=False) as client:

        def learn(*labels: str) -> Any:
            document = {"vector": [2.0, 0.0, 0.0], "labels": labels}
            return client.post("/models/sides/learn", json={"documents": [document]}, headers=AUTHORISED)

        assert (learn("right").status_code, learn("far right").status_code) == (201, 201)
        assert client.get("/models/sides").json()["n_labels"] == 3
        for wrong in ((), ("left", "right")):
            reply = learn(*wrong)
            assert (reply.status_code, "one label" in reply.json()["error"]) == (400, True)
        assert client.post("/models/sides/forget", json={"ids": ["90"]}, headers=AUTHORISED).status_code == 200
        (why, *_) = client.post("/models/sides/explain", json={"vector": [2.0, 0.0, 0.0]}).json()["explanations"]
        assert why["documents"][-1]["name"] == "others"
    assert extremegp.load(tmp_path / "sides").n_rows_ == 91


def test_what_there_is(reader: TestClient):
    assert reader.get("/health").json()["status"] == "UP"
    models = {each["name"]: each for each in reader.get("/models").json()["models"]}
    assert (models["subjects"]["takes"], models["classes"]["takes"]) == ("texts", "vectors")
    assert reader.get("/models/subjects").json()["n_labels"] == 7
    labels = reader.get("/models/subjects/labels", params={"search": "OTHER", "limit": 2}).json()
    assert (labels["n_labels"], [each["label"] for each in labels["labels"]]) == (3, ["other0", "other1"])
    assert labels["labels"][0]["documents"] == 48
    described = reader.get("/openapi.json").json()
    assert described["openapi"].startswith("3.")
    routes = {route.path for route in reader.app.routes} - {"/", "/docs", "/openapi.json"}
    assert set(described["paths"]) == routes


def test_pages_ask_nothing_of_other_hosts(reader: TestClient):
    for path in ("/", "/docs"):
        page = reader.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text
        assert "https://" not in page.text


def test_metrics_count(reader: TestClient):
    reader.post("/models/subjects/suggest", json={"text": "word1"})
    reader.get("/nowhere")
    text = reader.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['extremegp_requests_total{route="/models/{model}/suggest",status="200"}']) >= 1
    assert float(lines['extremegp_documents_total{model="subjects"}']) >= 1
    buckets = [float(value) for name, value in lines.items() if "bucket" in name and "suggest" in name]
    assert buckets == sorted(buckets)


def test_what_is_learnt_is_suggested_and_durable(client: TestClient, folder: Path):
    documents = [{"text": "word1 word2 novelty", "labels": ["brand new", "other1"], "id": "doc 1"}]
    found = client.post("/models/subjects/learn", json={"documents": documents}, headers=AUTHORISED)
    assert (found.status_code, found.json()) == (201, {"ids": ["doc 1"], "n_rows": 145, "n_labels": 8})
    labels = client.post("/models/subjects/suggest", json={"text": "word1 word2", "k": 8}).json()["suggestions"][0][
        "labels"
    ]
    assert "brand new" in [each["label"] for each in labels]
    # Another process reads what was answered, while this one goes on.
    assert extremegp.load(folder / "subjects").ids_.names[-1] == "doc 1"
    again = client.post("/models/subjects/learn", json={"documents": documents}, headers=AUTHORISED)
    assert (again.status_code, "doc 1" in again.json()["error"]) == (422, True)
    gone = client.post("/models/subjects/forget", json={"ids": ["doc 1", "3"]}, headers=AUTHORISED)
    assert gone.json() == {"n_forgotten": 2, "n_rows": 143}
    assert not (folder / "subjects" / JOURNAL).exists()
    assert extremegp.load(folder / "subjects").n_rows_ == 143
    assert (
        client.post("/models/subjects/add-labels", json={"labels": ["a", "b"]}, headers=AUTHORISED).status_code == 201
    )
    assert client.post("/models/subjects/save", headers=AUTHORISED).json() == {"saved": "subjects"}
    assert extremegp.load(folder / "subjects").classes_.tolist()[-2:] == ["a", "b"]


def test_a_model_that_was_put_in_its_place_is_served_after_a_reload(client: TestClient, folder: Path):
    small_classifier(features="text").fit(TEXTS[:60], LABELS[:60]).save(folder / "subjects")
    assert client.get("/models/subjects").json()["n_rows"] == 144
    assert client.post("/models/subjects/reload", headers=AUTHORISED).json()["n_rows"] == 60
    taught = {"documents": [{"text": "word1", "labels": ["other1"]}]}
    assert client.post("/models/subjects/learn", json=taught, headers=AUTHORISED).json()["n_rows"] == 61
    (folder / "classes" / "config.json").write_text("{}")
    refused = client.post("/models/classes/reload", headers=AUTHORISED)
    assert (refused.status_code, "config.json" in refused.json()["error"]) == (422, True)
    assert (
        client.post(
            "/models/classes/suggest", json={"vectors": [[0.0] * client.get("/models/classes").json()["n_features"]]}
        ).status_code
        == 200
    )


def test_annif(client: TestClient):
    """What its http backend posts and reads, and what its clients do; shapes as its OpenAPI description has them."""
    projects = client.get("/v1/projects").json()["projects"]
    assert {"project_id", "name", "language", "backend", "is_trained"} <= projects[0].keys()
    assert client.get("/v1/projects/subjects").json()["project_id"] == "subjects"
    reply = client.post(
        "/v1/projects/subjects/suggest", data={"text": "word1 word2 word3", "project": "subjects"}
    ).json()
    hits = [(hit["uri"], hit["score"]) for hit in reply["results"] if hit["score"] > 0.0]
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
    assert {"uri", "label", "notation", "score"} == reply["results"][0].keys()
    few = client.post(
        "/v1/projects/subjects/suggest", data={"text": "word1", "limit": "2", "threshold": "0.001"}
    ).json()
    assert len(few["results"]) == 2
    taught = [
        {"text": "word5 word6", "subjects": [{"uri": "http://x/1", "label": "one"}, {"uri": "http://x/new"}]},
        {"text": "no subjects"},
    ]
    assert client.post("/v1/projects/subjects/learn", json=taught).status_code == 401
    learnt = client.post("/v1/projects/subjects/learn", json=taught, headers=AUTHORISED)
    assert (learnt.status_code, learnt.content) == (204, b"")
    assert client.get("/models/subjects").json()["n_rows"] == 145


CONFIG = """<View><Text name="document" value="$body"/>
<Choices name="subject" toName="document" choice="multiple"><Choice value="other1"/></Choices></View>"""


def test_label_studio(client: TestClient):
    """What it posts to a backend and reads back; shapes as its backends' API has them."""
    assert "model_version" in client.post("/setup", json={"project": "1.1", "schema": CONFIG, "hostname": "x"}).json()
    tasks = [{"id": 7, "data": {"body": "word1 word2"}}, {"id": 8, "data": {"body": "word3"}}]
    for body in ({"tasks": tasks}, {"tasks": tasks, "label_config": CONFIG, "params": {}, "project": "1.1"}):
        reply = client.post("/predict", json=body).json()
        assert len(reply["results"]) == 2
        result = reply["results"][0]["result"][0]
        assert (result["from_name"], result["to_name"], result["type"]) == ("subject", "document", "choices")
        assert set(result["value"]["choices"]) <= {
            *(f"http://x/{a}" for a in range(4)),
            *(f"other{b}" for b in range(3)),
        }
        assert 0 <= reply["results"][0]["score"] <= 1
    annotation = {"result": [{"type": "choices", "value": {"choices": ["other1", "late"]}}]}
    event = {"action": "ANNOTATION_CREATED", "task": tasks[0], "annotation": annotation}
    basic = base64.b64encode(f"user:{TOKEN}".encode()).decode()
    for turn in range(2):
        learnt = client.post("/webhook", json=event, headers={"Authorization": f"Basic {basic}"})
        assert (learnt.status_code, learnt.json()) == (201, {"learnt": "label-studio-task-7"})
        assert client.get("/models/subjects").json()["n_rows"] == 145, turn
    for nothing in ({"action": "PROJECT_UPDATED"}, event | {"annotation": {"result": []}}):
        assert client.post("/webhook", json=nothing, headers=AUTHORISED).json() == {}
    taxonomy = CONFIG.replace("Choices", "Taxonomy")
    result = client.post("/predict", json={"tasks": tasks[:1], "label_config": taxonomy}).json()["results"][0][
        "result"
    ][0]
    assert all(len(path) == 1 for path in result["value"]["taxonomy"])


def of_suggest(**body: Any) -> dict[str, Any]:
    return {"path": "/models/subjects/suggest", "json": body}


def of_change(path: str, body: Any, **headers: str) -> dict[str, Any]:
    return {"path": f"/models/{path}", "json": body, "headers": AUTHORISED | headers}


DOCUMENT = {"text": "word1", "labels": ["other1"]}
RAW = {"path": "/models/subjects/suggest", "headers": {"Content-Type": "application/json"}}
REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "no such address": (404, {"path": "/nowhere", "json": {}}),
    "no such model": (404, {"path": "/models/none/suggest", "json": {"text": "a"}}),
    "a path that climbs": (404, {"path": "/models/..%2f..%2fetc/suggest", "json": {"text": "a"}}),
    "another method": (405, {"path": "/health", "json": {}}),
    "no content type": (415, {"path": "/models/subjects/suggest", "content": b'{"text": "a"}'}),
    "a form": (415, {"path": "/models/subjects/suggest", "data": {"text": "a"}}),
    "no body": (400, RAW | {"content": b""}),
    "no JSON": (400, RAW | {"content": b"{text: a}"}),
    "half of it": (400, RAW | {"content": b'{"text": "a"'}),
    "no UTF-8": (400, RAW | {"content": b'{"text": "\xff"}'}),
    "NaN": (400, RAW | {"content": b'{"text": "a", "threshold": NaN}'}),
    "infinity": (400, RAW | {"content": b'{"text": "a", "threshold": -Infinity}'}),
    "deep": (400, RAW | {"content": b"[" * 2000}),
    "a key twice": (400, RAW | {"content": b'{"text": "a", "text": "b"}'}),
    "a huge number": (400, RAW | {"content": b'{"text": "a", "k": 1' + b"0" * 3000 + b"}"}),
    "a list": (400, RAW | {"content": b"[]"}),
    "long": (413, of_suggest(text="word1 " * 1000)),
    "nothing asked": (400, of_suggest()),
    "unknown key": (400, of_suggest(text="a", limit=3)),
    "text and texts": (400, of_suggest(text="a", texts=["b"])),
    "no texts": (400, of_suggest(texts=[])),
    "a number": (400, of_suggest(texts=[1])),
    "texts no list": (400, of_suggest(texts="word1")),
    "many": (413, of_suggest(texts=["a"] * 9)),
    "vectors": (400, of_suggest(vectors=[[1.0]])),
    "k of 0": (400, of_suggest(text="a", k=0)),
    "k of true": (400, of_suggest(text="a", k=True)),
    "a large k": (400, of_suggest(text="a", k=51)),
    "k of a half": (400, of_suggest(text="a", k=1.5)),
    "threshold": (400, of_suggest(text="a", threshold=2)),
    "uncertainty": (400, of_suggest(text="a", uncertainty="yes")),
    "texts for classes": (400, {"path": "/models/classes/suggest", "json": {"text": "a"}}),
    "short vectors": (400, {"path": "/models/classes/suggest", "json": {"vectors": [[1.0]]}}),
    "vectors of words": (400, {"path": "/models/classes/suggest", "json": {"vectors": [["a"]]}}),
    "nothing to explain": (400, {"path": "/models/subjects/explain", "json": {"labels": ["other1"]}}),
    "a vector to explain": (400, {"path": "/models/subjects/explain", "json": {"vector": [1.0]}}),
    "labels to explain": (400, {"path": "/models/subjects/explain", "json": {"text": "a", "labels": "other1"}}),
    "no such label to explain": (422, {"path": "/models/subjects/explain", "json": {"text": "a", "labels": ["zzz"]}}),
    "many to explain": (400, {"path": "/models/subjects/explain", "json": {"text": "a", "k": 51}}),
    "explain in vain": (409, {"path": "/models/classes/explain", "json": {"vector": [0.0] * 4}}),
    "no token": (401, {"path": "/models/subjects/learn", "json": {"documents": [DOCUMENT]}}),
    "another token": (401, of_change("subjects/learn", {"documents": [DOCUMENT]}, Authorization="Bearer x")),
    "another scheme": (401, of_change("subjects/learn", {"documents": [DOCUMENT]}, Authorization=f"Digest {TOKEN}")),
    "broken Basic": (401, of_change("subjects/forget", {"ids": ["1"]}, Authorization="Basic !!!")),
    "token in vain": (409, of_change("classes/forget", {"ids": ["1"]})),
    "no documents": (400, of_change("subjects/learn", {"documents": []})),
    "no labels": (400, of_change("subjects/learn", {"documents": [{"text": "a"}]})),
    "labels no list": (400, of_change("subjects/learn", {"documents": [{"text": "a", "labels": "b"}]})),
    "labels of objects": (422, of_change("subjects/learn", {"documents": [{"text": "a", "labels": [{}]}]})),
    "some ids": (400, of_change("subjects/learn", {"documents": [DOCUMENT | {"id": "a"}, DOCUMENT]})),
    "ids twice": (422, of_change("subjects/learn", {"documents": [DOCUMENT | {"id": "a"}] * 2})),
    "id of objects": (422, of_change("subjects/learn", {"documents": [DOCUMENT | {"id": {}}]})),
    "new labels": (400, of_change("subjects/learn", {"documents": [DOCUMENT], "new_labels": 1})),
    "unknown labels": (
        422, of_change("subjects/learn", {"documents": [{"text": "a", "labels": ["zzz"]}], "new_labels": "error"}),
    ),
    "no such row": (422, of_change("subjects/forget", {"ids": ["nobody"]})),
    "ids no list": (400, of_change("subjects/forget", {"ids": "1"})),
    "a label again": (422, of_change("subjects/add-labels", {"labels": ["other1"]})),
    "Annif without text": (400, {"path": "/v1/projects/subjects/suggest", "data": {"limit": "3"}}),
    "Annif's limit": (400, {"path": "/v1/projects/subjects/suggest", "data": {"text": "a", "limit": "many"}}),
    "Annif's fields": (400, {"path": "/v1/projects/subjects/suggest", "data": {f"f{i}": "1" for i in range(30)}}),
    "Annif's type": (415, {"path": "/v1/projects/subjects/suggest", "content": b"text=a"}),
    "Annif's documents": (400, {"path": "/v1/projects/subjects/learn", "json": {}, "headers": AUTHORISED}),
    "Annif's subjects": (
        400, {"path": "/v1/projects/subjects/learn", "json": [{"text": "a", "subjects": ["b"]}], "headers": AUTHORISED},
    ),
    "tasks": (400, {"path": "/predict", "json": {"tasks": [{"data": {}}]}}),
    "no configuration": (400, {"path": "/setup", "json": {"schema": "<View>"}}),
    "entities": (400, {"path": "/setup", "json": {"schema": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'}}),
    "no choices": (400, {"path": "/setup", "json": {"schema": "<View/>"}}),
    "an event": (400, {"path": "/webhook", "json": [], "headers": AUTHORISED}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_told_in_a_line(client: TestClient, case: str):
    status, call = REFUSED[case]
    call = dict(call)
    answer = client.post(call.pop("path"), **call)
    told = answer.json()
    assert (answer.status_code, list(told)) == (status, ["error"])
    assert told["error"].isprintable()
    assert 5 < len(told["error"]) < 300
    assert "Traceback" not in answer.text
    assert client.get("/models/subjects").json()["n_rows"] == 144


def test_without_a_token_nothing_changes(reader: TestClient):
    refused = reader.post("/models/subjects/learn", json={"documents": [DOCUMENT]}, headers=AUTHORISED)
    assert (refused.status_code, "--token-file" in refused.json()["error"]) == (403, True)


def test_faults_of_our_own_leave_no_trace(reader: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: Any):
    monkeypatch.setattr(ServedModel, "_of", lambda *args: 1 / 0)
    answer = reader.post("/models/subjects/suggest", json={"text": "a"})
    assert (answer.status_code, answer.json()) == (500, {"error": "something went wrong here; the server's log has it"})
    assert "ZeroDivisionError" in caplog.text


def run_together(model: ServedModel, *calls: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_documents_that_come_together_are_answered_together(trained: Path):
    model = ServedModel(trained / "subjects", LIMITS, changes=False)
    alone = extremegp.load(trained / "subjects").predict_topk(TEXTS[:12], 3)
    found = run_together(model, *(model.suggest([text], k) for text, k in zip(TEXTS[:12], [1, 2, 3] * 4, strict=True)))
    assert model.n_batches <= 3
    for row, (answer,) in enumerate(found):
        assert len(answer.labels) == row % 3 + 1
        np.testing.assert_allclose(
            [each.probability for each in answer.labels], alone.scores[row, : row % 3 + 1], rtol=1e-5
        )


def test_a_queue_has_an_end(trained: Path):
    model = ServedModel(trained / "subjects", LIMITS, changes=False)
    found = run_together(model, *(model.suggest([text], 1) for text in TEXTS[:40]))
    refused = [each for each in found if isinstance(each, Exception)]
    assert len(refused) == 24
    assert {each.status for each in refused} == {503}


def test_an_answer_that_does_not_come_is_given_up(trained: Path, monkeypatch: pytest.MonkeyPatch):
    model = ServedModel(trained / "subjects", Limits(seconds=0.1), changes=False)
    blocked = threading.Event()
    monkeypatch.setattr(model, "_of", lambda *args: blocked.wait(5) and [])
    (error,) = run_together(model, model.suggest(["a"], 1))
    blocked.set()
    assert error.status == 503


def test_other_processes_wait_and_other_models_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.1)
    held = ServedModel(folder / "subjects", LIMITS, changes=True)
    with pytest.raises(DataError, match="another process"):
        ServedModel(folder / "subjects", LIMITS, changes=True)
    asyncio.run(held.close())
    config = json.loads((folder / "classes" / "config.json").read_text())
    (folder / "classes" / "config.json").write_text(json.dumps(config | {"estimator": "SequenceGPClassifier"}))
    with pytest.raises(SettingsError, match="sequences"):
        ServedModel(folder / "classes", LIMITS, changes=False)
