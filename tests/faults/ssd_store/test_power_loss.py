"""Row A2: after a power loss at any point, a store is refused or right; and what was committed is there."""

from random import Random

import pytest

from gloader.ssd_store.os_io import OsIO
from gloader.testing.crash import SURVIVALS, CrashRecorder


class ForgetfulRecorder(CrashRecorder):
    """A recorder whose fsyncs of one kind do nothing."""

    forgets = ""

    def fsync(self, fd):
        if self.forgets == "fsync":
            OsIO.fsync(self, fd)
        else:
            super().fsync(fd)

    def fsync_dir(self, path):
        if self.forgets == "fsync_dir":
            OsIO.fsync_dir(self, path)
        else:
            super().fsync_dir(path)


def crash_everywhere(tmp_path, case, content_of, recorder_type=CrashRecorder, seeds=(0, 1)):
    """Return what is found after a crash at each point: a list of (point, survival, content)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    case.prepare(disk)
    recorder = recorder_type(disk)
    start = recorder.num_ops
    case.run(disk, recorder)
    assert content_of(disk) == case.after
    found = []
    for at in range(start - 1, recorder.num_ops):
        for survival in SURVIVALS:
            for seed in seeds if survival == "torn" else (0,):
                after = tmp_path / f"{at}-{survival}-{seed}"
                recorder.crash(at, after, survival=survival, random=Random(f"{at} {seed}"))  # noqa: S311
                found.append((at, survival, content_of(after)))
    return found, recorder.num_ops - 1


@pytest.mark.reliability("A2")
def test_a_power_loss_leaves_the_old_the_new_or_something_refused(tmp_path, case, content_of):
    found, last = crash_everywhere(tmp_path, case, content_of)
    assert len(found) > 60
    allowed = {case.before, case.after}
    assert {content for _, _, content in found} == allowed
    assert {content for at, _, content in found if at == last} == {case.after}  # a commit is durable


@pytest.mark.reliability("A2")
@pytest.mark.parametrize("forgets", ["fsync", "fsync_dir"])
def test_the_simulation_sees_a_missing_fsync(tmp_path, case, content_of, forgets):
    """The test above can fail: without either fsync it does."""

    class Recorder(ForgetfulRecorder):
        pass

    Recorder.forgets = forgets
    try:
        found, last = crash_everywhere(tmp_path, case, content_of, Recorder)
    except AssertionError:
        return  # damage that only the checksums find
    is_lost = {content for at, _, content in found if at == last} != {case.after}
    assert is_lost or {content for _, _, content in found} != {case.before, case.after}


@pytest.mark.long
@pytest.mark.reliability("A2")
def test_many_power_losses(tmp_path, case, content_of):
    found, _ = crash_everywhere(tmp_path, case, content_of, seeds=range(40))
    assert {content for _, _, content in found} == {case.before, case.after}
