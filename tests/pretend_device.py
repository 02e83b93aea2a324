"""A device that is the CPU in disguise, for a machine without a GPU; and what `test_devices.py` runs on it.

A tensor on it holds one of the CPU and computes there, but an operation on both kinds is refused, and so is a generator
of the other device: as a GPU refuses them. Scalars may meet, as they may there. The disguise is for a whole process, so
that this is a program: it prints, as JSON, what went wrong in each case.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier, load
from extremegp.estimators.base import GPEstimator
from extremegp.training import ProgressReporter, TrainingInterrupted
from tests.estimators.small import small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky

NAME = "pretend"
X, Y = small_data()
SPARSE = scipy.sparse.csr_matrix(X)
CLASSES = np.random.default_rng(0).integers(4, size=len(X))
SEQUENCES, TAGS = sticky()
GIVEN = np.where(np.arange(Y.shape[1]) == 0, 1, 0) - np.where(np.arange(Y.shape[1]) == 1, 1, 0) + np.zeros_like(Y)

LABELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "labels": (X, {"linear_term": True}),
    "labels, sparse inputs": (SPARSE, {"linear_term": True, "propensity": "auto"}),
    "labels, sampled": (SPARSE, {"n_sampled_labels": 2, "validation_fraction": 0.3}),
    "labels, hard": (SPARSE, {"n_sampled_labels": 2, "label_sampling": "hard", "optimizer_state": "half"}),
    "labels, regression": (X, {"mean_function": "regression"}),
    "labels, regression on sparse inputs": (SPARSE, {"mean_function": "regression", "time_budget": 100.0}),
    "labels, sparse supports": (SPARSE, {"inducing": "sparse", "support_size": 3, "posterior": "full"}),
    "labels, sparse supports, dense inputs": (X, {"inducing": "sparse", "support_size": 3, "dtype": "float64"}),
    "labels, subspace": (SPARSE, {"inducing": "subspace-basis", "n_subspace": 3, "posterior": "parsimonious"}),
    "labels, coordinates": (X, {"inducing": "subspace", "n_subspace": 3, "lengthscales_in": "subspace"}),
    "labels, lengthscales of functions": (X, {"kernel": "se-p-ell+white", "posterior": "full-u"}),
}
STORED = {"local": "stored", "n_sampled_classes": 2}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "classes, softmax": {"likelihood": "softmax", "mean_function": "regression"},
    "classes, softmax of a factor model": {"likelihood": "softmax", "mixing": "factor", "n_latent": 3},
    "classes, robust maximum": {"likelihood": "robust-max", "inducing": "separate", "mixing": "identity"},
    "classes, probit pairs": {"likelihood": "probit-one-vs-each", "mixing": "factor", "n_latent": 3},
    "classes, pairs": {"likelihood": "one-vs-each", "class_sampling": "pair", "optimizer": "adam"},
    "classes, augment and reduce": {"likelihood": "ar-softmax", "n_sampled_classes": 2, "latents": "linear-mean-field"},
    "classes, augment and reduce, logit": {"likelihood": "ar-logit"},
    "classes, stored local parameters": {"likelihood": "ar-logit", **STORED},
    "classes, independent": {"likelihood": "independent", "kernel": "arccos0-ard"},
}
TAGGERS: dict[str, dict[str, Any]] = {
    "sequences": {"n_reduced": 3, "linear_term": True},
    "sequences, deep": {"n_layers": 2, "frequencies": "var-resampled", "transitions": "indexed"},
    "sequences, learnt frequencies": {"frequencies": "var-fixed", "kernel": "se", "objective": "pseudo-likelihood"},
    "sequences, inducing inputs": {"latents": "gp", "posterior": "full", "decoding": "viterbi"},
    "sequences, linear": {"latents": "linear", "transitions": "point", "validation_fraction": 0.3},
    "sequences, points": {"latents": "linear-point", "transitions": "point"},
    "sequences, no transitions": {"latents": "linear-mean-field", "transitions": "none"},
}
REFUSED = ("two devices", "a generator of another device", "NumPy")
CASES = (*REFUSED, *LABELS, *CLASSIFIERS, *TAGGERS, "resumed here", "resumed there")


class PretendTensor(torch.Tensor):
    """A tensor on the pretended device; `held` is that of the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> PretendTensor:
        like: dict[str, Any] = {"dtype": held.dtype, "device": f"{NAME}:0", "layout": held.layout}
        if held.layout == torch.strided:
            like |= {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(cls, held.size(), **like)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()


class PretendGenerator(torch.Generator):
    """A generator of the CPU that says it is of another device; PyTorch itself sees one of the CPU."""

    def __new__(cls, device: Any = "cpu") -> PretendGenerator:
        made = super().__new__(cls, "cpu")
        made.pretended = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return self.pretended


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation on tensors of the device, or that makes one there."""
    flat, structure = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, PretendTensor)]
    here = [tensor for tensor in tensors if not isinstance(tensor, PretendTensor)]
    moves = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    if there and any(tensor.ndim for tensor in here) and not moves:
        raise RuntimeError(f"{func} of tensors on two devices")
    wanted = kwargs.get("device")
    goes_there = bool(there) if wanted is None else torch.device(wanted).type == NAME

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value.held if isinstance(value, PretendTensor) else value

    args_here, kwargs_here = tree_unflatten([on_cpu(value) for value in flat], structure)
    result = func(*args_here, **kwargs_here)
    if not goes_there:
        # On one device a copy may be the tensor itself.
        return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, result)
    wrapped = tree_map(lambda value: PretendTensor(value) if isinstance(value, torch.Tensor) else value, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def disguise() -> torch.library.Library:
    """Make the device known to PyTorch, for as long as the result lives."""
    torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: computed(func, args, kwargs), "PrivateUse1")
    torch.Generator = PretendGenerator  # type: ignore[misc]
    # These fill memory that they have made, which the disguise has none of.
    for name in ("arange", "linspace", "logspace", "tensor"):
        setattr(torch, name, _made_here_and_moved(getattr(torch, name)))
    for owner, name in ((torch, "randn"), (torch.Tensor, "normal_"), (torch.Tensor, "exponential_")):
        setattr(owner, name, _with_own_generator(getattr(owner, name)))
    return library


def _made_here_and_moved(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> torch.Tensor:
        result = make(*args, **kwargs)
        return (result if device is None else result.to(device)).requires_grad_(requires_grad)

    return made


def _with_own_generator(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def drawn(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> torch.Tensor:
        result = draw(*args, generator=generator, **kwargs)
        if generator is not None and generator.device.type != result.device.type:
            raise RuntimeError(f"{draw} with a generator of another device")
        return result

    return drawn


def fitted(case: str, device: str) -> GPEstimator:
    """The estimator of a case, trained on a device."""
    if case in LABELS:
        x, changes = LABELS[case]
        return small_classifier(device=device, **changes).fit(x, Y)
    if case in CLASSIFIERS:
        return class_classifier(device=device, **CLASSIFIERS[case]).fit(X, CLASSES)
    return small_tagger(device=device, **TAGGERS[case]).fit(SEQUENCES, TAGS)


def predictions(model: GPEstimator) -> list[Any]:
    """All kinds of predictions that an estimator makes."""
    if isinstance(model, MultiLabelGPClassifier):
        known = [model.predict_proba(X, given=GIVEN, given_variance=how) for how in ("laplace", "map")]
        return [model.predict_proba(X), *known, model.decision_function(X), *model.predict_latent(X)]
    if isinstance(model, MultiClassGPClassifier):
        return [model.predict_proba(X), *model.predict_uncertainty(X)]
    assert isinstance(model, SequenceGPClassifier)
    best = [score for found in model.predict_k_best(SEQUENCES, 2) for _, score in found]
    entropies = np.concatenate([part.total for part in model.predict_uncertainty(SEQUENCES)])
    return [np.concatenate(model.predict_marginals(SEQUENCES)), model.log_prob(SEQUENCES, TAGS), best, entropies]


def class_classifier(**changes: Any) -> MultiClassGPClassifier:
    small = {"mean_function": "zero", "n_inducing": 5, "epochs": 2, "batch_size": 16, "verbose": False}
    return MultiClassGPClassifier(**{**small, "random_state": 0, **changes})


def agrees(case: str) -> None:
    """Training there ends where training here does, and what was saved there predicts alike on both devices."""
    expected, there = predictions(fitted(case, "cpu")), fitted(case, NAME)
    assert all(isinstance(parameter.data, PretendTensor) for parameter in there.model_.parameters())
    with tempfile.TemporaryDirectory() as folder:
        there.save(Path(folder) / "model")
        for model in (there, *(load(Path(folder) / "model", device=device) for device in ("cpu", NAME))):
            for found, wanted in zip(predictions(model), expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def resumes(begin: str, end: str) -> None:
    """A run that was interrupted on one device goes on on the other, and ends where a run without a break does."""
    sampled = {"n_sampled_labels": 2, "label_sampling": "hard", "optimizer_state": "half"}
    settings: dict[str, Any] = {"linear_term": True, "verbose": True, **sampled}
    step = ProgressReporter.step

    def interrupting(self: ProgressReporter, number: int, total: int, elbo: float) -> None:
        step(self, number, total, elbo)
        if number == 4:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "progress"
        ProgressReporter.step = interrupting  # type: ignore[method-assign]
        try:
            small_classifier(device=begin, checkpoint=path, checkpoint_seconds=0.0, **settings).fit(SPARSE, Y)
        except (KeyboardInterrupt, TrainingInterrupted):
            pass
        finally:
            ProgressReporter.step = step  # type: ignore[method-assign]
        assert path.exists()
        resumed = small_classifier(device=end, checkpoint=path, **settings).fit(SPARSE, Y)
    whole = small_classifier(device=end, **settings).fit(SPARSE, Y)
    for found, wanted in zip(predictions(resumed), predictions(whole), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def refuses(case: str) -> None:
    """The disguise notices what a GPU would: without this nothing here could fail."""
    there = torch.zeros(2, device=NAME)
    try:
        if case == "two devices":
            there + torch.zeros(2)
        elif case == "NumPy":
            there.numpy()
        else:
            torch.randn(2, device=NAME, generator=torch.Generator())
    except (RuntimeError, TypeError):
        return
    raise AssertionError("not refused")


def run(case: str) -> None:
    if case in REFUSED:
        refuses(case)
    elif case.startswith("resumed"):
        resumes(*((NAME, "cpu") if case == "resumed here" else ("cpu", NAME)))
    else:
        agrees(case)


def main() -> None:
    library = disguise()
    wrong: dict[str, str] = {}
    for case in CASES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(case)
        except Exception:
            wrong[case] = traceback.format_exc()
    del library
    json.dump(wrong, sys.stdout)


if __name__ == "__main__":
    main()
