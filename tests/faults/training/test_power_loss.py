"""Row J7: after a power loss at any point, whatever a command writes is the old, the new, or something not begun."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from gloader.cli.infer import save_predictions
from gloader.config import ModelConfig
from gloader.lab.report import build_page
from gloader.lab.report.page import Section
from gloader.lab.report.svg import Chart
from gloader.observe.timeline import TimelineRecorder
from gloader.ssd_store.cost import profile
from gloader.ssd_store.cost.device_rates import DEFAULT_PROFILE
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.testing.crash import SURVIVALS, CrashRecorder
from gloader.training.checkpoint.files import newest_checkpoint, read_checked
from gloader.training.checkpoint.save import Checkpoint, load_checkpoint
from gloader.training.group import RankGroup
from gloader.training.model_spec import ModelSpec
from gloader.training.run_folder import RunFolder
from gloader.types import BatchId

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.reliability("J7"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


class Ranks(RankGroup):
    """One process that writes as several do."""

    @property
    def is_alone(self) -> bool:
        return False

    def run_on_first(self, work: Any) -> Any:
        return work()

    def gather(self, value: Any) -> list[Any]:
        return [value]


ALONE, RANKS = RankGroup.alone(), Ranks.alone()


def checkpoint(epoch: int) -> Checkpoint:
    return Checkpoint(
        run_id="a",
        settings={},
        spec=ModelSpec(
            config=ModelConfig(name="mlp"), in_dim=1, out_dim=2, num_layers=1, add_self_loops=False
        ),
        fingerprint="f",
        weights={},
        progress={"loader": {"next": [epoch, 0]}, "filler": "x" * 2000},
    )


def resumed_in(folder: Path) -> str:
    """Return the checkpoint that the next run would go on with; it enters the folder, which must be its own."""
    if not folder.is_dir():
        return "none"
    root = RunFolder(folder)
    root.enter(resume=True)
    root.release()
    return position_in(folder)


def position_in(folder: Path) -> str:
    """Return the checkpoint that there is, which has to be whole, when residue is removed."""
    RunFolder(folder).remove_residue()
    found = newest_checkpoint(folder)
    if found is None:
        return "none"
    if found.is_file():
        return str(load_checkpoint(found).position[0])
    assert {".metadata", "__0_0.distcp", "gloader-run"} == read_checked(found).keys()
    return str(int(found.name.split("-")[1]))


class Replace:
    """A checkpoint takes the place of an older one: of the same kind, or of the other number of ranks."""

    before, after = frozenset({"1"}), "2"
    groups = (ALONE, ALONE)

    def prepare(self, disk: Path) -> None:
        RunFolder(disk).save_checkpoint(checkpoint(1), group=self.groups[0])

    def run(self, disk: Path, os_io: OsIO) -> None:
        RunFolder(disk, os_io=os_io).save_checkpoint(checkpoint(2), group=self.groups[1])

    def content(self, disk: Path) -> str:
        return resumed_in(disk)


class ReplaceShards(Replace):
    groups = (RANKS, RANKS)


class ReplaceShardsByFile(Replace):
    groups = (RANKS, ALONE)


class ReplaceFileByShards(Replace):
    groups = (ALONE, RANKS)


class FirstInNewFolder(Replace):
    """The first checkpoint of a run whose folder is new."""

    before = frozenset({"none"})

    def prepare(self, disk: Path) -> None:
        pass

    def run(self, disk: Path, os_io: OsIO) -> None:
        RunFolder(disk / "runs" / "a", os_io=os_io).save_checkpoint(checkpoint(2), group=ALONE)

    def content(self, disk: Path) -> str:
        return resumed_in(disk / "runs" / "a")


class BeginOverOlderRun:
    """A fresh run where an older one was."""

    before, after = frozenset({"old"}), "new"

    def config(self, name: str) -> dict[str, Any]:
        return {"run": {"id": name}, "dataset": {}, "model": {}, "optim": {}, "loader": {}}

    def prepare(self, disk: Path) -> None:
        for folder in (RunFolder(disk), RunFolder(disk / "run-0")):
            folder.save_checkpoint(checkpoint(1), group=ALONE if folder.root == disk else RANKS)
            folder.start_metrics([{"epoch": 0}])
            folder.write_result({"best_run": 0})
        RunFolder(disk).write_config(self.config("old"))

    def run(self, disk: Path, os_io: OsIO) -> None:
        RunFolder(disk, os_io=os_io).begin(self.config("new"), is_fresh=True)

    def content(self, disk: Path) -> str:
        found = str(yaml.safe_load((disk / "config.yaml").read_text())["run"]["id"])
        left = [resumed_in(disk), position_in(disk / "run-0")]
        left += [path.name for path in (*disk.rglob("result.json"), *disk.rglob("metrics.jsonl"))]
        assert found == "old" or left == ["none", "none"], left
        return found


class Metrics:
    """The line of an epoch behind those that are there: whole lines, and a part of the new one at most."""

    before, after = frozenset({"0"}), "1"

    def prepare(self, disk: Path) -> None:
        (disk / "config.yaml").write_text("dataset:\nmodel:\noptim:\nloader:\n")
        RunFolder(disk).start_metrics([{"epoch": 0, "filler": "x" * 700}])

    def run(self, disk: Path, os_io: OsIO) -> None:
        RunFolder(disk, os_io=os_io).append_metrics({"epoch": 1, "filler": "x" * 700})

    def content(self, disk: Path) -> str:
        last = "nothing"
        for number, line in enumerate((disk / "metrics.jsonl").read_text().splitlines()):
            try:
                last = str(json.loads(line)["epoch"])
            except ValueError:  # torn: the last one that was begun
                continue
            assert last == str(number)
        return last


class OneFile:
    """A file of its own, over an older one, in a folder that is there."""

    before, after = frozenset({"old"}), "new"
    path = ""

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        raise NotImplementedError

    def prepare(self, disk: Path) -> None:
        self.write(disk, "old", REAL_OS)

    def run(self, disk: Path, os_io: OsIO) -> None:
        self.write(disk, "new", os_io)

    def content(self, disk: Path) -> str:
        return self.read(disk) if (disk / self.path).exists() else "none"

    def read(self, disk: Path) -> str:
        text = (disk / self.path).read_text()
        (found,) = (name for name in ("old", "new") if name in text)
        assert text.endswith(self.end), "cut short"
        return found

    end = "\n"


class Result(OneFile):
    path = "result.json"

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        RunFolder(disk, os_io=os_io).write_result({"filler": "x" * 600, "name": content})


class Predictions(OneFile):
    """In a folder that is new as well."""

    before, after = frozenset({"none"}), "new"
    path = "out/here/p.npy"

    def prepare(self, disk: Path) -> None:
        pass

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        save_predictions(disk / self.path, np.full(300, len(content)), os_io=os_io)

    def read(self, disk: Path) -> str:
        assert (np.load(disk / self.path) == 3).all()
        return "new"


class Report(OneFile):
    path = "report.html"
    end = "</html>\n"

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        chart = Chart(name="a", caption=content, svg=f"<svg>{content * 400}</svg>")
        section = Section(title=content, source=content, charts=(chart,))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build_page, "read_sections", lambda _: [section])
            build_page.make_report([disk], disk / "report.html", png=disk / "png", title=content, os_io=os_io)

    def read(self, disk: Path) -> str:
        found = super().read(disk)
        picture = (disk / "png" / "a.svg").read_bytes()
        drawn = [text for text in ("old", "new") if text.encode() * 400 in picture]
        assert len(drawn) == 1
        return found if drawn == [found] else f"{found} page"

    before = frozenset({"old", "new page"})  # two files, one after the other


class Profile(OneFile):
    path = "home"

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GLOADER_HOME", str(disk / "home"))
            rates = replace(DEFAULT_PROFILE, queue_depth=len(content) if content == "old" else 7)
            profile.remember_profile(disk, rates, os_io=os_io)

    def read(self, disk: Path) -> str:
        (file,) = (disk / "home" / "devices").glob("*.json")
        return {3: "old", 7: "new"}[json.loads(file.read_text())["queue_depth"]]


class FirstProfile(Profile):
    """The first of a user: the folders are new."""

    before = frozenset({"none"})

    def prepare(self, disk: Path) -> None:
        pass

    def content(self, disk: Path) -> str:
        return self.read(disk) if list(disk.glob("home/devices/*.json")) else "none"


class Timeline(OneFile):
    path = "trace.json"

    def write(self, disk: Path, content: str, os_io: OsIO) -> None:
        recorder = TimelineRecorder()
        for index in range(6):
            recorder.record("read", BatchId(epoch=0, index=index), 1, 0, 1000, notes={"name": content})
        recorder.write(disk / "trace.json", os_io=os_io)

    def read(self, disk: Path) -> str:
        found = super().read(disk)
        assert len(json.loads((disk / "trace.json").read_text())["traceEvents"]) > 5
        return found


CASES = [
    Replace, ReplaceShards, ReplaceShardsByFile, ReplaceFileByShards, FirstInNewFolder, BeginOverOlderRun,
    Metrics, Result, Predictions, Report, Profile, FirstProfile, Timeline,
]  # fmt: skip


class Forgetful(CrashRecorder):
    """A recorder whose fsyncs of one kind, or the one of that number, do nothing."""

    forgets = ""
    only: int | None = None
    count = 0

    def _is_forgotten(self, kind: str) -> bool:
        if kind == self.forgets:
            type(self).count += 1
        return kind == self.forgets and self.only in (None, self.count)

    def fsync(self, fd: int) -> None:
        (OsIO if self._is_forgotten("fsync") else CrashRecorder).fsync(self, fd)

    def fsync_dir(self, path: Any) -> None:
        (OsIO if self._is_forgotten("fsync_dir") else CrashRecorder).fsync_dir(self, path)


def crash_everywhere(
    tmp_path: Path, case: Any, recorder_type: type[CrashRecorder] = CrashRecorder, seeds: Any = range(3)
) -> list[tuple[int, str, str]]:
    """Return what is found after a power loss at each point: (point, survival, content)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    case.prepare(disk)
    recorder = recorder_type(disk)
    start = recorder.num_ops
    case.run(disk, recorder)
    assert case.content(disk) == case.after
    found = []
    for at in range(start - 1, recorder.num_ops):
        for survival in SURVIVALS:
            for seed in seeds if survival == "torn" else (0,):
                after = tmp_path / f"{at}-{survival}-{seed}"
                recorder.crash(at, after, survival=survival, random=Random(f"{at} {seed}"))  # noqa: S311
                found.append((at, survival, case.content(after)))
    return found


