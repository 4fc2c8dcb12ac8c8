"""The version of gloader. No other file has it: all packages may import it, and pyproject.toml reads it."""

__version__ = "0.1.0"
