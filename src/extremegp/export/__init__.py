"""Trained models as plain arithmetic, for places without PyTorch: arrays for NumPy alone, and ONNX graphs."""

from extremegp.export.describe import described_model
from extremegp.export.graph import to_onnx
from extremegp.export.portable import PortableModel

__all__ = ["PortableModel", "described_model", "to_onnx"]
