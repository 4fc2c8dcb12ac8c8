"""A propagation that is killed at a write goes on where it was, and its result has the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gloader.errors import StateError
from gloader.training.propagation.propagate_rows import begun_widths

DRIVER = Path(__file__).with_name("propagation_driver.py")


def kill_at_every(step: int, folder: Path) -> dict:
    command = [sys.executable, str(DRIVER), str(folder), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 29])
def test_a_propagation_that_is_killed_at_a_write_is_continued(tmp_path, step):
    found = kill_at_every(step, tmp_path)
    assert found["wrong"] == []
    assert found["kills"] * step > 100
    # Most kills come after a complete state or piece, which is not computed again.
    assert found["savings"] > found["kills"] // 2


def test_a_folder_of_another_propagation_is_refused(tmp_path):
    assert begun_widths(tmp_path, "one") is None
    (tmp_path / "propagation.json").write_text('{"fingerprint": "one", "widths": {"node": 8}}')
    assert begun_widths(tmp_path, "one") == {"node": 8}
    with pytest.raises(
        StateError, match="holds an unfinished propagation of another dataset or with other settings"
    ):
        begun_widths(tmp_path, "other")
