"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

LabelSampling = Literal["frequency", "uniform"]
ClassSampling = Literal["frequency", "uniform", "pair"]
LABEL_SAMPLINGS: tuple[str, ...] = get_args(LabelSampling)
CLASS_SAMPLINGS: tuple[str, ...] = get_args(ClassSampling)
ALL_SAMPLINGS = (*LABEL_SAMPLINGS, "hard")


@dataclass(frozen=True)
class TrainingSettings:
    """How to maximise the bound.

    Attributes:
        epochs: passes over the rows; fewer where `time_budget` asks for it.
        batch_size: B, rows per step.
        learning_rate: peak of the one-cycle schedule of Adam.
        optimizer: "natural" moves what q(u) has natural parameters for along natural gradients and all else by Adam,
            "adam" everything by Adam; "lbfgs" everything on all data at once, where the bound has no noise.
        natural_step: peak of the same schedule of the natural steps, in (0, 1].
        kl_weight: weight of the KL term in the objective; 1 is the bound, less a cold posterior.
        n_draws: draws that an expectation without closed form is estimated from in the second half of the steps; one
            draw in the first (D A.4).
        frequencies_from: share of the steps after which the spectral frequencies of random features move (D 4.5.3).
        hyperparameters_from: the same of their lengthscales and amplitudes.
        n_sampled_labels: labels that stand for all that no row of a batch has, drawn anew at every step; None takes all
            labels. Only the rows of loadings and biases that a step looks at then move in it.
        label_sampling: what makes a label likely to be drawn, see `LabelSampler`; "hard" draws by frequency, and adds
            the labels that the model wrongly ranks high, see `HardLabels`; or "pair": the rows of a step are of one
            class, which is compared with one other, see `ClassPairSampler`.
        n_hard_labels: how many labels "hard" adds.
        optimizer_state: what Adam keeps of loadings where labels are sampled, see `RowAdam`.
        seed: decides the order of the rows and the sampled labels.
        patience: stop after so many epochs without a better validation score; None never stops early.
        time_budget: seconds to plan for, or None.
        checkpoint_seconds: seconds between checkpoints.
        shuffle_rows: for inputs larger than memory, how many consecutive rows stay near each other in the order of an
            epoch, see `epoch_batches`; None permutes all rows.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: Literal["natural", "adam", "lbfgs"] = "natural"
    natural_step: float = 0.05
    kl_weight: float = 1.0
    n_draws: int = 1
    frequencies_from: float = 0.0
    hyperparameters_from: float = 0.0
    n_sampled_labels: int | None = None
    label_sampling: LabelSampling | ClassSampling | Literal["hard"] = "frequency"
    n_hard_labels: int = 512
    optimizer_state: Literal["full", "half"] = "full"
    seed: int = 0
    patience: int | None = None
    time_budget: float | None = None
    checkpoint_seconds: float = 20.0
    shuffle_rows: int | None = None
