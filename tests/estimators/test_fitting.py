from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from extremegp import MultiLabelGPClassifier
from extremegp.engine.matrices import csr_of
from extremegp.estimators import fitting
from extremegp.estimators.examples import Examples
from extremegp.estimators.multilabel import _FIXED
from extremegp.settings.latents import latents_asked
from extremegp.training import TrainingSettings


def _mapped(x: scipy.sparse.csr_matrix, folder: Path) -> scipy.sparse.csr_matrix:
    np.save(folder / "data.npy", x.data)
    return csr_of(np.load(folder / "data.npy", mmap_mode="r"), x.indices, x.indptr, x.shape)


@pytest.mark.parametrize("mapped", [True, False])
def test_rows_of_mapped_inputs_are_read_in_blocks(mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(40, 6, 0.5, format="csr", rng=rng, dtype=np.float32)
    y = scipy.sparse.csr_matrix((rng.random((40, 3)) < 0.4).astype(np.float32))
    used: list[TrainingSettings] = []

    def train(model: Any, x: Any, y: Any, settings: TrainingSettings, **options: Any) -> list[dict[str, float]]:
        used.append(settings)
        return []

    monkeypatch.setattr(fitting, "train", train)
    params = MultiLabelGPClassifier(n_inducing=5, mean_function="zero", verbose=False).get_params(deep=False)
    rows = _mapped(x, tmp_path) if mapped else x
    data = Examples(rows, y)
    fitting.fit_model(
        params,
        data,
        None,
        translate=lambda p: _FIXED | latents_asked(p, n_rows=1, n_labels=1),
        rng=rng,
        seed=0,
        score_name="P@1",
    )
    assert (used[0].shuffle_rows is not None) is mapped
