from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from extremegp.data.images import deskew
from extremegp.errors import DataError


def _slanted(slant: float, *, size: int = 28, centre: float = 13.5) -> np.ndarray:
    """A bar whose column grows with its row by `slant`."""
    rows, columns = np.mgrid[:size, :size]
    distance = columns - (centre + slant * (rows - 13.5))
    return np.where(np.abs(rows - 13.5) < 9, np.exp(-0.5 * distance**2), 0.0)


def _slant(image: np.ndarray) -> float:
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    weights = image / image.sum()
    row, column = (rows * weights).sum(), (columns * weights).sum()
    return float(((rows - row) * (columns - column) * weights).sum() / ((rows - row) ** 2 * weights).sum())


@pytest.mark.parametrize("slant", [-0.6, -0.2, 0.0, 0.4])
@pytest.mark.parametrize("centre", [10.0, 13.5, 16.0])
def test_slanted_bars_are_made_upright_and_centred(slant: float, centre: float) -> None:
    image = _slanted(slant, centre=centre)
    (upright,) = deskew(image.reshape(1, -1))
    assert abs(_slant(upright.reshape(28, 28))) < 0.02
    np.testing.assert_allclose(upright.reshape(28, 28), _slanted(0.0), atol=0.12)


def test_sparse_images_of_any_shape_are_the_same_as_dense_ones() -> None:
    images = np.stack([_slanted(s)[4:24].ravel() for s in (0.3, -0.3)])
    dense = deskew(images, shape=(20, 28))
    assert dense.dtype == np.float32
    np.testing.assert_array_equal(deskew(sparse.csr_matrix(images), shape=(20, 28)), dense)


def test_empty_images_and_single_rows_stay_what_they_are() -> None:
    images = np.zeros((2, 25))
    images[1, 10:15] = 1.0
    np.testing.assert_allclose(deskew(images), images, atol=1e-6)


@pytest.mark.parametrize(
    ("images", "shape", "said"),
    [
        (np.ones((2, 10)), None, "10 values are no images of 3 x 3"),
        (np.ones((2, 10)), (2, 4), "no images of 2 x 4"),
        (np.array([[0.0] * 4, [1.0, -1.0, 0.0, 0.0]]), None, "row 1 .* negative grey values"),
    ],
)
def test_rows_that_are_no_images_are_refused(images: np.ndarray, shape: tuple[int, int] | None, said: str) -> None:
    with pytest.raises(DataError, match=said):
        deskew(images, shape=shape)
