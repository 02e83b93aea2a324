"""Models behind HTTP: suggesting, learning and forgetting, for programs and for people (extra `serve`)."""

from extremegp.server.app import make_app
from extremegp.server.limits import Limits
from extremegp.server.served import ServedModel

__all__ = ["Limits", "ServedModel", "make_app"]
