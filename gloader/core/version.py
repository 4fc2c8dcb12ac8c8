"""The version of this build, in a file without imports, so that every room may name it; as pyproject.toml has it."""

__version__ = "0.1.0"
