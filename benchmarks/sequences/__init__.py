"""A label for every token."""
