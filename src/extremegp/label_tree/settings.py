"""What decides the shapes of a model of label trees."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from extremegp.label_tree.evidence import BEST_OF_EACH, N_EVIDENCE, N_FINDERS, N_OF_REGRESSION
from extremegp.label_tree.neighbours import MOST_READ
from extremegp.label_tree.tree import LevelSizes

if TYPE_CHECKING:
    from extremegp.label_tree.model import LabelTreeModel


@dataclass(frozen=True)
class LabelTreeSettings:
    """Everything that decides the shapes of a model's tensors, and how it searches.

    Attributes:
        n_features: D.
        n_labels: K.
        n_rows: N, training rows, which are the neighbours.
        n_stored: stored entries of their inputs.
        n_positives: of their labels.
        trees: the levels of every tree, from the root down.
        n_inducing: inducing inputs of the Gaussian process of the evidence.
        beam: W, nodes of a level that a search goes on from.
        most_read: entries of lists of rows that a search for neighbours reads, see `nearest_rows`.
        weighted: whether the rows have weights.
        n_regressed: rows that the regression of the labels is on; 0 for no regression.
        prior: whether utilities have a prior far from the rows.
        n_pursued: of the rows that the regression is on, those that are taken for what the nearest leave unexplained.
        n_excluded: pairs of a feature and a label that it speaks against.
        n_directions: of the rows, for the regression on all of them; 0 for none.
        weight_variances: whether the trees' weights have a posterior.
        marked: whether it is known which rows the trees have learnt from.
        n_best: labels that trees, and each of two shares of neighbours, make candidates; 0 for `BEST_OF_EACH`.
    """

    n_features: int
    n_labels: int
    n_rows: int
    n_stored: int
    n_positives: int
    trees: tuple[tuple[LevelSizes, ...], ...]
    n_inducing: int
    beam: int = 10
    most_read: int = MOST_READ
    weighted: bool = False
    n_regressed: int = 0
    prior: bool = False
    n_pursued: int = 0
    n_excluded: int = 0
    n_directions: int = 0
    weight_variances: bool = False
    n_best: int = 0
    marked: bool = False

    def to_config(self) -> dict[str, Any]:
        """All of it as JSON; what earlier versions do not know only where it is not as theirs."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value}

    @property
    def n_evidence(self) -> int:
        """Numbers that speak for a label."""
        return int(self.of_all_rows.stop) + (self.n_excluded > 0)

    @property
    def of_all_rows(self) -> slice:
        """Which of these are of the regression on all rows."""
        first = N_EVIDENCE + (N_OF_REGRESSION if self.n_regressed else 0)
        return slice(first, first + (N_OF_REGRESSION if self.n_directions else 0))

    @property
    def regressions(self) -> list[int]:
        """Which of these are what regressions say; after each of them comes its variance."""
        firsts = [N_EVIDENCE] if self.n_regressed else []
        return [*firsts, self.of_all_rows.start] if self.n_directions else firsts

    @property
    def n_candidates(self) -> int:
        """Labels of a row that can be ranked, at most."""
        return N_FINDERS * (self.n_best or BEST_OF_EACH)

    @property
    def n_first(self) -> int:
        """Nearest rows that the regression is on."""
        return self.n_regressed - self.n_pursued

    def build(self) -> LabelTreeModel:
        """A model with tensors of these shapes."""
        from extremegp.label_tree.model import LabelTreeModel

        return LabelTreeModel(self)


LATER = (
    "weighted",
    "n_regressed",
    "prior",
    "n_pursued",
    "n_excluded",
    "n_directions",
    "weight_variances",
    "n_best",
    "marked",
)
LATER_FLAGS = ("weighted", "prior", "weight_variances", "marked")
"""Settings that models of earlier versions do not have, and those of them that are flags."""
