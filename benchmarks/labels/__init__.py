"""Many labels per row."""
