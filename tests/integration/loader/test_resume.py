"""Resuming out of core: from every step of two epochs, within superbatches, at their borders and over the epochs'."""

from pathlib import Path

import pytest

import gloader
from gloader.testing.resume import batch_digest, check_resume

from .conftest import Written
from .streams import PLACES, SAMPLING, in_memory


@pytest.mark.reliability("F1")
@pytest.mark.parametrize(
    "place", [PLACES[1], PLACES[2], PLACES[5]], ids=["packed", "staged", "online policy"]
)
def test_resume_at_every_step_over_the_borders_of_superbatches(
    tiny: Written, tmp_path: Path, place: dict
) -> None:
    """Superbatches of 2, 4 or 5 batches never end where an epoch of 7 does."""
    settings = SAMPLING | {"memory_budget": "200MB", "threads": 2, "spill_dir": tmp_path} | place
    stream = check_resume(
        lambda: gloader.Loader(tiny.dataset, **settings),
        epochs=2,
        digest=batch_digest,
        # Forth and back in one loader, whose slots hold what other places of the stream left there.
        returns_to=(3, 13, 0, 7, 6, 14, 1),
    )
    assert stream == [digest for epoch in in_memory(tiny.dataset, 4) for digest in epoch]
    assert len(stream) == 28