def is_kept(found: list[tuple[int, str, str]], case: Any) -> bool:
    """Return whether nothing else than old and new was found, and the new at the end whatever survives."""
    last = max(at for at, _, _ in found)
    contents = {content for _, _, content in found}
    return contents <= case.before | {case.after} and {c for at, _, c in found if at == last} == {case.after}


@pytest.fixture(name="case", params=CASES, ids=lambda case: case.__name__)
def _case(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_a_power_loss_leaves_the_old_or_the_new(tmp_path: Path, case: Any) -> None:
    found = crash_everywhere(tmp_path, case)
    assert is_kept(found, case)
    # Of what is on the disk as it was written, what a run goes on with never falls back.
    whole = [content for _, survival, content in found if survival == "all"]
    assert whole == sorted(whole, key=whole.index)
    assert whole[-1] == case.after


FORGOTTEN = [
    pytest.param(case, forgets, id=f"{case.__name__}-{forgets}")
    for case in CASES
    for forgets in ("fsync", "fsync_dir")
    if (case, forgets) != (Metrics, "fsync_dir")  # it makes no name
]


@pytest.mark.parametrize(("case_type", "forgets"), FORGOTTEN)
def test_the_simulation_sees_a_missing_fsync(tmp_path: Path, case_type: Any, forgets: str) -> None:
    """The test above can fail: without either kind of fsync it does."""
    case = case_type()
    recorder = type("Recorder", (Forgetful,), {"forgets": forgets})
    try:
        found = crash_everywhere(tmp_path, case, recorder, seeds=(0,))
    except Exception:  # damage of any kind, which only reading finds
        return
    assert not is_kept(found, case)


@pytest.mark.long
@pytest.mark.parametrize(("case_type", "forgets"), FORGOTTEN)
def test_no_single_fsync_can_be_left_out(tmp_path: Path, case_type: Any, forgets: str) -> None:
    number, count = 0, 1
    while number < count:
        number += 1
        recorder = type("Recorder", (Forgetful,), {"forgets": forgets, "only": number})
        folder = tmp_path / str(number)
        folder.mkdir()
        case = case_type()
        try:
            is_seen = not is_kept(crash_everywhere(folder, case, recorder), case)
        except Exception:
            is_seen = True
        count = recorder.count
        assert is_seen, f"{forgets} {number} of {count}"
