"""`extremegp serve` as a process: its life, clients that are slow or go away, and its page in a browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.label_tree.small import small_classifier

import extremegp

TOKEN = "a-token-of-tests"
TEXTS = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(12)]
LABELS = [[f"label{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]
HEAD = (
    b"POST /models/subjects/suggest HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Server:
    """A server of one model, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "subjects"
        small_classifier(features="text").fit(TEXTS, LABELS).save(self.folder)
        (folder / "token").write_text(f"{TOKEN}\n")
        command = [sys.executable, "-m", "extremegp", "serve", str(self.folder), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--token-file", str(folder / "token")], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if found := re.search(r"listening on http://127.0.0.1:(\d+)/", line):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(lines)

    def stop(self, number: int) -> int:
        """Send a signal, and wait for the end."""
        self.process.send_signal(number)
        code = self.process.wait(20)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"} | headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def learn(self, name: str) -> tuple[int, Any]:
        body = {"documents": [{"text": "word1 word2", "labels": ["label1"], "id": name}]}
        return self.ask("/models/subjects/learn", body, Authorization=f"Bearer {TOKEN}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.stop(signal.SIGKILL)


def test_many_clients_ask_and_teach_at_once(server: Server):
    before, found = server.ask("/models/subjects")[1]["n_rows"], []

    def client(number: int) -> None:
        for turn in range(10):
            if turn % 5 == 0:
                found.append(server.learn(f"{number} {turn}")[0])
            found.append(server.ask("/models/subjects/suggest", {"text": TEXTS[number], "k": 3})[0])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(set(found)) == [200, 201]
    assert server.ask("/models/subjects")[1]["n_rows"] == before + 16
    assert extremegp.load(server.folder).n_rows_ == before + 16


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /hea",
        HEAD + b"{",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000,
    ],
)
def test_clients_that_go_away_or_send_rubbish_do_no_harm(server: Server, sent: bytes):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            answer = client.recv(1000)
        except ConnectionError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert server.ask("/health")[0] == 200


def test_a_body_that_does_not_come_is_given_up(server: Server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(HEAD)
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


def test_it_stops_when_it_is_told_to_and_loses_nothing(tmp_path: Path):
    server = Server(tmp_path)
    assert server.learn("a")[0] == 201
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    assert extremegp.load(server.folder).ids_.names[-1] == "a"


def test_a_kill_loses_no_document_that_was_answered(tmp_path: Path):
    server, answered = Server(tmp_path), ["first"]
    assert server.learn("first")[0] == 201
    killer = threading.Timer(0.3, server.process.kill)
    killer.start()
    for number in range(10**6):
        try:
            if server.learn(f"doc {number}")[0] == 201:
                answered.append(f"doc {number}")
        except (OSError, http.client.HTTPException, ValueError):
            break
    killer.join()
    server.stop(signal.SIGKILL)
    assert len(answered) > 3
    assert extremegp.load(server.folder).ids_.names[144:][: len(answered)] == answered


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian's package chromium)")
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_suggests_and_learns_in_a_browser(server: Server, tmp_path: Path, width: int):
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        page = browser.new_page(viewport={"width": width, "height": 800})
        problems, asked = [], []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{server.port}/")
        api.expect(page.locator("#about")).to_contain_text("labels")
        n_rows = server.ask("/models/subjects")[1]["n_rows"]
        # By the keyboard alone: the text has the focus.
        page.keyboard.type("word1 word2 word3")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#labels li")
        shown = [text.strip() for text in page.locator("#labels li label").all_inner_texts()]
        body = {"texts": ["word1 word2 word3"], "k": 10}
        expected = server.ask("/models/subjects/suggest", body)[1]["suggestions"][0]["labels"]
        assert shown == [each["title"] for each in expected]
        assert "nats" in page.inner_text("#sure")
        first = page.locator("#labels li").first
        first.locator("summary").press("Enter")
        first.locator("table").first.wait_for()
        told = server.ask("/models/subjects/explain", {"text": "word1 word2 word3", "labels": [expected[0]["label"]]})[
            1
        ]
        documents = told["explanations"][0]["documents"]
        cells = first.locator("table").first.locator("td:first-child").all_inner_texts()
        assert cells == [each["name"] for each in documents]
        page.fill("#more", f"new at {width}; <b>bold</b>")
        page.press("#more", "Enter")
        api.expect(page.locator("#problem")).to_contain_text("Bearer")
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        api.expect(page.locator("#taught")).to_contain_text("Learnt")
        assert server.ask("/models/subjects")[1]["n_rows"] == n_rows + 1
        labels = [text.strip() for text in page.locator("#labels li label").all_inner_texts()]
        assert f"new at {width}" in labels
        assert page.locator("#labels b").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        refused = ["401" in each or "Unauthorized" in each for each in problems]
        assert all(refused), problems
        assert {url.split("/")[2] for url in asked if url.startswith("http")} == {f"127.0.0.1:{server.port}"}
        if folder := os.environ.get("EXTREMEGP_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/page-{width}.png", full_page=True)
        page.goto(f"http://127.0.0.1:{server.port}/docs")
        page.wait_for_selector("details")
        assert page.locator("details").count() > 15
        browser.close()


def test_what_cannot_be_served_is_told_in_a_line(tmp_path: Path):
    small_classifier(features="text").fit(TEXTS, LABELS).save(tmp_path / "m")
    (tmp_path / "short").write_text("abc")
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "m", tmp_path / "other" / "m")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        calls = {
            "cannot listen": [str(tmp_path / "m"), "--port", port],
            "no such model": [str(tmp_path / "nothing")],
            "at least 8": [str(tmp_path / "m"), "--token-file", str(tmp_path / "short")],
            "cannot be read": [str(tmp_path / "m"), "--token-file", str(tmp_path / "none")],
            "two models": [str(tmp_path / "m"), str(tmp_path / "other" / "m")],
        }
        for told, arguments in calls.items():
            command = [sys.executable, "-m", "extremegp", "serve", "--quiet", *arguments]
            found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert (found.returncode, found.stderr.count("\n")) == (2, 1), found.stderr
            assert told in found.stderr
