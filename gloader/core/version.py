"""The version of gloader, in this file alone: every room may name it, and pyproject.toml has it from here."""

__version__ = "0.1.0"
