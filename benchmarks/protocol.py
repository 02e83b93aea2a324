"""Which rows may choose a setting, and which only judge it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import common

TUNING = ("enron", "medical", "yeast", "scene", "corel5k", "tmc2007_500", "rcv1subset1_top944_all")
"""Sets that settings may be chosen on, test parts included: no table of results shows them."""
REPORT = ("bibtex", "delicious", "debian_tags", "debian_depends", "yso_finna_en", "moby_thesaurus", "human_gene_pubmed")
"""Sets whose test parts judge: of them settings see a part of the training rows alone."""
SHARE = 0.2
"""Of the training rows, to judge settings on."""


def validation_split(folder: Path, name: str, seed: int = 0, limit: int | None = None) -> common.Split:
    """A split for choosing settings: of the training rows alone, where a set is one of those that judge.

    Args:
        folder: of the data.
        name: a set.
        seed: decides which rows are held out.
        limit: training rows at most.
    """
    nested = folder / "mulan"
    whole = nested / f"{name}.txt.xz"
    if whole.is_file():
        data = common.read_xc(whole)
        features = common.make_features(common.feature_kind(name)).fit(data.X)  # type: ignore[arg-type]
        x, y = common.csr_matrix(features.transform(data.X)), data.Y
    else:
        split = common.load_split(nested if (nested / f"{name}_train.txt.xz").is_file() else folder, name)
        if name not in REPORT:
            return split
        x, y = split.x, split.y
    order = np.random.default_rng(seed).permutation(x.shape[0])
    n_held = round(SHARE * len(order))
    held, kept = np.sort(order[:n_held]), np.sort(order[n_held:][:limit])
    return common.Split(x[kept], y[kept], x[held], y[held])
