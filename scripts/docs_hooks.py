"""Hooks of the documentation build: formulas become MathML, and the reference of the commands comes from the program.

Browsers show MathML by themselves, so the pages need no network and no script.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from typing import Any

from mathml import mathml
from mkdocs.exceptions import PluginError

_COMMANDS = "<!-- commands -->"
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# Characters of LaTeX from which a formula may be wider than a telephone.
_LONG = 30
# Typer leaves two blank lines before what the program shows line by line.
_VERBATIM = re.compile(r"\n\n\n((?:[^\n]+\n)+)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands and their options in place of a marker."""
    return markdown.replace(_COMMANDS, command_reference()) if _COMMANDS in markdown else markdown


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Turn formulas, as pymdownx.arithmatex leaves them, to MathML."""
    return _FORMULA.sub(lambda found: formula(found[2], found[1] == "div", page.file.src_uri), content)


def command_reference() -> str:
    """Every command with its options as Markdown, headings from the second level down."""
    command = [sys.executable, "-m", "typer", "extremegp.cli", "utils", "docs", "--name", "extremegp"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = text.replace("# `extremegp`\n", "## `extremegp`\n", 1)
    return _VERBATIM.sub(lambda block: f"\n\n```text\n{html.unescape(block[1])}```\n", text)


def formula(latex: str, display: bool, where: str) -> str:
    """A formula in a box of its own, which scrolls where the page is narrower.

    Raises:
        PluginError: it cannot be shown as MathML.
    """
    try:
        shown = mathml(html.unescape(latex), display)
    except ValueError as error:
        raise PluginError(f"{where}: {error}") from error
    box, size = ("div", "") if display else ("span", " long" * (len(latex) > _LONG))
    return f'<{box} class="formula{size}">{shown}</{box}>'
