"""Times of steps are the device's: what it computes, and how long it stands still before."""

from types import SimpleNamespace
from typing import Any

from gloader.observe.epoch_stats import StatsRecorder
from gloader.pipeline.consumer import StepTimes
from gloader.testing.rehearsed_device import RehearsedDevice


class _Feedback:
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def delivered(self, superbatch: int, *, ends_superbatch: bool, wait_s: float) -> None:
        self.told.append((superbatch, ends_superbatch, wait_s))

    def computed(self, seconds: float) -> None:
        self.told.append((seconds,))


def _batch(index: int) -> Any:
    return SimpleNamespace(superbatch=index // 2, ends_superbatch=index % 2 == 1)


def test_steps_are_read_when_the_device_has_passed_them_and_complete_at_the_end() -> None:
    device, feedback, recorder = RehearsedDevice(send_s=2.0), _Feedback(), StatsRecorder(0)
    times = StepTimes(device, feedback)  # type: ignore[arg-type]
    begun = []
    with device.computing():
        for index in range(3):
            times.end()
            times.ask()
            with device.sending():
                tensors = device.upload([])
            device.mark().precede(tensors)
            begun.append(times.begin(_batch(index), recorder))
            device.launch(lambda: None, seconds=5.0)
        assert feedback.told == []  # nothing was waited for
        begun[2].wait()
        assert feedback.told == []
        times.end()
        times.end()
        times.ask()
        # Copies of 2 s each, sent one after another; the second and third are hidden.
        assert feedback.told == [(0, False, 2.0), (5.0,), (0, True, 0.0), (5.0,)]
        times.settle()
        assert feedback.told[4:] == [(1, False, 0.0), (5.0,)]
        seconds = recorder.snapshot().stage_seconds
        assert (seconds["wait"], seconds["compute"]) == (2.0, 15.0)
        device.launch(lambda: None, seconds=60.0)  # an evaluation
        times.ask()
        times.begin(_batch(3), recorder)
        times.end()
        times.settle()
        assert feedback.told[6:] == [(1, True, 0.0), (0.0,)]


class _Moment:
    """A mark that is reached when the test says so, and that raises where an event of CUDA would."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.is_passed = False

    def is_reached(self) -> bool:
        return self.is_passed

    def wait(self) -> None:
        self.is_passed = True

    def seconds_since(self, other: "_Moment") -> float:
        if not (self.is_passed and other.is_passed):
            raise RuntimeError("CUDA error: device not ready")
        return self.at_s - other.at_s


def test_a_step_that_another_stream_ended_is_read_when_its_own_has_begun_it() -> None:
    moments = [_Moment(1.0), _Moment(4.0), _Moment(3.0)]  # asked and begun on one stream, ended on another
    feedback, recorder = _Feedback(), StatsRecorder(0)
    device = SimpleNamespace(mark_computing=iter(moments).__next__)
    times = StepTimes(device, feedback)  # type: ignore[arg-type]
    times.ask()
    times.begin(_batch(0), recorder)
    times.end()
    moments[2].is_passed = True
    times.ask()
    assert feedback.told == []
    times.settle()
    assert feedback.told == [(0, False, 3.0), (0.0,)]


def test_a_loop_without_a_step_has_no_times() -> None:
    device, feedback = RehearsedDevice(), _Feedback()
    times = StepTimes(device, feedback)  # type: ignore[arg-type]
    times.end()
    times.settle()
    assert feedback.told == []
