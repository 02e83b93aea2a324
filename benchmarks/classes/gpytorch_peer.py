"""GPyTorch's sparse variational Gaussian processes for classes: one function a class, and its softmax likelihood."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.cluster import MiniBatchKMeans


class _Functions(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    def __init__(self, inducing: torch.Tensor, n_classes: int) -> None:
        shape = torch.Size([n_classes])
        posterior = gpytorch.variational.CholeskyVariationalDistribution(len(inducing), batch_shape=shape)
        one = gpytorch.variational.VariationalStrategy(self, inducing, posterior, learn_inducing_locations=True)
        super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(one, num_tasks=n_classes))
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=shape)
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1])
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel, batch_shape=shape)

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Peer:
    """Trained by Adam on minibatches of dense rows, as its examples do.

    Args:
        x: training rows, N x D.
        codes: their classes.
        n_classes: K.
        n_inducing: inducing inputs, shared by the classes; k-means centres at the start.
        epochs: passes over the rows.
        batch_size: rows of a step.
        learning_rate: of Adam.
        seed: decides the start and the batches.
    """

    def __init__(
        self,
        x: Any,
        codes: NDArray[np.int64],
        n_classes: int,
        *,
        n_inducing: int = 100,
        epochs: int = 20,
        batch_size: int = 500,
        learning_rate: float = 0.01,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        rows, y = _dense(x), torch.from_numpy(codes)
        centres = MiniBatchKMeans(min(n_inducing, len(rows)), random_state=seed, n_init=1).fit(rows.numpy())
        inducing = torch.from_numpy(centres.cluster_centers_.astype(np.float32))
        self.model = _Functions(inducing, n_classes)
        spread = float(torch.pdist(rows[torch.randperm(len(rows))[:500]]).median())
        self.model.covar_module.base_kernel.lengthscale = spread
        self.likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_classes=n_classes, mixing_weights=False)
        bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(y))
        optimiser = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        for _ in range(epochs):
            for batch in torch.randperm(len(y)).split(batch_size):
                optimiser.zero_grad()
                (-bound(self.model(rows[batch]), y[batch])).backward()
                optimiser.step()
        self.model.eval()

    def predict(self, x: Any) -> NDArray[np.float32]:
        """Probabilities of the classes of rows, means over draws of the functions."""
        with torch.no_grad(), gpytorch.settings.num_likelihood_samples(100):
            probabilities: NDArray[np.float32] = self.likelihood(self.model(_dense(x))).probs.mean(0).numpy()
        return probabilities / probabilities.sum(axis=1, keepdims=True)


def _dense(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x.toarray() if issparse(x) else x, dtype=np.float32))
