"""What is done to images before they become rows of features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform

from extremegp.data.validation import check_inputs
from extremegp.errors import DataError


def deskew(X: Any, *, shape: tuple[int, int] | None = None) -> NDArray[np.float32]:
    """Shear every image so that its principal axis stands upright, and centre it, as is usual for MNIST (T 3.8.1).

    The shear is the regression of a pixel's column on its row, weighted by its grey value; new values are interpolated
    linearly.

    Args:
        X: N images as rows of grey values that are not negative, 0 for background.
        shape: their height and width; by default they are square.

    Returns:
        The images, N x D.

    Raises:
        DataError: X cannot be used, has negative values, or rows that are no image of that shape.
    """
    checked = check_inputs(X)
    images = checked if isinstance(checked, np.ndarray) else checked.toarray()
    height, width = shape or (math.isqrt(images.shape[1]),) * 2
    if height * width != images.shape[1]:
        raise DataError(f"rows of {images.shape[1]} values are no images of {height} x {width}; name their shape")
    if images.min() < 0:
        row = int(np.flatnonzero(images.min(axis=1) < 0)[0])
        raise DataError(f"the image in row {row} (counted from 0) has negative grey values; deskew before scaling")
    rows, columns = np.mgrid[:height, :width].reshape(2, -1).astype(np.float64)
    mass = np.maximum(images.sum(axis=1, dtype=np.float64), 1e-12)
    row_means, column_means = images @ rows / mass, images @ columns / mass
    covariances = images @ (rows * columns) / mass - row_means * column_means
    variances = images @ rows**2 / mass - row_means**2
    shears = np.where(variances > 1e-9, covariances / np.maximum(variances, 1e-9), 0.0)
    upright = np.empty_like(images)
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    for i, (image, shear) in enumerate(zip(images, shears, strict=True)):
        matrix = np.array([[1.0, 0.0], [shear, 1.0]])
        centre = np.array([row_means[i], column_means[i]]) if image.any() else middle
        affine_transform(
            image.reshape(height, width),
            matrix,
            offset=centre - matrix @ middle,
            order=1,
            output=upright[i].reshape(height, width),
        )
    return upright
