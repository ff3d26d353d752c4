"""The version, in a place that every part may import."""

__version__ = "0.1.0"
