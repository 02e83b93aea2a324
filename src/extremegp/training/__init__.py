"""The training loop, its schedule, checkpoints, memory plan and progress display."""

from extremegp.settings.training import TrainingSettings
from extremegp.training.distributed import ProcessLostError, World, world
from extremegp.training.interrupts import TrainingInterrupted
from extremegp.training.loop import train
from extremegp.training.progress import NoReporter, ProgressReporter, Reporter

__all__ = [
    "NoReporter",
    "ProcessLostError",
    "ProgressReporter",
    "Reporter",
    "TrainingInterrupted",
    "TrainingSettings",
    "World",
    "train",
    "world",
]
