"""The process that compiles kernels before a first run, and when there is one."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import shop
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from gloader import Dataset
from gloader.config import LinkConfig, LoaderSettings, Policy
from gloader.core import kernels
from gloader.distributed.exchange import owner, receiver
from gloader.observe import peak_memory
from gloader.samplers import make
from gloader.ssd_store import miss_sources
from gloader.ssd_store.sweep import wanted_rows
from gloader.training import compile_processes, first_run
from gloader.training.compile_processes import CompileJob
from gloader.training.propagation import hop_pass

MB = 1_000_000
SETTINGS = [
    {"sampler": "neighbor", "policy": "belady"},
    *({"policy": name} for name in get_args(Policy) if name != "belady"),
    *({"sampler": name} for name in make._SAMPLERS if name != "neighbor"),
]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.from_numpy(
        tmp_path / "dataset", features=np.ones((50, 3), np.float32), labels=np.arange(50) % 2,
        edge_index=np.stack([np.arange(50), np.roll(np.arange(50), 1)]), edge_weight=np.ones(50, np.float32),
    )  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the processes that were started; each does its work in this one."""
    commands: list[list[str]] = []

    def start(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        first_run.Rehearsal(**json.loads(command[-1])).hold()
        return SimpleNamespace(args=command, returncode=0, poll=lambda: 0, pid=1)

    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


@pytest.fixture(autouse=True)
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start what the session starts nowhere else."""
    monkeypatch.setattr(first_run, "run_all", compile_processes.run_all)


@pytest.fixture(autouse=True)
def no_marks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep what a rehearsal leaves out of the cache of the tests."""
    marks = tmp_path / "marks"
    marks.mkdir()
    mark = first_run.Rehearsal.mark
    monkeypatch.setattr(
        first_run.Rehearsal, "mark", lambda self: (found := mark(self)) and marks / found.name
    )
    return marks


@pytest.fixture(autouse=True)
def no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say nothing of how far a rehearsal is, however slow the machine is."""
    monkeypatch.setattr(compile_processes, "_SAYS_EVERY_S", math.inf)


def _spill_folders(parent: Path) -> list[Path]:
    return list(parent.glob("gloader-spill*"))


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(
    "settings",
    [pytest.param(s, marks=[pytest.mark.long] if i else []) for i, s in enumerate(SETTINGS)],
    ids=lambda s: "-".join(s.values()),
)
def test_a_rehearsal_compiles_what_its_command_looks_for(
    dataset: Dataset, started: list[list[str]], settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8, **settings)
    said: list[str] = []
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(first_run, "_is_compiled", lambda name: False)
        first_run.compile_first(dataset, loader, says=said.append)
    # Batches and rows.
    assert [command[:3] for command in started] == 2 * [[sys.executable, "-m", "gloader.training.first_run"]]
    assert said == ["first run here: compiling kernels, once (15 to 60 s on two idle cores)"]
    assert _spill_folders(tmp_path) == []
    # Or every run would begin with one.
    first_run.compile_first(dataset, loader, says=said.append)
    assert len(started) == 2
    assert len(said) == 1


@pytest.mark.parametrize(
    "fanouts", ["a:to:b=3,2;*=2,2", pytest.param("collective:3,2", marks=pytest.mark.long)], ids=str
)
def test_a_rehearsal_of_several_types_samples_by_the_fanouts_of_any_form(
    started: list[list[str]], fanouts: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    edges = np.stack([np.arange(50), np.roll(np.arange(50), 1)])
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "typed", features={"a": np.ones((50, 3), np.float32)}, num_nodes={"a": 50, "b": 50},
        labels={"b": np.arange(50) % 2}, edges={("a", "to", "b"): edges, ("b", "to", "a"): edges},
    )  # fmt: skip
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    # An error in the rehearsal, which is silent for a user, is raised by the process of the test.
    first_run.compile_first(dataset, LoaderSettings.of(fanouts=fanouts, batch_size=8), says=lambda text: None)
    assert len(started) == 2


@pytest.mark.reliability("J11")
def test_a_rehearsal_of_several_machines_compiles_every_kernel_of_their_exchanges(
    dataset: Dataset, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(first_run.Rehearsal, "mark", lambda self: None)  # the kernels alone tell
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8, features="ram")
    alone = LoaderSettings.of(fanouts=[3, 2], batch_size=8, features="ram", exchange="never")
    with monkeypatch.context() as patch:
        patch.setattr(first_run, "_is_compiled", lambda name: name != "gloader.distributed.exchange.owner")
        first_run.compile_first(dataset, loader, says=str)
        first_run.compile_first(dataset, alone, says=str, has_machines=True)
        assert started == []
        first_run.compile_first(dataset, loader, says=str, has_machines=True)
    assert len(started) == 3
    for module in (receiver, owner, miss_sources):
        kernels = [one for one in vars(module).values() if isinstance(one, Dispatcher)]
        kernels = [one for one in kernels if one.py_func.__module__ == module.__name__]
        assert kernels
        assert [one.py_func.__name__ for one in kernels if not one.signatures] == []
    # Of arriving rows; other kernels of this module are called by kernels.
    assert wanted_rows._list_positions.signatures
    assert wanted_rows._list_slots.signatures


def test_a_rehearsal_of_a_propagation_has_slabs_of_every_kind(
    dataset: Dataset, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    kinds, gather_sums = set(), hop_pass.gather_sums

    def gather(indptr: Any, sources: Any, weights: Any, table: Any, lanes: Any, rows: Any) -> None:
        # Edges in memory are read-only, others are copies.
        kinds.add((len(lanes), sources.flags.writeable, len(weights) > 0))
        gather_sums(indptr, sources, weights, table, lanes, rows)

    monkeypatch.setattr(hop_pass, "gather_sums", gather)
    with monkeypatch.context() as patch:
        patch.setattr(first_run, "_is_compiled", lambda name: name != first_run._HOPS)
        first_run.compile_first(dataset, None, says=lambda _: None, hops={"stats": ["mean", "max"]})
    assert [json.loads(command[-1])["part"] for command in started] == ["rows", "hops"]
    assert kinds == {(lanes, copied, True) for lanes in (0, 4, 8, 16) for copied in (False, True)}


@pytest.mark.parametrize(
    "links",
    [
        LinkConfig(exclude="reverse", negatives="uniform:2,strict"),
        pytest.param(
            LinkConfig(exclude_duplicates=True, exclude="self", negatives="table:x"), marks=pytest.mark.long
        ),
        pytest.param(LinkConfig(negatives="none"), marks=pytest.mark.long),
    ],
)
def test_a_rehearsal_of_links_compiles_what_its_command_looks_for(
    dataset: Dataset,
    started: list[list[str]],
    links: LinkConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(first_run.Rehearsal, "mark", lambda self: None)  # the kernels alone tell
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8)
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(first_run, "_is_compiled", lambda name: name != "gloader.samplers.link_kernels")
        first_run.compile_first(dataset, loader, says=said.append)
        assert started == []
        first_run.compile_first(dataset, loader, says=said.append, links=links)
    first_run.compile_first(dataset, loader, says=said.append, links=links)
    assert len(started) == 2
    assert len(said) == 1


@pytest.mark.parametrize(("typed", "topology"), [(True, "auto"), (False, "sweep")])
def test_a_rehearsal_of_rows_with_times_loads_rows_with_times(
    started: list[list[str]], typed: bool, topology: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dataset = shop.write_shop(tmp_path / "shop", typed=typed)
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8, topology=topology)
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    first_run.compile_first(dataset, loader, says=lambda _: None, table="past.train")
    given = [json.loads(command[-1]) for command in started]
    assert [(each["part"], each["has_times"], each["scored"]) for each in given] == [
        ("batches", True, "int64"),
        ("rows", True, "int64"),
    ]
    # Edges with times are not swept: they are read page by page.
    assert given[0]["loader"]["topology"] == ("direct" if topology == "sweep" else topology)
    assert _spill_folders(tmp_path) == []


@pytest.mark.reliability("J11")
@pytest.mark.parametrize("options", ["", ":normalize=true"])
def test_a_sampler_with_options_looks_for_its_own_kernels(
    monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: name != "gloader.samplers.poisson_kernels")
    settings = [
        LoaderSettings.of(fanouts=[3], batch_size=8, sampler=f"{name}{options}")
        for name in ("labor", "ladies")
    ]
    assert all(first_run._lacks_kernels(each, None) for each in settings)
    assert not first_run._lacks_kernels(LoaderSettings.of(fanouts=[3], batch_size=8), None)


@pytest.mark.reliability("J11")
def test_the_parts_of_a_rehearsal_run_side_by_side_and_say_how_far_they_are(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One on each core: with one core the second begins when the first has ended."""
    running: list[str] = []
    most: list[int] = []
    looks = iter(range(1000))

    def start(command: list[str], *, stdout: Any, **_: Any) -> SimpleNamespace:
        part = json.loads(command[-1])["part"]
        running.append(part)
        most.append(len(running))
        stdout.write(b"..")
        ends = next(looks) + 6

        def poll() -> int | None:
            if next(looks) < ends:
                return None
            running.remove(part)
            return 0

        return SimpleNamespace(args=command, returncode=0, poll=poll, pid=2**30)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    monkeypatch.setattr(compile_processes, "_LOOKS_EVERY_S", 0.0)
    monkeypatch.setattr(compile_processes, "_SAYS_EVERY_S", 0.0)
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8)
    for cores in (2, 1):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        said: list[str] = []
        most.clear()
        first_run.compile_first(dataset, loader, says=said.append)
        assert max(most) == cores
        assert said[-1].endswith(" s so far, kernels: 4")


