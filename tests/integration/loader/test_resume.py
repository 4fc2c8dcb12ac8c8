"""Resuming out of core: from every step of two epochs, within superbatches, at their borders and over the epochs'."""

from pathlib import Path

import pytest

import gloader

from .conftest import Written
from .streams import PLACES, SAMPLING, digest, golden


@pytest.mark.reliability("F1")
@pytest.mark.parametrize(
    "place", [PLACES[1], PLACES[2], PLACES[5]], ids=["packed", "staged", "online policy"]
)
def test_resume_at_every_step_over_the_borders_of_superbatches(
    tiny: Written, tmp_path: Path, place: dict
) -> None:
    """Superbatches of 2, 4 or 5 batches never end where an epoch of 7 does."""
    expected = [d for epoch in golden(tiny.dataset, 4) for d in epoch]
    settings = SAMPLING | {"memory_budget": "200MB", "threads": 2, "spill_dir": tmp_path} | place
    with gloader.Loader(tiny.dataset, **settings) as loader:
        states = [loader.state_dict()]
        stream = []
        for _ in range(2):
            for batch in loader:
                stream.append(digest(batch))
                states.append(loader.state_dict())
        assert stream == expected[:14]
        # Forth and back in one loader, whose slots hold what other places of the stream left there.
        for step in (3, 13, 0, 7, 6, 14, 1):
            loader.load_state_dict(states[step])
            batches = iter(loader)
            found = [digest(batch) for _, batch in zip(range(5), batches, strict=False)]
            batches.close()  # type: ignore[attr-defined]
            assert found == expected[step : step + len(found)]
            assert len(found) == min(5, 7 - step % 7)
    for step, state in enumerate(states):
        with gloader.Loader(tiny.dataset, **settings) as resumed:
            resumed.load_state_dict(state)
            rest = [digest(batch) for _ in range(2) for batch in resumed]
        assert rest[: 14 - step] == expected[step:14]
        assert rest == expected[step : step + len(rest)]
