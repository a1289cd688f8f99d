"""The version of Lambert."""

__version__ = "0.1.0"
