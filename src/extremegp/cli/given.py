"""Labels of rows that are known already, in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from extremegp.errors import DataError

if TYPE_CHECKING:
    from extremegp.data import FloatCSR


def read_given(path: Path, names: list[str], n_rows: int) -> FloatCSR:
    """Known labels, N x K: 1 for present, -1 for absent.

    Raises:
        DataError: the file cannot be read, has another number of rows or labels, or a label that the model lacks.
    """
    from extremegp.data import read_svmlight, read_xc, recognise_format

    kind = recognise_format(path, labels_alone=True)
    if kind == "jsonl":
        known = _read_names(path, {name: column for column, name in enumerate(names)})
    else:
        known = (read_xc(path) if kind == "xc" else read_svmlight(path, n_labels=len(names))).Y
    if known.shape[1] != len(names):
        raise DataError(f"has {known.shape[1]} labels, but the model has {len(names)}", path=path)
    if known.shape[0] != n_rows:
        raise DataError(f"has {known.shape[0]} rows of known labels, but there are {n_rows} rows to predict", path=path)
    return known


def _read_names(path: Path, columns: dict[str, int]) -> FloatCSR:
    import numpy as np
    from scipy.sparse import csr_matrix

    from extremegp.storage.streams import line_blocks

    indices: list[int] = []
    signs: list[float] = []
    indptr = [0]
    lines = (line for block in line_blocks(path) for line in block.split(b"\n")[:-1])
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON: {error}", path=path, line=number) from error
        if not isinstance(record, dict) or "labels" not in record:
            raise DataError('expected an object like {"labels": ["a"], "absent": ["b"]}', path=path, line=number)
        row: dict[int, float] = {}
        for key, sign in (("labels", 1.0), ("absent", -1.0)):
            names = record.get(key, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f'"{key}" must be a list of strings such as ["a", "b"]', path=path, line=number)
            for name in names:
                if name not in columns:
                    raise DataError(f"the model has no label {name!r}", path=path, line=number)
                if row.setdefault(columns[name], sign) != sign:
                    raise DataError(f"the label {name!r} is both present and absent", path=path, line=number)
        indices += row
        signs += row.values()
        indptr.append(len(indices))
    known: FloatCSR = csr_matrix((np.array(signs, np.float32), indices, indptr), shape=(len(indptr) - 1, len(columns)))
    return known
