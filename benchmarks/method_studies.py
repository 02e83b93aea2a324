"""What the thesis compares on Bibtex, what it reports, and what it says of the results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

from extremegp.presets import PRESETS

N_LATENT, N_INDUCING = 159, 100
TOLERANCE = 0.5
"""Points of P@1, or percent of the bound, that count as no difference."""
THESIS_SECONDS = {
    "LINEAR": 62,
    "LINEAR-L": 62,
    "SE": 65,
    "SE-P-L": 127,
    "ARD/LINEAR": 64,
    "ARD": 64,
    "ARD-PP": 110,
    "ARD-FX": 63,
    "ARD-UN": 63,
    "ARD-S": 62,
    "ARD-S-B": 63,
}
"""Seconds per epoch, T Table 4.10."""
THESIS_AUTOGRAD_SECONDS = 648
"""Of ARD-PP in the thesis' other implementation, ARD-PP-AG (T Tables 4.8 and 4.10)."""

Metric = Literal["P@1", "bound"]


class Variant(NamedTuple):
    """A method at a size."""

    method: str
    n_latent: int = N_LATENT
    n_inducing: int = N_INDUCING

    def __str__(self) -> str:
        return f"{self.method}, P = {self.n_latent}, M = {self.n_inducing}"

    @property
    def thesis(self) -> tuple[float, float, float] | None:
        """P@1/3/5 in percent, where the thesis prints them."""
        figures = PRESETS[self.method].figures
        return figures.precision if figures and self[1:] == (N_LATENT, N_INDUCING) else None


class Claim(NamedTuple):
    """What the thesis says of a metric along some variants, in the order it says it.

    Attributes:
        kind: how the metric changes from one to the next: "above" by more than the tolerance; "rising" without a fall
            beyond the tolerance, and from first to last by more; "kept" without such a fall; "level" within it.
    """

    where: str
    text: str
    kind: Literal["above", "rising", "kept", "level"]
    metric: Metric
    order: Sequence[Variant]

    def judge(self, values: Sequence[float]) -> tuple[list[float], bool]:
        """The changes, in points of P@1 or percent of the bound, and whether they are as the thesis says."""
        steps = [
            100 * (after - before) / (1 if self.metric == "P@1" else abs(before))
            for before, after in itertools.pairwise(values)
        ]
        kept = all(step >= -TOLERANCE for step in steps)
        agrees = {
            "above": all(step > TOLERANCE for step in steps),
            "rising": kept and sum(steps) > TOLERANCE,
            "kept": kept,
            "level": all(abs(step) <= TOLERANCE for step in steps),
        }
        return steps, agrees[self.kind]


class Study(NamedTuple):
    """Runs that are compared with each other."""

    names: tuple[str, ...]
    title: str
    variants: list[Variant]
    claims: list[Claim]


