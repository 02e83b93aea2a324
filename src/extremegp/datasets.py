"""Real datasets that come with the library."""

from extremegp.data.debtags import DebtagsDataset, load_debtags

__all__ = ["DebtagsDataset", "load_debtags"]
