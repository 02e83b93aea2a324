"""What each process of `test_training.py` does: torchrun starts it with a folder to write its model to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tests.label_tree.small import small_classifier, small_data

from extremegp.label_tree import checkpoint, combiner, levels, training
from extremegp.training import world


def main(folder: Path) -> None:
    here = world(timeout=60)
    combiner._STEPS, levels._BATCH_WORK = 6, 200
    fitted: list[int] = []
    joined: list[int] = []
    fit, keep = training._Growth._fit, checkpoint.NodeCheckpoint.keep

    def counted_fit(self: Any, level: Any, first: int, last: int, width: int) -> Any:
        fitted.append(first)
        return fit(self, level, first, last, width)

    def counted_keep(self: Any, key: str, part: Any) -> None:
        joined.append(len(part))
        keep(self, key, part)

    training._Growth._fit, checkpoint.NodeCheckpoint.keep = counted_fit, counted_keep
    classifier = small_classifier(checkpoint=folder / "checkpoint").fit(*small_data())
    found = {"state": classifier.model_.state_dict(), "n_fitted": len(fitted), "n_blocks": len(joined)}
    torch.save(found, folder / f"{here.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
