"""An extension of the reference's reader: estimators show the parameters that they inherit, as `help` does."""

from __future__ import annotations

from typing import Any

import griffe

from extremegp.estimators.parameters import with_inherited_parameters


class InheritedParameters(griffe.Extension):
    """Completes the docstrings of estimators once the package is read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in pkg["estimators"].modules.values():
            for cls in module.classes.values():
                if not cls.is_alias and cls.docstring is not None:
                    of_bases = [base.docstring.value for base in cls.mro() if base.docstring is not None]
                    cls.docstring.value = with_inherited_parameters(cls.docstring.value, of_bases)
