"""Files that are either whole or absent: streams, tensors with a header, models."""
