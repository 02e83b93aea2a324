"""One class per row."""
