"""The tables and figures of the five papers by number: what they report, what is run for each, and what came of it."""
