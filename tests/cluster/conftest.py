"""A small dataset for runs of whole commands."""

from pathlib import Path

import pytest

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset


@pytest.fixture(scope="session")
def dataset(private_home: Path) -> Path:
    """The digits, prepared."""
    return ensure_dataset("builtin:digits", SourceOptions(), PrepareOptions())