@pytest.mark.reliability("S11")
def test_in_a_small_budget_one_process_compiles_at_a_time_and_another_goes_on_where_it_made_room(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container of 490 MB held a run with a budget of 160 MB, and not the 577 MB of its first run."""
    running: list[str] = []
    began: list[tuple[str, int]] = []

    def start(command: list[str], **_: Any) -> SimpleNamespace:
        part = json.loads(command[-1])["part"]
        running.append(part)
        began.append((part, len(running)))
        is_anew = sum(name == part for name, *_ in began) > 1

        def poll() -> int:
            running.remove(part)
            return 0

        code = 75 if part == "batches" and not is_anew else 0
        return SimpleNamespace(args=command, returncode=code, poll=poll, pid=1)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    monkeypatch.setattr(compile_processes, "_LOOKS_EVERY_S", 0.0)
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda *_: 60 * MB)
    monkeypatch.setattr(peak_memory, "bare_bytes", lambda: 150 * MB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    said: list[str] = []

    def compile_in(budget: int, *, num_ranks: int = 1) -> None:
        began.clear()
        loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8, memory_budget=budget)
        first_run.compile_first(dataset, loader, says=said.append, num_ranks=num_ranks)

    compile_in(160 * MB)
    assert began == [("rows", 1), ("batches", 1), ("batches", 1)]
    assert said[0].endswith("; longer in so small a memory budget")
    compile_in(100 * MB)
    assert said[1].endswith("; that takes 42 MB more than the memory budget")
    compile_in(350 * MB)
    assert began == [("batches", 1), ("rows", 2), ("batches", 1)]
    assert said[2].endswith("(15 to 60 s on two idle cores)")
    compile_in(260 * MB, num_ranks=2)
    assert {count for *_, count in began} == {2, 1}


def test_edges_that_hardly_fit_beside_the_code_of_all_ranks_may_be_swept(dataset: Dataset) -> None:
    """Two ranks of 485 MB have 157 MB for all but their code: 20 MB of edges may be swept there, and were not asked."""
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8, memory_budget=485 * MB)
    edges: Any = SimpleNamespace(topology_bytes=20 * MB)

    def topology(beside: int) -> str:
        return str(first_run._small_loader(loader, edges, beside_bytes=beside)["topology"])

    assert topology(74 * MB) == "auto"
    assert topology(328 * MB) == "either"
    assert topology(490 * MB) == "auto"  # which is refused
    edges.topology_bytes = 300 * MB
    assert topology(74 * MB) == "sweep"


@pytest.mark.reliability("S11")
def test_where_processes_come_near_the_budget_the_one_that_begins_anew_soonest_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = {1: 300 * MB, 2: 110 * MB}
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda status: held[int(status.parent.name)])
    jobs = [
        CompileJob(name="batches", module="m", words="", needs_torch=True),
        CompileJob(name="rows", module="m", words="", needs_torch=False),
    ]
    ended: list[int] = []
    running: Any = [
        (job, SimpleNamespace(pid=pid, kill=lambda pid=pid: ended.append(pid)))
        for pid, job in enumerate(jobs, 1)
    ]

    def told() -> set[str]:
        killed = compile_processes._make_room(running, tmp_path, 450 * MB)
        assert [process.pid for process in killed] == ended
        found = {path.name for path in tmp_path.glob("*.stop")}
        for name in found:
            (tmp_path / name).unlink()
        return found

    assert told() == set()
    held[2] = 130 * MB  # with the next kernel of each, too much
    assert told() == {"rows.stop"}
    held.update({1: 335 * MB, 2: 100 * MB})  # it has just begun
    assert told() == {"batches.stop"}
    assert ended == []
    held.update({1: 300 * MB, 2: 140 * MB})  # a kernel takes long on a busy machine, and the others go on
    assert told() == set()
    assert ended == [2]


@pytest.mark.reliability("S11")
def test_a_process_alone_ends_near_the_budget_though_it_took_no_more_than_others_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It went on until it had more than is usual, and 145 MB of links became 153."""
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda status: 225 * MB)
    job = CompileJob(name="batches", module="m", words="", needs_torch=True)
    running: Any = [(job, SimpleNamespace(pid=1))]
    assert compile_processes._make_room(running, tmp_path, 240 * MB) == []
    assert not list(tmp_path.glob("*.stop"))
    assert compile_processes._make_room(running, tmp_path, 233 * MB) == []
    assert [path.name for path in tmp_path.glob("*.stop")] == ["batches.stop"]


