"""A page of a report as tests read it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</textarea></td><svg onload=alert(1)>",
    "javascript:alert(1)//https://evil.example/a",
    "\u202eevil &amp; $title ${style}",
    "'; DROP TABLE labels; --",
)
VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Tags, attributes, texts and tables of a page, which must be well-formed.

    Attributes:
        attributes: of all tags: tag, name, value.
        figures: the numbers of the tables with an id, by that and the name of the row.
        text: of the page without style and script.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text, self.script, self.style = "", "", ""
        self.figures: dict[str, dict[str, list[float]]] = {}
        self._open: list[str] = []
        self._table = self._head = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert len(given) == len(attrs)
        self.attributes += [(tag, name, value) for name, value in given.items()]
        self.tags.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "table":
            self._table = given.get("id", "")
        if tag == "tr":
            self._head = ""
        if tag == "td" and self._table and "data-v" in given:
            self.figures.setdefault(self._table, {}).setdefault(self._head, []).append(float(given["data-v"]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/> is no HTML")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self._open:
            self.script += data
        elif "style" in self._open:
            self.style += data
        else:
            self.text += data
            if self._open[-1:] == ["th"] and self._table:
                self._head += data.strip()


def checked(html: str) -> Page:
    """A page that is well-formed, asks for nothing, and runs nothing but its own script."""
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert page.tags.count("script") == page.tags.count("style") == 1
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    policy = next(value for _, name, value in page.attributes if name == "content" and "default-src" in value)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "srcset", "action", "formaction", "data", "poster"), (tag, name)
        if name in ("href", "xlink:href"):
            assert value == "data:," or (value.startswith("#") and value[1:] in page.ids), value
        if name == "style":
            assert re.fullmatch(r"width:\d+%", value), value
    assert "url(" not in page.style
    assert "@import" not in page.style
    assert not {"img", "iframe", "object", "embed", "form", "base"} & {*page.tags}
    assert len(page.ids) == len({*page.ids})
    # What is there to see has a name for those who do not see it.
    assert all(
        any(t == "svg" and n == "aria-label" for t, n, _ in page.attributes) for tag in page.tags if tag == "svg"
    )
    assert page.tags.count("caption") == page.tags.count("table")
    heads = [value for tag, name, value in page.attributes if tag == "th" and name == "scope"]
    assert len(heads) == page.tags.count("th")
    assert {*heads} <= {"row", "col"}
    assert len(html.encode()) < 2_000_000
    return page
