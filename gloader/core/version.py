"""The version of gloader, in this file alone. Every room may import it, and pyproject.toml reads it."""

__version__ = "0.1.0"
