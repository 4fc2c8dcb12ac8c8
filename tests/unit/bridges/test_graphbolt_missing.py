"""Without GraphBolt, the adapter names the package to install."""

import pytest

from gloader.errors import MissingDependencyError


def test_a_dgl_without_graphbolt_is_told_what_to_install():
    with pytest.raises(
        MissingDependencyError, match=r"DGL 1\.1\.3 with torch .* does not have .*pip install dgl==2\.1\.0"
    ):
        import gloader.adapters.graphbolt  # noqa: F401
