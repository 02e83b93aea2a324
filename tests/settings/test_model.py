from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extremegp.engine.inducing import FreeInducingInputs, SparseInducingInputs, SubspaceInducingInputs
from extremegp.engine.kernels import (
    ArcCosine,
    Linear,
    Matern,
    SEPlusLinear,
    SquaredExponential,
    SquaredExponentialPerLatent,
    Sum,
    WhiteNoise,
)
from extremegp.engine.latents import LinearFunctions, SparseGP, SumLatents
from extremegp.engine.part import expect_tensors
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, SharedBasis
from extremegp.errors import SettingsError
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import KERNEL_NAMES, POSTERIORS

D, K, P, M = 6, 5, 3, 4
SETTINGS = ModelSettings(n_features=D, n_labels=K, n_latent=P, n_inducing=M, kernel="ard")


def _gp(settings: ModelSettings) -> SparseGP:
    latents = settings.build().latents
    assert isinstance(latents, SparseGP)
    return latents


@pytest.mark.parametrize(
    ("name", "kind", "n_weights", "learnt"),
    [
        ("linear", Linear, 1, False),
        ("linear-ell", Linear, D, True),
        ("se", SquaredExponential, 1, True),
        ("ard", SquaredExponential, D, True),
        ("se+linear", SEPlusLinear, 1, True),
        ("ard+linear", SEPlusLinear, D, True),
        ("se-p-ell", SquaredExponentialPerLatent, P, True),
        *((f"matern{order}2", Matern, 1, True) for order in (1, 3, 5)),
        *((f"matern{order}2-ard", Matern, D, True) for order in (1, 3, 5)),
        *((f"arccos{order}", ArcCosine, 1, True) for order in (0, 1)),
        *((f"arccos{order}-ard", ArcCosine, D, True) for order in (0, 1)),
    ],
)
def test_kernel_names_mean_what_the_papers_mean(name: str, kind: type, n_weights: int, learnt: bool):
    kernel = _gp(replace(SETTINGS, kernel=name)).kernel  # type: ignore[arg-type]
    assert type(kernel) is kind
    assert kernel.log_weights.shape == (n_weights,)
    assert kernel.log_weights.requires_grad is learnt
    if "matern" in name or "arccos" in name:
        assert kernel.order == int(name.removesuffix("-ard").removesuffix("2")[-1])
    noisy = _gp(replace(SETTINGS, kernel=f"{name}+white")).kernel
    assert type(noisy) is Sum
    assert (type(noisy.left), type(noisy.right)) == (kind, WhiteNoise)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("shared-basis", SharedBasis),
        ("mean-field", MeanField),
        ("full", Full),
        ("full-u", Full),
        ("parsimonious", Parsimonious),
    ],
)
def test_posterior_names(name: str, kind: type):
    posterior = _gp(replace(SETTINGS, posterior=name)).posterior  # type: ignore[arg-type]
    assert type(posterior) is kind
    assert getattr(posterior, "whitened", True) is (name != "full-u")
    assert posterior.q_mean.shape == (P, M)


def test_the_names_listed_are_those_tested():
    assert len(KERNEL_NAMES) == 2 * 17
    assert set(POSTERIORS) == {"shared-basis", "mean-field", "full", "full-u", "parsimonious"}


def test_inducing_names():
    free = _gp(SETTINGS).inducing
    assert type(free) is FreeInducingInputs
    for name, learns_basis in (("subspace", False), ("subspace-basis", True)):
        inducing = _gp(replace(SETTINGS, inducing=name, n_subspace=2)).inducing
        assert type(inducing) is SubspaceInducingInputs
        assert inducing.mixture.shape == (M, 2)
        assert inducing.transposed_basis.requires_grad is learns_basis
    sparse = _gp(replace(SETTINGS, inducing="sparse", support_size=3)).inducing
    assert type(sparse) is SparseInducingInputs
    assert sparse.columns.shape == sparse.entries.shape == (M, 3)


def test_lengthscales_of_subspace_coordinates_are_one_more_than_its_dimensions():
    gp = _gp(replace(SETTINGS, inducing="subspace", n_subspace=2, lengthscales_in="subspace"))
    assert gp.kernel.log_weights.shape == (3,)
    assert gp.inducing.coordinate_weights


def test_a_linear_term_adds_linear_functions():
    latents = replace(SETTINGS, linear_term=True).build().latents
    assert isinstance(latents, SumLatents)
    assert [type(term) for term in latents.terms] == [SparseGP, LinearFunctions]
    assert latents.terms[1].q_mean.shape == (D, P)


def test_fixed_inducing_inputs_and_jitter_reach_their_parts():
    gp = _gp(replace(SETTINGS, learn_inducing=False, normalise_inducing=False, relative_jitter=1e-4))
    assert not gp.inducing.transposed.requires_grad
    assert not gp.inducing.normalise
    assert gp.relative_jitter == 1e-4


# Settings from files

# As models of format version 1 were saved, and the tensors that lay beside them.
PREVIOUS = json.loads(Path(__file__).with_name("previous_settings.json").read_text())


@pytest.mark.parametrize("saved", PREVIOUS, ids=lambda saved: "-".join(map(str, saved["settings"].values())))
def test_settings_of_the_previous_format_make_a_model_of_the_same_tensors(saved: dict[str, Any]):
    settings = ModelSettings.from_config(saved["settings"])
    model = settings.build()
    # Frequencies that a seed gives are stored as the seed since, and expected where a file has them.
    expect_tensors(model, saved["tensors"].keys())
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == saved["tensors"]
    assert ModelSettings.from_config(json.loads(json.dumps(settings.to_config()))) == settings
    if "likelihood" not in saved["settings"]:
        gp = saved["settings"]["latents"] == "gp"
        assert model.mixing.log_scales.requires_grad == gp
        assert model.mixing.bias_variance == 4.0
        assert gp == any(isinstance(part, SparseInducingInputs) for part in model.modules())


@pytest.mark.parametrize("saved", [PREVIOUS[0]["settings"], PREVIOUS[-1]["settings"], SETTINGS.to_config()], ids=len)
def test_unknown_and_missing_names_are_refused_in_one_line(saved: dict[str, Any]):
    fewer = {name: value for name, value in saved.items() if name != "n_features"}
    for values in (saved | {"evil": 1}, fewer, [saved], None):
        with pytest.raises(SettingsError) as caught:
            ModelSettings.from_config(values)
        assert "\n" not in str(caught.value)
