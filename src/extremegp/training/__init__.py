"""The training loop, its schedule, checkpoints, memory plan and progress display."""

from extremegp.training.interrupts import TrainingInterrupted
from extremegp.training.loop import TrainingSettings, train
from extremegp.training.progress import NoReporter, ProgressReporter, Reporter

__all__ = ["NoReporter", "ProgressReporter", "Reporter", "TrainingInterrupted", "TrainingSettings", "train"]
