"""What is run for each table and figure, what has to hold, and why something differs from the paper."""

from benchmarks.papers.plans import classes, labels, sequences
from benchmarks.papers.plans.parts import HERE, TIMES, Check, Plan, Row

PLANS: dict[str, Plan] = {**labels.PLANS, **classes.PLANS, **sequences.PLANS}

__all__ = ["HERE", "PLANS", "TIMES", "Check", "Plan", "Row"]