@pytest.mark.reliability("S11")
def test_a_process_that_was_ended_for_room_begins_anew_when_the_other_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batches = CompileJob(name="batches", module="m", words="", needs_torch=True)
    rows = CompileJob(name="rows", module="m", words="", needs_torch=False)
    began: list[str] = []
    held = {0: 100 * MB, 1: 130 * MB, 2: 130 * MB}
    looks_of_batches = count()

    def start(job: CompileJob, folder: Path) -> SimpleNamespace:
        process = SimpleNamespace(args=job.name, returncode=None, pid=len(began))
        began.append(job.name)

        def poll() -> int | None:
            if process.returncode is None and job is batches:
                held[0] = 260 * MB
                process.returncode = 0 if next(looks_of_batches) > 2 else None
            elif process.pid == 2:
                process.returncode = 0
            return process.returncode

        process.poll, process.wait = poll, poll
        process.kill = lambda: setattr(process, "returncode", -signal.SIGKILL)
        return process

    monkeypatch.setattr(CompileJob, "start", start)
    monkeypatch.setattr(compile_processes, "_LOOKS_EVERY_S", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda status: held[int(status.parent.name)])
    assert compile_processes.run_all([batches, rows], tmp_path, lambda text: None, room_bytes=380 * MB)
    assert began == ["batches", "rows", "rows"]


