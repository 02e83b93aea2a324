"""The built documentation in a browser, Chromium: narrow pages, formulas, the search, nothing from outside."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
WIDTH = 400
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium"),
]

# Opens every page in a frame as wide as a telephone, then searches, and posts what it saw.
HARNESS = """<!doctype html><body><script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
async function opened(page) {
  const frame = document.createElement("iframe");
  frame.style = "width: WIDTHpx; height: 800px; border: 0";
  frame.src = page;
  document.body.append(frame);
  await new Promise((done) => (frame.onload = done));
  await frame.contentDocument.fonts.ready;
  return frame;
}
async function look() {
  const seen = { widths: {}, outside: [] };
  for (const page of PAGES) {
    const frame = await opened(page), inside = frame.contentWindow;
    seen.widths[page] = inside.document.documentElement.scrollWidth;
    const loaded = inside.performance.getEntriesByType("resource").map((each) => each.name);
    seen.outside.push(...loaded.filter((name) => !name.startsWith(location.origin)));
    if (page === "model/index.html")
      seen.fonts = [...inside.document.fonts].filter((font) => font.status === "loaded").map((font) => font.family);
    frame.remove();
  }
  const search = await opened("index.html?q=csv");
  for (let tries = 0; tries < 100 && !seen.found; tries++) {
    await wait(100);
    const results = search.contentDocument.querySelectorAll(".md-search-result__link");
    if (results.length) seen.found = [...results].map((link) => link.href);
  }
  seen.schemes = [...search.contentDocument.querySelectorAll("[data-md-color-scheme]")].map(
    (each) => each.dataset.mdColorScheme);
  return seen;
}
look().catch((error) => ({ error: String(error) })).then(
  (seen) => fetch("/seen", { method: "POST", body: JSON.stringify(seen) }));
</script>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and the harness, and keeps what that posts."""

    def do_GET(self) -> None:
        if self.path != "/harness":
            return super().do_GET()
        page = self.server.harness.encode()  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        seen = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.seen = json.loads(seen)  # type: ignore[attr-defined]
        self.server.done.set()  # type: ignore[attr-defined]

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    site, profile = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("profile")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    server.harness = HARNESS.replace("WIDTH", str(WIDTH)).replace("PAGES", json.dumps(pages))
    server.done = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/harness"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", *QUIET]
    browser = subprocess.Popen(
        [str(BROWSER), *options, f"--user-data-dir={profile}", address], stderr=subprocess.DEVNULL
    )
    try:
        assert server.done.wait(240), "the browser did not answer"
        yield server.seen
    finally:
        browser.terminate()
        browser.wait(30)
        server.shutdown()
        server.server_close()


def test_no_page_is_wider_than_a_telephone(seen: dict[str, Any]) -> None:
    assert len(seen["widths"]) > 20
    assert {page: width for page, width in seen["widths"].items() if width > WIDTH} == {}


def test_nothing_is_loaded_from_outside(seen: dict[str, Any]) -> None:
    assert seen["outside"] == []


def test_formulas_are_set_in_a_mathematical_font_that_comes_along(seen: dict[str, Any]) -> None:
    assert any("Latin Modern Math" in family for family in seen["fonts"])


def test_the_search_for_csv_finds_the_page_on_formats_first(seen: dict[str, Any]) -> None:
    assert "/guide/your-data/" in seen["found"][0]


def test_a_reader_can_switch_to_dark(seen: dict[str, Any]) -> None:
    assert {"default", "slate"} <= set(seen["schemes"])
