"""Many labels per row: the thesis' chapter 4 and the papers ML and S."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.plans.parts import Check, Plan, Row
from benchmarks.papers.specs import DEFAULT, labels

PLANS: dict[str, Plan] = {}

_SIZE: dict[str, Any] = {"n_latent": 159, "n_inducing": 100, "epochs": 50}
_NAMES = {"LINEAR-l": "LINEAR-L", "SE-p-l": "SE-P-L"}


def _bibtex(method: str, *, note: str = "", **changes: Any) -> Row:
    return Row("bibtex", method, (labels("bibtex", _NAMES.get(method, method), **(_SIZE | changes)),), note=note)


def _sb(name: str, data: str, preset: str, *, seeds: tuple[int, ...] = (0,), note: str = "", **params: Any) -> Row:
    return Row(data, name, tuple(labels(data, preset, seed, **params) for seed in seeds), note=note)


_KERNELS = tuple(_bibtex(name) for name in ("LINEAR", "LINEAR-l", "SE", "SE-p-l", "ARD", "ARD/LINEAR"))
_OURS = Row("bibtex", "ours: ARD-SB", (labels("bibtex", "ARD-SB", **_SIZE),))
_ARD, _ARD_PP, _ARD_FX, _ARD_UN = (_bibtex(name) for name in ("ARD", "ARD-PP", "ARD-FX", "ARD-UN"))
_SUBSPACES = (_bibtex("ARD-S"), _bibtex("ARD-S-B"))
_OF_KERNELS = (
    Check("bibtex", "P@1", ("LINEAR", "LINEAR-l")),
    Check("bibtex", "P@1", ("SE", "ARD")),
    Check("bibtex", "P@1", ("LINEAR", "SE")),
    Check("bibtex", "P@1", ("SE-p-l", "SE"), level=True),
)
_WHY_SE = (
    "LINEAR ends 2 points above the thesis' figure here, and SE 1 below, so that they change places; from four starts "
    "SE learns the same lengthscale (w = 0.18 to 0.23), and its bound stays 3 % below that of LINEAR"
)
PLANS["T4.5"] = Plan((*_KERNELS, _OURS), _OF_KERNELS, _WHY_SE)
PLANS["T-fig4.1"] = Plan(
    (*_KERNELS, _OURS),
    (*_OF_KERNELS, Check("bibtex", "ELBO", ("SE", "ARD")), Check("bibtex", "ELBO", ("LINEAR", "LINEAR-l"))),
    _WHY_SE,
)
_OF_SUBSPACES = (
    Check("bibtex", "P@1", ("ARD-S", "ARD"), level=True),
    Check("bibtex", "P@1", ("ARD-S-B", "ARD-S"), level=True),
)
PLANS["T4.6"] = Plan((_ARD, *_SUBSPACES), _OF_SUBSPACES)
PLANS["T-fig4.2"] = Plan((_ARD, *_SUBSPACES), _OF_SUBSPACES)
_OF_PP = (Check("bibtex", "P@1", ("ARD-PP", "ARD")), Check("bibtex", "ELBO", ("ARD-PP", "ARD")))
_WHY_PP = (
    "the covariances of this posterior are those that the bound is best at, and its mean is parametrised so that steps "
    "reach it; the thesis' implementation stopped 21 points short"
)
PLANS["T4.7"] = Plan((_ARD, _ARD_PP), (_OF_PP[0],), _WHY_PP)
PLANS["T-fig4.3"] = Plan((_ARD, _ARD_PP), _OF_PP, _WHY_PP)


def _timed(method: str) -> Row:
    spec = labels("bibtex", _NAMES.get(method, method), how="time", n_latent=159, n_inducing=500, batch_size=500)
    return Row("bibtex", method, (spec,))


PLANS["T4.8"] = Plan(
    (_ARD_PP._replace(timed=_timed("ARD-PP").specs),),
    why="its other implementation, ARD-PP-AG, is the author's own program; the thesis thinks its optimiser at fault",
)
PLANS["T-fig4.4"] = Plan((_ARD_PP,), why="the course of the author's other implementation cannot be had")
PLANS["T-fig4.5"] = Plan(
    (_ARD, _ARD_FX), (Check("bibtex", "P@1", ("ARD-FX", "ARD")), Check("bibtex", "ELBO", ("ARD-FX", "ARD")))
)
PLANS["T-fig4.6"] = Plan(
    (_ARD, _ARD_UN),
    (Check("bibtex", "P@1", ("ARD-UN", "ARD")), Check("bibtex", "ELBO", ("ARD-UN", "ARD"))),
    "inducing inputs of any norm stay near the rows here, as they start at centres of rows of unit norm",
)
_TIMED = tuple(
    _timed(name)
    for name in (
        "LINEAR",
        "LINEAR-l",
        "SE",
        "SE-p-l",
        "ARD/LINEAR",
        "ARD",
        "ARD-PP",
        "ARD-FX",
        "ARD-UN",
        "ARD-S",
        "ARD-S-B",
    )
)
_FAST = Row("bibtex", "ours: ARD-SB", _timed("ARD-SB").specs)
PLANS["T4.10"] = Plan(
    (*_TIMED, _FAST),
    (Check("bibtex", "s/epoch", ("ARD-PP", "ARD")), Check("bibtex", "s/epoch", ("ARD", "ours: ARD-SB"))),
    "the papers' posteriors cost B P M^2 products a step, whoever makes them: two cores against a server; the shared "
    "basis (-SB) is what makes the difference",
)

_BY_M = {
    p: tuple(
        _sb(f"M = {m}, P = {p}", "bibtex", "ARD-SB", n_latent=p, n_inducing=m, epochs=50)
        for m in (10, 50, 100, 200, 400, 800)
    )
    for p in (80, 159)
}
_BY_P = {
    m: tuple(
        _sb(f"M = {m}, P = {p}", "bibtex", "ARD-SB", n_latent=p, n_inducing=m, epochs=50)
        for p in (10, 20, 40, 80, 159, 500)
    )
    for m in (50, 100)
}
_WHY_GRID = (
    "with the shared basis (ARD-SB) in place of the full posterior; more than 40 to 80 functions bring no more here, "
    "and after 50 epochs 500 of them, which start at random loadings, have the lower bound: whether more epochs mend "
    "it was not tried"
)


def _rising(metric: str, lines: dict[int, tuple[Row, ...]]) -> tuple[Check, ...]:
    return tuple(
        Check("bibtex", metric, tuple(row.method for row in rows), level=metric == "P@1") for rows in lines.values()
    )


for _number, _metric, _lines in (
    ("T-fig4.7", "P@1", _BY_M),
    ("T-fig4.8", "ELBO", _BY_M),
    ("T-fig4.9", "P@1", _BY_P),
    ("T-fig4.10", "ELBO", _BY_P),
):
    PLANS[_number] = Plan(tuple(row for rows in _lines.values() for row in rows), _rising(_metric, _lines), _WHY_GRID)
_GRID = tuple(dict.fromkeys(row for lines in (_BY_M, _BY_P) for rows in lines.values() for row in rows))
for _number, _metric in (("T-fig4.11", "P@1"), ("T-fig4.12", "ELBO"), ("ML-fig3", "P@1"), ("ML-fig4", "ELBO")):
    PLANS[_number] = Plan(_GRID, (*_rising(_metric, _BY_M), *_rising(_metric, _BY_P)), _WHY_GRID)
PLANS["ML-fig2"] = Plan(
    _GRID,
    tuple(check for metric in ("P@1", "ELBO") for lines in (_BY_M, _BY_P) for check in _rising(metric, lines)),
    _WHY_GRID,
)
PLANS["T4.9"] = Plan(
    (
        Row("bibtex", "ARD M=50 P=500", _BY_P[50][-1].specs, note="ARD-SB"),
        Row("bibtex", "ARD M=100 P=500", _BY_P[100][-1].specs, note="ARD-SB"),
        *_GRID,
    ),
    (Check("bibtex", "seconds", ("M = 800, P = 159", "M = 400, P = 159", "M = 100, P = 159")),),
    _WHY_GRID,
)

_COUNTED = {
    "bibtex": {"n_latent": 159, "n_inducing": 400, "n_subspace": 1000},
    "delicious": {"n_latent": 300, "n_inducing": 400, "n_subspace": 250},
}
PLANS["T4.11"] = Plan(
    tuple(
        Row(data, name, (labels(data, name, how="count", **sizes),))
        for data, sizes in _COUNTED.items()
        for name in ("ARD", "ARD-S", "ARD-S-B", "ARD-PP", "ARD-S-PP", "ARD-S-B-PP")
    )
)

_SMALL: dict[str, Any] = {"n_latent": 30, "n_inducing": 200, "epochs": 60}
_OF_S = {
    f"{kernel}{kind}": f"{kernel}{suffix}-SB"
    for kernel in ("LINEAR", "SE")
    for kind, suffix in (("", ""), ("-S", "-S"), ("-FX", "-FX"), ("-S-FX", "-S-FX"))
}
"""The variants of paper S and of T 4.6.4: inducing inputs learnt or not, in a subspace or not."""
_OF_S_NAMES = {
    "S": {"": "", "-S": "s-", "-FX": "f-", "-S-FX": "sf-"},
    "T": {kind: kind for kind in ("", "-S", "-FX", "-S-FX")},
}
_WHY_S = (
    "60 epochs, M = 200 and the shared basis (-SB) in place of 200 to 400 epochs, M = 500 and the parsimonious "
    "posterior, an epoch of which takes minutes"
)


def _of_s(paper: str, kinds: tuple[str, ...]) -> tuple[Row, ...]:
    rows = []
    for data in ("bibtex", "delicious"):
        for kernel in ("LINEAR", "SE"):
            for kind in kinds:
                spec = labels(data, _OF_S[kernel + kind], **_SMALL)
                name = f"{_OF_S_NAMES['S'][kind]}{kernel}" if paper == "S" else f"{kernel}{kind}-PP-AG"
                rows.append(Row(data, name, (spec,), note="-SB, M = 200"))
    return tuple(rows)


def _pairs_of_s(metric: str, *pairs: tuple[str, str], level: bool = False) -> tuple[Check, ...]:
    return tuple(Check(data, metric, pair, level) for data in ("bibtex", "delicious") for pair in pairs)


_T_FIXED = (("LINEAR-FX-PP-AG", "LINEAR-PP-AG"), ("SE-FX-PP-AG", "SE-PP-AG"))
PLANS["T4.13"] = Plan(_of_s("T", ("", "-FX")), _pairs_of_s("P@1", *_T_FIXED), _WHY_S)
PLANS["T-fig4.13"] = Plan(_of_s("T", ("", "-FX")), _pairs_of_s("ELBO", *_T_FIXED), _WHY_S)
PLANS["T4.14"] = Plan(_of_s("T", ("", "-FX")), (), _WHY_S)
PLANS["T4.17"] = Plan(_of_s("T", ("", "-S")), _pairs_of_s("P@1", ("SE-PP-AG", "LINEAR-PP-AG"), level=True), _WHY_S)
PLANS["T4.18"] = Plan(
    _of_s("T", ("-FX", "-S-FX")), _pairs_of_s("P@1", ("SE-FX-PP-AG", "SE-S-FX-PP-AG"), level=True), _WHY_S
)
PLANS["T4.19"] = Plan(_of_s("T", ("", "-S")), (), _WHY_S)
PLANS["T-fig4.15"] = Plan(_of_s("T", ("", "-S")), _pairs_of_s("ELBO", ("SE-S-PP-AG", "SE-PP-AG"), level=True), _WHY_S)
PLANS["T-fig4.17"] = Plan(_of_s("T", ("-FX", "-S-FX")), (), _WHY_S)
_S_FIXED = (("f-LINEAR", "LINEAR"), ("f-SE", "SE"))
PLANS["S2"] = Plan(_of_s("S", ("", "-S")), _pairs_of_s("P@1", ("SE", "LINEAR"), level=True), _WHY_S)
PLANS["S3"] = Plan(_of_s("S", ("-S",)), (), _WHY_S)
PLANS["S-fig1"] = Plan(_of_s("S", ("", "-S")), _pairs_of_s("ELBO", ("s-SE", "SE"), level=True), _WHY_S)
PLANS["S4"] = Plan(_of_s("S", ("", "-FX", "-S-FX")), _pairs_of_s("P@1", *_S_FIXED, ("f-SE", "sf-SE")), _WHY_S)
PLANS["S-fig2"] = Plan(_of_s("S", ("", "-FX", "-S-FX")), _pairs_of_s("ELBO", *_S_FIXED), _WHY_S)
PLANS["S5"] = Plan(_of_s("S", ("", "-S")), (), _WHY_S)


def _known(data: str) -> tuple[Row, ...]:
    specs = (labels(data, DEFAULT, how="known"),)
    return tuple(
        Row(data, f"LINEAR-PP-AG, {given}", specs, prefix, "the default model")
        for given, prefix in (("q(u*)", "without "), ("q(u*|y_o)", "with "))
    )


PLANS["T4.15"] = Plan(
    (*_known("bibtex"), *_known("delicious")),
    tuple(
        Check(data, metric, ("LINEAR-PP-AG, q(u*)", "LINEAR-PP-AG, q(u*|y_o)"))
        for data in ("bibtex", "delicious")
        for metric in ("P@1", "P@3")
    ),
    "with the default model",
)


def _jitter(*exponents: int) -> tuple[Row, ...]:
    return tuple(
        Row(
            "bibtex",
            f"ARD jitter=1e-{e}",
            (labels("bibtex", "ARD-SB", n_latent=80, n_inducing=100, epochs=50, relative_jitter=float(f"1e-{e}")),),
            note="ARD-SB",
        )
        for e in exponents
    )


PLANS["T4.21"] = Plan(
    _jitter(3, 4, 5),
    (Check("bibtex", "P@1", ("ARD jitter=1e-3", "ARD jitter=1e-5"), level=True),),
    "a jitter above 1e-3 is refused here, as it costs accuracy",
)
PLANS["T4.22"] = Plan(
    _jitter(6, 8, 10), (Check("bibtex", "P@1", ("ARD jitter=1e-10", "ARD jitter=1e-6"), level=True),), "ARD-SB"
)

_LARGE: dict[str, dict[str, Any]] = {
    "bibtex": {"n_latent": 159, "n_inducing": 400, "epochs": 50},
    "delicious": {"n_latent": 300, "n_inducing": 400, "epochs": 20},
}
_SEEDS = {"bibtex": (0, 1), "delicious": (0,)}
_WHY_LARGE = (
    "the shared basis (-SB) in place of the full posterior, an epoch of which takes a minute at these sizes, and 50 "
    "and 20 epochs in place of 150 and 50"
)


def _large(names: dict[str, str]) -> tuple[Row, ...]:
    return tuple(
        _sb(name, data, f"{preset}-SB", seeds=_SEEDS[data], note="-SB", **_LARGE[data])
        for data in _LARGE
        for name, preset in names.items()
    )


def _best(name: str) -> tuple[Row, ...]:
    return tuple(
        Row(data, name, tuple(labels(data, DEFAULT, seed) for seed in (0, 1, 2)), note="the default model")
        for data in _LARGE
    )


_T_LARGE = {"LINEAR-l": "LINEAR-L", "ARD-FX": "ARD-FX", "ARD": "ARD"}
_ML_LARGE = {"LR": "LINEAR-L", "SE-F": "ARD-FX", "SE": "ARD"}


def _on_both(metric: str, *orders: tuple[str, ...]) -> tuple[Check, ...]:
    return tuple(Check(data, metric, order) for data in _LARGE for order in orders)


_WHY_LINEAR = (
    "after a third of the epochs Bibtex is 1.4 points below, and the linear kernel with weights half a point below "
    "ARD; Delicious is above the paper's figures already"
)
PLANS["T4.23"] = Plan(
    _large(_T_LARGE), _on_both("P@1", ("ARD-FX", "ARD"), ("LINEAR-l", "ARD")), f"{_WHY_LARGE}; {_WHY_LINEAR}"
)
PLANS["T4.24"] = Plan(_large(_T_LARGE), (), _WHY_LARGE)
PLANS["T4.25"] = Plan(_best("ARD"), (), "the default model, beyond the papers, in the place of ARD")
for _number in ("T-fig4.19", "ML-fig1"):
    _named = _T_LARGE if _number.startswith("T") else _ML_LARGE
    _pair = ("ARD-FX", "ARD") if _number.startswith("T") else ("SE-F", "SE")
    PLANS[_number] = Plan(_large(_named), _on_both("ELBO", _pair), _WHY_LARGE)
PLANS["T-fig4.23"] = Plan(_large(_T_LARGE), (), _WHY_LARGE)
for _number in ("ML7", "ML8"):
    PLANS[_number] = Plan(
        _large(_ML_LARGE), _on_both("P@1", ("SE-F", "SE"), ("LR", "SE")), f"{_WHY_LARGE}; {_WHY_LINEAR}"
    )
PLANS["ML-fig5"] = Plan(_large({"LR": "LINEAR-L", "SE": "ARD"}), (), _WHY_LARGE)
for _number in ("ML3", "ML4", "ML5", "ML6"):
    PLANS[_number] = Plan(_best("MLGPF"), (), "the default model, beyond the papers, in the place of MLGPF")
