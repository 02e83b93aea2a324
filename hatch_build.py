"""What the package says of itself where it is published: its addresses, and a README whose links work there.

Where the repository is stands in one line of `pyproject.toml`, under `tool.hatch.metadata.hooks.custom`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


class PublishedMetadata(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = self.config.get("repository", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": published(text, repository)}
        if repository:
            metadata["urls"] = {
                "Documentation": self.config.get("documentation") or f"{repository}/blob/main/docs/index.md",
                "Source": repository,
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }


def published(readme: str, repository: str) -> str:
    """The README with links to files made links to the repository, or to nothing where that is unknown."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(link, readme)
