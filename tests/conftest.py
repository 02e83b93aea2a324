"""Fixtures and settings that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Workers of pytest-xdist share the cores. The libraries read this at their import, in processes that tests start too.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_name, "1")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.checked import start_checking

# Before any test imports the package.
hook = install_import_hook("extremegp", "tests.checked.checked")

# A loaded machine must not fail a property test, and a failure must come back on the next run.
settings.register_profile("extremegp", deadline=None, derandomize=True)
settings.load_profile("extremegp")


@pytest.fixture(scope="session")
def shared_data(pytestconfig: pytest.Config) -> Path:
    """The folder of real datasets kept beside the repository; a test that asks for it is skipped where it is absent."""
    folder = pytestconfig.rootpath.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real datasets, and there is no folder {folder}")
    return folder


@pytest.fixture(autouse=True)
def shapes_are_checked() -> None:
    start_checking()