def all_studies(ms: Sequence[int], ps: Sequence[int], *, full: bool) -> list[Study]:
    """The comparisons.

    Args:
        ms: numbers of inducing inputs, ascending.
        ps: numbers of latent functions, ascending.
        full: whether kernels and subspaces are compared with the papers' posterior too.
    """
    suffixes = ("", "-FP") if full else ("",)
    kernels = [Variant(k + s) for s in suffixes for k in ("LINEAR", "LINEAR-L", "SE", "SE-P-L", "ARD", "ARD/LINEAR")]
    subspaces = [Variant(name + suffix) for suffix in suffixes for name in ("ARD", "ARD-S", "ARD-S-B")]

    def pair(
        where: str, kind: Literal["above", "kept", "level"], first: str, second: str, text: str, metric: Metric = "P@1"
    ) -> list[Claim]:
        both = suffixes if where in ("Table 4.5", "Table 4.6") else ("",)
        return [Claim(where, text, kind, metric, [Variant(first + s), Variant(second + s)]) for s in both]

    def both_metrics(table: str, first: str, second: str, text: str) -> list[Claim]:
        return [claim for metric in ("P@1", "bound") for claim in pair(table, "above", first, second, text, metric)]

    by_m = {p: [Variant("ARD", p, m) for m in ms] for p in (80, N_LATENT)}
    by_p = {m: [Variant("ARD", p, m) for p in ps] for m in (50, N_INDUCING)}
    fewest, most = ([Variant("ARD", p, m) for m in by_p] for p in (ps[0], ps[-1]))
    return [
        Study(
            ("t4.5", "f4.1"),
            "T Table 4.5, Figure 4.1: kernels",
            kernels,
            [
                *pair("Table 4.5", "above", "LINEAR", "LINEAR-L", "a weight per feature helps the linear kernel"),
                *pair("Table 4.5", "above", "SE", "ARD", "a lengthscale per feature helps the squared exponential"),
                *pair("Table 4.5", "above", "LINEAR", "SE", "squared exponential above linear"),
                *pair("Table 4.5", "kept", "SE-P-L", "SE", "a lengthscale per latent function is no help"),
                *pair("Table 4.5", "level", "ARD", "ARD/LINEAR", "a linear kernel added to ARD changes little"),
            ],
        ),
        Study(
            ("t4.6", "f4.2"),
            "T Table 4.6, Figure 4.2: inducing inputs in a subspace of R = 500 dimensions",
            subspaces,
            [
                *pair("Table 4.6", "kept", "ARD-S", "ARD", "a subspace is no better than free inducing inputs"),
                *pair("Table 4.6", "kept", "ARD-S-B", "ARD-S", "learning the basis as well brings nothing"),
            ],
        ),
        Study(
            ("t4.7", "f4.3"),
            "T Table 4.7, Figure 4.3: posteriors",
            [Variant("ARD"), Variant("ARD-PP")],
            both_metrics("Table 4.7", "ARD-PP", "ARD", "the parsimonious posterior is far below"),
        ),
        Study(
            ("f4.5",),
            "T Figure 4.5: learnt and fixed inducing inputs",
            [Variant("ARD"), Variant("ARD-FX")],
            both_metrics("Figure 4.5", "ARD-FX", "ARD", "learnt inducing inputs above fixed ones"),
        ),
        Study(
            ("f4.6",),
            "T Figure 4.6: normalised and free norms of inducing inputs",
            [Variant("ARD"), Variant("ARD-UN")],
            both_metrics("Figure 4.6", "ARD-UN", "ARD", "normalised inducing inputs above unnormalised ones"),
        ),
        Study(
            ("f4.7", "f4.8", "f4.11", "f4.12"),
            "T Figures 4.7, 4.8, 4.11a, 4.12a: number of inducing inputs",
            [variant for line in by_m.values() for variant in line],
            [
                Claim(where, f"{what} rises with M, P = {p}", "rising", metric, line)
                for where, what, metric in (
                    ("Figures 4.7, 4.11a", "P@1", "P@1"),
                    ("Figures 4.8, 4.12a", "the bound", "bound"),
                )
                for p, line in by_m.items()
                if len(line) > 1
            ],
        ),
        Study(
            ("f4.9", "f4.10", "f4.11", "f4.12"),
            "T Figures 4.9, 4.10, 4.11b, 4.12b: number of latent functions",
            [variant for line in by_p.values() for variant in line],
            [
                *(
                    Claim(where, f"{what} rises with P, M = {m}", "rising", metric, line)
                    for where, what, metric in (
                        ("Figures 4.9, 4.11b", "P@1", "P@1"),
                        ("Figures 4.10, 4.12b", "the bound", "bound"),
                    )
                    for m, line in by_p.items()
                    if len(line) > 1
                ),
                *(
                    Claim("Figure 4.9", f"more latent functions than labels do not hurt, M = {m}", "kept", "P@1", line)
                    for m in by_p
                    if len(line := [Variant("ARD", p, m) for p in ps if p >= N_LATENT]) > 1
                ),
                Claim(
                    "Figure 4.9", f"with many, P = {ps[-1]}, M = 50 and 100 are about the same", "level", "P@1", most
                ),
                Claim("Figure 4.9", f"with few, P = {ps[0]}, M = 100 is above M = 50", "above", "P@1", fewest),
            ],
        ),
    ]