@pytest.mark.reliability("S11")
def test_a_process_begins_anew_where_there_is_room_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a first run of 300 MB took 330: one process loaded kernels while the other went on."""
    batches = CompileJob(name="batches", module="m", words="", needs_torch=True)
    rows = CompileJob(name="rows", module="m", words="", needs_torch=False)
    held = {1: 100 * MB}  # it is loading kernels, and will have 232 MB
    monkeypatch.setattr(peak_memory, "anonymous_bytes", lambda status: held[int(status.parent.name)])
    running: Any = [(batches, SimpleNamespace(pid=1))]
    assert compile_processes._has_room(rows, running, 380 * MB)
    assert not compile_processes._has_room(rows, running, 370 * MB)
    held[1] = 260 * MB
    assert not compile_processes._has_room(rows, running, 380 * MB)
    assert compile_processes._has_room(batches, [], 100 * MB)  # one has to begin, whatever it takes


@pytest.mark.reliability("S11")
def test_a_process_that_is_to_make_room_ends_when_it_has_saved_some_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(IndexDataCacheFile, "save", lambda *_: None)
    monkeypatch.setattr(os, "_exit", ended.append)
    compile_processes.save_in_turns(tmp_path, "rows")
    stop = compile_processes.stop_file(tmp_path, "rows")
    stop.touch()
    IndexDataCacheFile.save(SimpleNamespace(), "key", "data")  # or it would begin anew for ever
    stop.unlink()
    IndexDataCacheFile.save(SimpleNamespace(), "key", "data")
    assert ended == []
    stop.touch()
    IndexDataCacheFile.save(SimpleNamespace(), "key", "data")
    assert ended == [75]


def test_a_run_of_another_kind_is_rehearsed_too_and_once(
    dataset: Dataset, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, no_marks: Path
) -> None:
    """The first typed run compiled its kernels in its own memory, where runs of one type had compiled theirs before."""
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: True)
    said: list[str] = []
    loader = LoaderSettings.of(fanouts=[3, 2], batch_size=8)
    for _ in range(2):
        first_run.compile_first(dataset, loader, says=said.append)
        first_run.compile_first(dataset, loader.changed(fanouts=(2, 2), batch_size=16), says=said.append)
    assert len(started) == 2
    first_run.compile_first(dataset, loader.changed(policy="lru"), says=said.append)
    assert len(started) == 4
    kind = "first run of this kind here: compiling the kernels that it lacks, once (up to 30 s on two idle cores)"
    assert said == 2 * [kind]
    assert len(list(no_marks.iterdir())) == 2


def test_processes_that_save_a_kernel_at_once_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "saving"
    held: list[bool] = []

    def save(*_: Any) -> None:
        with lock.open("ab") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(True)

    monkeypatch.setattr(IndexDataCacheFile, "save", save)
    compile_processes.save_in_turns(tmp_path, "rows")
    IndexDataCacheFile.save(SimpleNamespace(), "key", "data")
    assert held == [True]
    assert capsys.readouterr().out == "."


def test_a_rehearsal_that_fails_leaves_the_compiling_to_the_run(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_marks: Path
) -> None:
    monkeypatch.setattr(first_run, "_is_compiled", lambda name: False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path))
    first_run.compile_first(dataset, None, says=lambda text: None)
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path / "missing"))
    first_run.compile_first(dataset, None, says=lambda text: None)
    assert _spill_folders(tmp_path) == []
    assert not any(no_marks.iterdir())


def test_a_kernel_counts_as_compiled_once_it_was_called_and_until_its_source_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "some_kernels.py"
    text = "from gloader.core.kernels import njit\n\n\n@njit(cache=True)\ndef one():\n    return 1\n"
    source.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert not first_run._is_compiled("some_kernels")
    sys.modules["some_kernels"].one()
    assert first_run._is_compiled("some_kernels")
    source.write_text(text + "\n")
    del sys.modules["some_kernels"]
    kernels._digest.cache_clear()  # a process reads a source once
    assert not first_run._is_compiled("some_kernels")
    del sys.modules["some_kernels"]


_NEW_KERNELS = """
import sys
import numpy as np
from gloader.training.first_run import Rehearsal, _kernels_of
from gloader.training.score_summary import score_summary
from gloader.training.scores import METRICS

