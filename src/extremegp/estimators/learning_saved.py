"""What saved models know of their rows, taken out without trust."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from extremegp.errors import ModelFormatError
from extremegp.estimators.row_ids import RowIds
from extremegp.prediction.novelty import KeptRowSerials, Novelty

_IDS, _NOVELTY_ROWS, _NOVELTY_LEFT_OUT = "learning.ids", "learning.novelty_rows", "learning.novelty_left_out"


class LearningState(NamedTuple):
    """What a model that learns knows of its rows.

    Attributes:
        ids: what they are called.
        trained: how many of them training had: the first.
        n_forgotten: how many are gone.
        novelty: which of them tell what is new; None for none.
    """

    ids: RowIds
    trained: int
    n_forgotten: int
    novelty: KeptRowSerials | None

    def to_saved(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What `from_saved` takes."""
        numbers = {"next": self.ids.next_number, "trained": self.trained, "forgotten": self.n_forgotten}
        tensors = {_IDS: torch.from_numpy(self.ids.to_bytes().copy())}
        if self.novelty is not None:
            tensors[_NOVELTY_ROWS] = torch.from_numpy(self.novelty.rows)
            tensors[_NOVELTY_LEFT_OUT] = torch.from_numpy(self.novelty.left_out)
        return {"learning": numbers}, tensors

    @classmethod
    def from_saved(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, torch.Tensor],
        n_rows: int,
        novelty: Novelty | None,
        folder: str | Path,
    ) -> LearningState | None:
        """What `to_saved` gave; None of models that know nothing of it.

        Args:
            config: of the model.
            tensors: of the model.
            n_rows: N.
            novelty: that the model has.
            folder: of the model, for messages.

        Raises:
            ModelFormatError: it is altered.
        """
        learning, stored = config.get("learning"), tensors.get(_IDS)
        if learning is None:
            return None
        numbers = [learning.get(name) for name in ("trained", "forgotten")] if isinstance(learning, dict) else [None]
        sound = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
        if not sound or stored is None or stored.dtype != torch.uint8 or stored.ndim != 1:
            raise ModelFormatError(f"{folder}: what it says of its rows is damaged")
        try:
            ids = RowIds.from_bytes(stored.numpy(), learning.get("next"), n_rows)
        except ModelFormatError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        serials = None
        if novelty is not None:
            sizes = {_NOVELTY_ROWS: novelty.n_rows, _NOVELTY_LEFT_OUT: len(novelty.left_out)}
            for name, size in sizes.items():
                part = tensors.get(name)
                fits = part is not None and part.dtype == torch.int64 and part.shape == (size,)
                if part is None or not fits or part.min() < 0 or part.max() >= n_rows:
                    raise ModelFormatError(f"{folder}: the rows that novelty is told by are not those of the model")
            serials = KeptRowSerials(*(tensors[name].numpy().copy() for name in sizes))
        return cls(ids, numbers[0] or 0, numbers[1] or 0, serials)
