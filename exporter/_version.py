"""The version of exporter."""

__version__ = "0.1.0"
