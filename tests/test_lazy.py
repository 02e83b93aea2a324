"""What is imported at first use."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from extremegp._lazy import importing, lazily

_HOME = "import gc\ncollecting = gc.isenabled()\n"


@pytest.mark.parametrize("collecting", [True, False])
def test_garbage_is_collected_after_an_import_as_before_it_and_not_meanwhile(
    collecting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "imported_at_first_use.py").write_text(_HOME)
    (tmp_path / "broken_at_first_use.py").write_text("raise ValueError(1)")
    monkeypatch.syspath_prepend(tmp_path)
    get, names = lazily(__name__, {"imported_at_first_use": ("collecting",), "broken_at_first_use": ("other",)})
    before = gc.isenabled()
    (gc.enable if collecting else gc.disable)()
    try:
        assert not get("collecting")
        assert gc.isenabled() == collecting
        with pytest.raises(ValueError, match="1"):
            get("other")
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()
        sys.modules.pop("imported_at_first_use", None)
        vars(sys.modules[__name__]).pop("collecting")
    assert {"collecting", "other"} <= {*names()}


def test_one_import_within_another_leaves_collecting_to_the_outer_one():
    with importing():
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