dtype = sys.argv[1]
if len(sys.argv) < 3:  # otherwise nothing is rehearsed
    Rehearsal(
        folder="", index_dtype="int32", feature_dtype="float32", feature_dim=1, has_weights=False,
        kind="homogeneous", loader=None, scored=dtype,
    )._score()
known = {kernel.py_func.__name__: list(kernel.signatures) for kernel in _kernels_of("gloader.training.score_kernels")}
kinds = ("classes", "binary") if dtype == "int64" else ("binary", "multilabel", "values")
held = np.random.default_rng(0).integers(0, 2, (50, 1 if dtype == "int64" else 3)).astype(dtype)
held.flags.writeable = False  # as a dataset's
for kind in kinds:
    labels = held[np.arange(50) > 1, : 1 if kind == "binary" else None]
    if dtype == "int64":
        labels = labels.reshape(-1)
    outputs = labels.copy() if kind == "classes" else np.random.default_rng(1).random(labels.shape, np.float32)
    for metric in METRICS.values():
        if kind in metric.kinds:
            metric.compute(outputs, labels, threshold=0.0)
    score_summary(kind, outputs, labels, None, are_logits=kind in ("binary", "multilabel"))
print([name for name, signatures in known.items() for kernel in _kernels_of("gloader.training.score_kernels")
       if kernel.py_func.__name__ == name and list(kernel.signatures) != signatures])
"""


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_rehearsal_computes_the_metrics_of_an_evaluation(dtype: str) -> None:
    """An evaluation would compile them within the run's memory budget."""

    def compiled(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _NEW_KERNELS, dtype, *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert compiled() == "[]"
    assert compiled("nothing") != "[]"
