"""Names of a package that are imported from their modules at first use (PEP 562)."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def importing() -> Iterator[None]:
    """Import what is large without collecting garbage, which looks through all that was imported again and again.

    With PyTorch and scikit-learn that is a quarter of the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def lazily(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        homes: modules, each with the names that the package takes from it; a module without any is such a name itself.
    """
    of_name: dict[str, tuple[str, str | None]] = {
        name: (module, name) for module, names in homes.items() for name in names
    }
    of_name |= {module.rpartition(".")[2]: (module, None) for module, names in homes.items() if not names}

    def get(name: str) -> Any:
        if name not in of_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = of_name[name]
        with importing():
            module = importlib.import_module(home)
        value = module if attribute is None else getattr(module, attribute)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(vars(sys.modules[package]).keys() | of_name.keys())

    return get, names
