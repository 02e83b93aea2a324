"""Reports in Chromium: narrow and wide, sorted by mouse and keyboard, without any request."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.estimators.small_sequences import small_tagger, sticky
from tests.estimators.test_learning_closed import classes
from tests.report.pages import HOSTILE

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier
from extremegp.report import make_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian's package chromium)")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """labels.html, classes.html and sequences.html, with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    texts = [f"word{a} word{b} {HOSTILE[(a + b) % 6]} {'x' * 300}" for a in range(12) for b in range(12)]
    names = [[f"{HOSTILE[a % 4]} {a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]
    small: dict[str, Any] = {"n_trees": 2, "leaf_size": 4, "n_inducing": 8, "random_state": 0, "verbose": False}
    trees = LabelTreeGPClassifier(features="text", **small).fit(texts, names)
    one = MultiClassGPClassifier(n_inducing=40, random_state=0, verbose=False).fit(*classes(150))
    tagger = small_tagger(epochs=3).fit(*sticky(30))
    for name, model, data in (
        ("labels", trees, (texts[::2], names[::2])),
        ("classes", one, classes(90, 4)),
        ("sequences", tagger, sticky(20, seed=2)),
    ):
        html = make_report(model, *data, title=f"{HOSTILE[1]} {name}", n_resamples=100).html  # type: ignore[arg-type]
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return folder


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("name", ["labels", "classes", "sequences"])
def test_a_report_is_read_and_sorted_in_a_browser(pages: Path, name: str, width: int) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme="dark" if width == 400 else None)
        told: list[str] = []
        asked: list[str] = []
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("console", lambda message: told.append(message.text))
        page.on("dialog", lambda dialog: told.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        address = (pages / f"{name}.html").as_uri()
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert HOSTILE[1] in page.inner_text("h1")
        assert page.locator("img, iframe, form").count() == 0
        heads = page.locator("#worst thead th")
        last = heads.nth(1)
        assert last.get_attribute("aria-sort") == "none"
        # By the keyboard: numbers from the largest first, then from the least.
        values = "rows => rows.map(row => Number(row.cells[1].dataset.v))"
        for expected in ("descending", "ascending"):
            last.locator("button").press("Enter")
            assert last.get_attribute("aria-sort") == expected
            found = page.locator("#worst tbody tr").evaluate_all(values)
            assert found == sorted(found, reverse=expected == "descending")
        # By a click: names from the first, and numbers are in no order any more.
        heads.nth(0).locator("button").click()
        assert (heads.nth(0).get_attribute("aria-sort"), last.get_attribute("aria-sort")) == ("ascending", "none")
        names = page.locator("#worst tbody th").all_inner_texts()
        in_order = "names => [...names].sort((a, b) => a.localeCompare(b, 'en'))"
        assert names == page.evaluate(in_order, names)
        for summary in page.locator("summary").all():
            summary.press("Enter")
        assert page.locator("details:not([open])").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.emulate_media(media="print")
        assert page.locator("nav").is_hidden()
        assert told == []
        assert asked == [address]
        if folder := os.environ.get("EXTREMEGP_SCREENSHOTS"):
            page.emulate_media(media="screen")
            page.screenshot(path=f"{folder}/report-{name}-{width}.png", full_page=True)
        browser.close()
