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
    """Yield what is found after a crash at each point, the last one first: (whether it is that one, content)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    case.prepare(disk)
    recorder = recorder_type(disk)
    start = recorder.num_ops
    case.run(disk, recorder)
    assert content_of(disk) == case.after
    last = recorder.num_ops - 1
    for at in range(last, start - 2, -1):
        for survival in SURVIVALS:
            for seed in seeds if survival == "torn" else (0,):
                after = tmp_path / f"{at}-{survival}-{seed}"
                recorder.crash(at, after, survival=survival, random=Random(f"{at} {seed}"))  # noqa: S311
                yield at == last, content_of(after)


@pytest.mark.reliability("A2")
def test_a_power_loss_leaves_the_old_the_new_or_something_refused(tmp_path, case, content_of):
    found = list(crash_everywhere(tmp_path, case, content_of))
    assert len(found) > 60
    assert {content for _, content in found} == {case.before, case.after}
    assert {content for is_last, content in found if is_last} == {case.after}  # a commit is durable


@pytest.mark.reliability("A2")
@pytest.mark.parametrize("forgets", ["fsync", "fsync_dir"])
def test_the_simulation_sees_a_missing_fsync(tmp_path, case, content_of, forgets):
    """The test above can fail: without either fsync it does, at some point, which is looked for."""

    class Recorder(ForgetfulRecorder):
        pass

    Recorder.forgets = forgets
    contents = set()
    try:
        for is_last, content in crash_everywhere(tmp_path, case, content_of, Recorder):
            if content != case.after and (is_last or content != case.before):
                return  # it is lost, or neither
            contents.add(content)
    except AssertionError:
        return  # damage that only the checksums find
    assert contents != {case.before, case.after}


@pytest.mark.long
@pytest.mark.reliability("A2")
def test_many_power_losses(tmp_path, case, content_of):
    found = crash_everywhere(tmp_path, case, content_of, seeds=range(40))
    assert {content for _, content in found} == {case.before, case.after}
