"""Two datasets made of those that there are, which nothing was chosen by: NAME/train.txt.xz and NAME/test.txt.xz.

- papers_genes: papers that at least six genes cite (human_gene_pubmed, turned round): half of a paper's genes to the
  other half.
- package_names: descriptions of Debian packages (tf-idf of their words) to the words of the packages' names.

85 % of the rows, at random, are for training; labels and features that these lack are left out.

    python -m benchmarks run derived_sets --out FOLDER
    python -m benchmarks run peers --data FOLDER --set papers_genes --model tree --param features=unit
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, vstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import MultiLabelBinarizer

from benchmarks import common
from extremegp.data import read_xc, write_xc

_LEAST_GENES, _TRAIN_SHARE = 6, 0.85


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    args = common.parse(options)
    for name, (x, y) in {"papers_genes": papers_genes(args), "package_names": package_names(args)}.items():
        write(args.out / name, x, y)


def papers_genes(args: argparse.Namespace) -> tuple[csr_matrix, csr_matrix]:
    parts = [read_xc(common.data_file(args.data, "human_gene_pubmed", part)).Y for part in ("train", "test")]
    papers = csr_matrix(vstack(parts).T)
    papers = papers[np.diff(papers.indptr) >= _LEAST_GENES]
    given = np.random.default_rng(1).random(papers.nnz) < 0.5
    halves = []
    for side in (given, ~given):
        half = papers.copy()
        half.data = side.astype(np.float32)
        half.eliminate_zeros()
        halves.append(half)
    return halves[0], halves[1]


def package_names(args: argparse.Namespace) -> tuple[csr_matrix, csr_matrix]:
    with lzma.open(args.data / "debian_packages" / "packages.json.xz") as stream:
        packages = json.load(stream)
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
    x = csr_matrix(vectorizer.fit_transform([description for _, description, *_ in packages]))
    words = [name.replace("+", "-").replace(".", "-").split("-") for name, *_ in packages]
    y = csr_matrix(MultiLabelBinarizer(sparse_output=True).fit_transform(words), dtype=np.float32)
    return x, csr_matrix(y[:, np.bincount(y.indices, minlength=y.shape[1]) >= 2])


def write(folder: Path, x: csr_matrix, y: csr_matrix) -> None:
    """Write the parts of a dataset, and say what it is."""
    whole = np.flatnonzero((np.diff(x.indptr) > 0) & (np.diff(y.indptr) > 0))
    x, y = x[whole], y[whole]
    order = np.random.default_rng(0).permutation(x.shape[0])
    n = int(_TRAIN_SHARE * len(order))
    parts = {"train": np.sort(order[:n]), "test": np.sort(order[n:])}
    known = [
        np.flatnonzero(np.bincount(matrix[parts["train"]].indices, minlength=matrix.shape[1])) for matrix in (x, y)
    ]
    x, y = x[:, known[0]], y[:, known[1]]
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        plain = folder / f"{part}.txt"
        write_xc(plain, x[rows], y[rows])
        with plain.open("rb") as source, lzma.open(f"{plain}.xz", "wb", preset=1) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
    print(f"{folder.name}: {n} + {len(order) - n} rows, {x.shape[1]} features, {y.shape[1]} labels")
