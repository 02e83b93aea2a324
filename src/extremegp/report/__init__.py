"""Reports: all about a model on labelled data, on one page of HTML that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extremegp._lazy import lazily

if TYPE_CHECKING:
    from extremegp.report.page import Report, make_report

__all__ = ["Report", "make_report"]

__getattr__, __dir__ = lazily(__name__, {"extremegp.report.page": ("Report", "make_report")})
