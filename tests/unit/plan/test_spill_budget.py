"""The budget of packs where nobody names one."""

import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gloader.errors import ConfigError
from gloader.plan import sweep_plan
from gloader.plan.sweep_plan import open_spill


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [
        "/dev/sda / ext4 rw 0 0",
        f"tmpfs {tmp_path}/with\\040blank tmpfs rw 0 0",
        f"tmpfs {tmp_path}/twice tmpfs rw 0 0",
        f"/dev/sdb {tmp_path}/twice xfs rw 0 0",
    ]
    file = tmp_path / "mounts"
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(sweep_plan, "_MOUNTS", file)
    return tmp_path


def test_packs_take_a_share_of_a_disk_and_nothing_of_a_folder_in_memory(mounts: Path) -> None:
    for name in ("with blank", "twice", "other"):
        (mounts / name).mkdir()
    budgets = [sweep_plan._default_bytes(mounts / name, 10) for name in ("with blank", "twice", "other")]
    assert budgets == [0, 40, 40]


def test_where_the_mounts_cannot_be_read_the_disk_counts(mounts: Path) -> None:
    (mounts / "mounts").unlink()
    assert sweep_plan._default_bytes(mounts, 10) == 40


def test_loaders_of_a_host_share_its_disk_and_each_has_what_is_asked_for(
    mounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_plan.shutil, "disk_usage", lambda _: SimpleNamespace(free=4800))
    (mounts / "other").mkdir()
    for num_loaders, asked, budget in [(1, None, 1200), (3, None, 400), (3, 777, 777)]:
        folder = sweep_plan.open_spill(mounts / "other", asked, data_bytes=10**6, num_loaders=num_loaders)
        assert folder is not None
        with folder:
            assert folder.budget_bytes == budget


@pytest.mark.reliability("J15")
def test_the_disk_of_a_folder_that_was_named_has_to_be_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        ConfigError, match=r"\(in Python spill_dir=\) is .*/x, and .*/nope does not exist: mount its"
    ):
        open_spill(tmp_path / "nope" / "x", None, data_bytes=1)
    assert list(tmp_path.iterdir()) == []
    caplog.set_level("INFO")
    with closing(open_spill(tmp_path / "new", 1 << 20, data_bytes=1)):  # type: ignore[type-var]
        assert [text for text in caplog.messages if re.fullmatch(r"made the folder .*/new \(.* free\)", text)]
