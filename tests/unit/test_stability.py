"""The file versions in docs/api-stability.md are those that the code reads and writes."""

import re
import warnings
from pathlib import Path

import pytest

from gloader.core.loader_state import STATE_VERSION
from gloader.errors import GloaderDeprecationWarning
from gloader.lab.analyze.findings import FINDINGS_VERSION
from gloader.replay.recording import HEADER_VERSION
from gloader.ssd_store.format.manifest import READABLE_VERSIONS
from gloader.training.checkpoint.save import CHECKPOINT_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "api-stability.md").read_text("utf-8")


def _row(name: str) -> tuple[list[int], list[int]]:
    """Return the versions in the second and the third cell of the row that begins with ``name``."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    written, read = line.split("|")[2:4]
    return [int(n) for n in re.findall(r"\d+", written)], [int(n) for n in re.findall(r"\d+", read)]


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("dataset, feature store", max(READABLE_VERSIONS), list(READABLE_VERSIONS)),
        ("`loader.state_dict()`", STATE_VERSION, list(range(1, STATE_VERSION + 1))),
        ("checkpoint of a run", CHECKPOINT_VERSION, [CHECKPOINT_VERSION]),
        ("timeline", HEADER_VERSION, [HEADER_VERSION]),
        ("timeline", FINDINGS_VERSION, [FINDINGS_VERSION]),
    ],
)
def test_the_page_names_the_versions_that_are_written_and_read(
    name: str, written: int, read: list[int]
) -> None:
    assert _row(name) == (list(range(1, written + 1)), read)


def test_a_deprecation_is_shown_in_the_main_program_and_is_an_error_in_these_tests() -> None:
    with pytest.raises(GloaderDeprecationWarning):
        warnings.warn("old is now called new", GloaderDeprecationWarning, stacklevel=1)
    assert issubclass(GloaderDeprecationWarning, DeprecationWarning)
