"""The folder of an embedding table: its lock, its records, its errors, and what a damaged file leads to."""

import errno
import logging
import os
import re
import threading

import numpy as np
import pytest

from gloader.errors import (
    ChecksumError,
    ConfigError,
    FormatError,
    IncompleteStoreError,
    ShapeError,
    StoreError,
    StoreExistsError,
    StoreLockedError,
    StoreOpenError,
    StoreReadError,
    StoreWriteError,
    TruncatedStoreError,
    VersionError,
)
from gloader.ssd_store import EmbeddingTable, InitialRows, table_bytes
from gloader.ssd_store.embedding import run_merge, run_set
from gloader.ssd_store.embedding.embedding_table import append_buffer_rows
from gloader.ssd_store.format.manifest import KNOWN_FEATURES, parse_manifest, seal_manifest
from gloader.testing.faults import FaultyOS

NUM_ROWS, WIDTH = 2000, 4
INITIAL = InitialRows(seed=1, dim=3, kind="normal", scale=0.1, state=(2.0,))
RANDOM = np.random.default_rng(3)
ROWS = RANDOM.standard_normal((NUM_ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(name="create")
def _create(tmp_path):
    """Make tables in ``tmp_path``, closed at the end."""
    made = []

    def create(name="t", **how):
        settings = {"num_rows": NUM_ROWS, "initial": INITIAL, "facts": {"a": 1}}
        made.append(EmbeddingTable.create(tmp_path / name, **(settings | how)))
        made[-1].resize_buffer(400)
        return made[-1]

    yield create
    for table in made:
        table.close()


@pytest.fixture(name="stored")
def _stored(create):
    """A folder with a sparse run of three pages of ids, under the record "last"."""
    with create() as table:
        table.append(np.arange(0, NUM_ROWS, 2), ROWS[::2])
        table.commit("last", num_steps=7, facts={})
    return table.folder


def read(table, ids):
    out = np.empty((len(ids), table.width), np.float32)
    table.read_into(np.array(ids, np.int64), out)
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_new_table_is_the_owners_and_takes_no_space(create):
    table = create("deep/er/t", num_rows=10**12)
    assert table.folder.stat().st_mode & 0o777 == 0o700
    assert names(table.folder) == []
    expected = np.empty((2, WIDTH), np.float32)
    INITIAL.fill(np.array([5, 10**12 - 1]), expected)
    assert np.array_equal(read(table, [5, 10**12 - 1]), expected)
    assert (table.bytes_read, table.bytes_written, table.num_steps, table.facts) == (0, 0, 0, {"a": 1})


def test_a_second_writer_is_refused_and_a_reader_is_not(stored):
    with EmbeddingTable.open(stored) as table:
        message = rf"t: process {os.getpid()} writes to this embedding table; this is the same process: close"
        with pytest.raises(StoreLockedError, match=message):
            EmbeddingTable.open(stored)
        with pytest.raises(StoreLockedError, match="writes to this embedding table"):
            EmbeddingTable.create(stored, num_rows=1, initial=INITIAL, facts={})
        with EmbeddingTable.open(stored, is_read_only=True) as reader:
            # The reader keeps the rows of its record, although a writer replaces it, and its files go.
            table.append(np.arange(NUM_ROWS), ROWS + 1)
            table.commit("last", num_steps=8, facts={})
            assert np.array_equal(read(reader, [0, 2]), ROWS[[0, 2]])
            assert reader.num_steps == 7
            for call in (
                lambda: reader.append(np.array([1]), ROWS[:1]),
                lambda: reader.commit("x", num_steps=1, facts={}),
                lambda: reader.forget("last"),
            ):
                with pytest.raises(
                    StoreError, match="open for reading only; open it with is_read_only=False"
                ):
                    call()
    with EmbeddingTable.open(stored):
        pass


def test_a_reader_that_loses_its_files_to_a_commit_tries_again(stored, monkeypatch):
    real, calls = run_set.RunSet.open, []

    def late(self, run_names, arrays):
        if not calls:
            calls.append(1)
            for _ in range(2):  # the rows of two tables are merged
                writer.append(np.arange(NUM_ROWS), ROWS)
            writer._runs.join()
            writer.commit("last", num_steps=9, facts={})  # names only the merged run
        real(self, run_names, arrays)

    with EmbeddingTable.open(stored) as writer:
        writer.resize_buffer(400)
        monkeypatch.setattr(run_set.RunSet, "open", late)
        with EmbeddingTable.open(stored, is_read_only=True) as reader:
            assert reader.num_steps == 9


def test_create_takes_the_place_of_a_table_that_never_committed(create, tmp_path):
    left = tmp_path / "t"
    left.mkdir()
    for name in ("run-3.rows.npy", "run-3.ids.pages", "last.json.tmp"):
        (left / name).write_text("half")
    with create():
        assert names(left) == []
    (left / "notes.txt").write_text("mine")
    with pytest.raises(
        StoreExistsError, match=r"the folder holds 'notes.txt'; open the table that is there, or"
    ):
        create()
    assert names(left) == ["notes.txt"]


def test_create_does_not_replace_a_table(stored):
    before = names(stored)
    with pytest.raises(StoreExistsError, match=r"the folder holds 'last.json'; open the table"):
        EmbeddingTable.create(stored, num_rows=NUM_ROWS, initial=INITIAL, facts={})
    assert names(stored) == before


def test_a_writer_removes_what_no_record_names_and_nothing_else(stored):
    kept = names(stored)
    for name in ("run-9.rows.npy", "run-9.rows.pages", "best.json.tmp"):
        (stored / name).write_text("half")
    (stored / "notes.txt").write_text("mine")
    with EmbeddingTable.open(stored, is_read_only=True):
        assert len(names(stored)) == len(kept) + 4
    with EmbeddingTable.open(stored) as table:
        assert names(stored) == sorted([*kept, "notes.txt"])
        table.append(np.array([1]), ROWS[:1])
        table.commit("best", num_steps=8, facts={})
        assert "run-10.rows.npy" in names(stored)  # a name is not used again


def test_files_stay_as_long_as_a_record_names_them(stored):
    with EmbeddingTable.open(stored) as table:
        table.commit("best", num_steps=8, facts={"b": 2})
        table.append(np.arange(NUM_ROWS), ROWS)
        table.commit("last", num_steps=9, facts={})
        assert table.records == ("best", "last")
        table.append(np.arange(NUM_ROWS), ROWS)  # the rows of two tables are merged
        table._runs.join()
        table.commit("last", num_steps=9, facts={})
        assert {"run-1.ids.npy", "run-3.rows.npy"} <= set(names(stored))
        table.forget("best")
        assert names(stored) == ["last.json", "run-3.rows.npy", "run-3.rows.pages"]
        with pytest.raises(ConfigError, match=r"t has no record 'best'; it has last"):
            table.forget("best")
        table.forget("last")
    assert names(stored) == []
    with pytest.raises(StoreOpenError, match="has no record: nothing was ever committed, so create it again"):
        EmbeddingTable.open(stored)


def test_rows_since_the_last_commit_are_lost_and_leave_no_file(stored):
    before = names(stored)
    with EmbeddingTable.open(stored) as table:
        table.resize_buffer(400)
        table.append(np.arange(NUM_ROWS - 1), ROWS[1:])
        assert names(stored) != before
    assert names(stored) == before
    with EmbeddingTable.open(stored) as table:
        assert np.array_equal(read(table, [0, 2]), ROWS[[0, 2]])


def test_records_are_found_by_name_and_the_newest_by_default(stored):
    with EmbeddingTable.open(stored) as table:
        table.commit("best", num_steps=8, facts={"a": 5})
        assert (table.num_steps, table.facts) == (8, {"a": 5})
    with EmbeddingTable.open(stored, is_read_only=True) as table:
        assert table.num_steps == 8
    with EmbeddingTable.open(stored, record="last") as table:
        assert (table.num_steps, table.facts) == (7, {"a": 1})
        table.commit("last", num_steps=6, facts={})
    with EmbeddingTable.open(stored, is_read_only=True) as table:  # committed last, with fewer steps
        assert table.num_steps == 6
    with pytest.raises(StoreOpenError, match=r"has no record 'first'; it has best, last"):
        EmbeddingTable.open(stored, record="first")
    with pytest.raises(ConfigError, match=r"record='../x' is no valid name; use 1 to 100 of the characters"):
        EmbeddingTable.open(stored, record="../x")


def test_a_folder_that_is_no_table(tmp_path):
    with pytest.raises(StoreOpenError, match="cannot be opened: there is nothing here"):
        EmbeddingTable.open(tmp_path / "none")
    assert names(tmp_path) == []
    with pytest.raises(StoreOpenError, match="nothing was ever committed"):
        EmbeddingTable.open(tmp_path)


RUN_FILES = ["run-1.rows.npy", "run-1.ids.npy", "run-1.rows.pages", "run-1.ids.pages"]
NEEDED = "the table's record 'last' needs it: open an earlier record with record=..., or train again from a checkpoint"
RECORD_ADVICE = "restore it from a copy, or move it away and open another record of the table"


def require_advice(error, file):
    """Require the advice for a damaged or unreadable ``file``, once, and none for datasets."""
    text = str(error)
    assert file.replace(".pages", "") in text
    assert text.count(RECORD_ADVICE if file == "last.json" else NEEDED) == 1
    assert "prepare" not in text
    assert "gloader verify" not in text


@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize("file", [*RUN_FILES, "last.json"])
def test_a_flipped_bit_is_found_and_the_file_is_named(stored, file, is_read_only):
    content = bytearray((stored / file).read_bytes())
    for offset in (40, 4100, len(content) - 3) if file != "last.json" else (40, len(content) - 3):
        damaged = bytearray(content)
        damaged[offset] ^= 4
        (stored / file).write_bytes(damaged)
        with (
            pytest.raises((ChecksumError, FormatError)) as caught,
            EmbeddingTable.open(stored, is_read_only=is_read_only) as table,
        ):
            list(table.pieces(500))
        require_advice(caught.value, file)
        assert "run-1.rows.npy" in names(stored)


@pytest.mark.parametrize("file", [*RUN_FILES, "last.json"])
def test_a_cut_or_missing_file_is_named(stored, file):
    content = (stored / file).read_bytes()
    (stored / file).write_bytes(content[:-10])
    with pytest.raises((TruncatedStoreError, ChecksumError)) as caught:
        EmbeddingTable.open(stored)
    require_advice(caught.value, file)
    (stored / file).unlink()
    with pytest.raises(StoreOpenError) as caught:
        EmbeddingTable.open(stored, is_read_only=True)
    if file == "last.json":
        assert not isinstance(caught.value, IncompleteStoreError)
        assert "nothing was ever committed" in str(caught.value)
    else:
        assert isinstance(caught.value, IncompleteStoreError)
        require_advice(caught.value, file)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_is_cut_or_unreadable_while_the_table_is_open_is_named(stored, is_cut):
    class Failing(FaultyOS):
        is_failing = False

        def pread_into(self, fd, buffer, offset):
            if self.is_failing:
                raise OSError(errno.EIO, "injected")
            return super().pread_into(fd, buffer, offset)

    os_io = Failing()
    with EmbeddingTable.open(stored, os_io=os_io) as table:
        if is_cut:
            os.truncate(stored / "run-1.rows.npy", 4096)
        os_io.is_failing = not is_cut
        with pytest.raises(TruncatedStoreError if is_cut else StoreReadError) as caught:
            read(table, range(0, 200, 2))
        require_advice(caught.value, "run-1")


def test_damage_names_the_records_that_need_a_run_and_an_earlier_one_is_opened(stored):
    with EmbeddingTable.open(stored) as table:
        table.resize_buffer(10)
        table.append(np.arange(20), ROWS[:20] + 1)
        table.commit("best", num_steps=8, facts={})
        table.commit("next", num_steps=9, facts={})
        table.append(np.arange(10, 30), ROWS[:20] + 2)  # a run of no record
        for run, advice in (
            (
                "run-2",
                "the table's records 'best' and 'next' need it: open an earlier record with record=...",
            ),
            ("run-3", "no record needs it: open the table again, and train on from its last record"),
        ):
            path = stored / f"{run}.rows.npy"
            path.write_bytes(bytes([path.read_bytes()[0]]) + path.read_bytes()[1:4100] + b"damaged!")
            with pytest.raises((ChecksumError, TruncatedStoreError), match=re.escape(advice)):
                read(table, range(15 if run == "run-3" else 0, 20 if run == "run-3" else 10))
    with pytest.raises((ChecksumError, TruncatedStoreError)):
        EmbeddingTable.open(stored)
    with EmbeddingTable.open(stored, record="last") as table:
        assert np.array_equal(read(table, range(0, 20, 2)), ROWS[0:20:2])
    (stored / "next.json").write_text("damaged")
    with pytest.raises(ChecksumError, match=RECORD_ADVICE):
        EmbeddingTable.open(stored, record="last")
    (stored / "next.json").unlink()  # as the advice says
    EmbeddingTable.open(stored, record="last").close()


def test_damage_that_a_merge_finds_has_the_same_advice(stored):
    content = bytearray((stored / "run-1.rows.npy").read_bytes())
    content[4 * 4096 + 4] ^= 4
    with EmbeddingTable.open(stored) as table:
        table.resize_buffer(400)
        (stored / "run-1.rows.npy").write_bytes(content)
        for _ in range(2):
            table.append(np.arange(1500), ROWS[:1500])
        table._runs.join()
        with pytest.raises(ChecksumError) as caught:
            table.commit("last", num_steps=8, facts={})
        require_advice(caught.value, "run-1.rows.npy")


def changed_record(folder, **metadata):
    path = folder / "last.json"
    body = parse_manifest(path.read_bytes(), path).to_json()
    body["metadata"].update(metadata)
    return path, body


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"runs": []}, r"last.json: the runs \(\) and the arrays do not match"),
        ({"runs": ["run-1", "run-1"]}, "the run 'run-1' must have float32 rows of 4 columns and"),
        ({"runs": ["../x"]}, r"the run '../x' must have float32 rows"),
        ({"num_rows": 999}, "the ids at places 0 to 999 are not ascending ids in 0..998"),
        ({"num_rows": "5"}, "malformed metadata: field 'num_rows' is '5', not an integer"),
        ({"more": 1}, "malformed metadata: field 'more' is unknown"),
        ({"facts": 3}, "'facts' and 'record_facts' must be objects"),
        (
            {"initial": {"seed": 1, "dim": 2, "kind": "ones", "scale": 1.0, "state": [0.0, 0.0]}},
            "malformed metadata: field 'initial' field 'kind' is 'ones', not one of uniform, normal, zeros",
        ),
        (
            {"initial": {"seed": 1, "dim": 3, "kind": "zeros", "scale": 1.0, "state": []}},
            "must have float32 rows of 3 columns and, unless it has all 2000 rows, as many int64 ids",
        ),
    ],
)
def test_an_intact_record_that_is_wrong_is_refused(stored, metadata, message):
    path, body = changed_record(stored, **metadata)
    path.write_bytes(seal_manifest(body))
    with pytest.raises(FormatError, match=message):
        EmbeddingTable.open(stored)


def test_an_unknown_version_is_refused_with_both_versions(stored, monkeypatch):
    path, body = changed_record(stored)
    path.write_bytes(seal_manifest(body | {"format_version": 9}))
    with pytest.raises(
        VersionError, match=r"last.json: written in format version 9 by .* this build reads 1 and 2"
    ):
        EmbeddingTable.open(stored)
    path.write_bytes(seal_manifest(body))
    older = KNOWN_FEATURES - {"embedding-table"}
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", older)
    with pytest.raises(VersionError, match=r"needs features \['embedding-table'\] that this build"):
        EmbeddingTable.open(stored)


def test_the_record_of_something_else_is_refused(stored):
    path, body = changed_record(stored)
    path.write_bytes(seal_manifest(body | {"kind": "dataset"}))
    with pytest.raises(
        FormatError, match=r"the record of a 'dataset' in format version 2, not of an embedding_table"
    ):
        EmbeddingTable.open(stored)


def test_wrong_arguments_are_refused(create):
    with pytest.raises(ConfigError, match=r"num_rows=0 must lie in 1..2\*\*62-1"):
        create("wrong", num_rows=0)
    table = create()
    out = np.empty((2, WIDTH), np.float32)
    for ids, message in (
        ([3, 3], "ids must ascend and be distinct; sort them with numpy.unique"),
        ([3, 1], "ids must ascend"),
        ([0, NUM_ROWS], "rows: 1 ids are out of range 0..1999: 2000"),
    ):
        with pytest.raises(ShapeError, match=message):
            table.read_into(np.array(ids), out)
    with pytest.raises(ShapeError, match="out must be writable C-contiguous float32, not float64"):
        table.read_into(np.array([1, 2]), out.astype(np.float64))
    with pytest.raises(ShapeError, match="rows must be float32, not float64"):
        table.append(np.array([1, 2]), out.astype(np.float64))
    with pytest.raises(ShapeError, match="out of range"):
        table.append(np.array([-1, 2]), out)
    with pytest.raises(ShapeError, match="ids must be distinct, and an id repeats"):
        table.append(np.zeros(NUM_ROWS, np.int64), ROWS)
    with pytest.raises(ConfigError, match="max_rows=0 must be at least 1"):
        next(table.pieces(0))
    with pytest.raises(FormatError, match="must be JSON values"):
        table.commit("last", num_steps=0, facts={"x": {1}})
    assert names(table.folder) == []
    table.close()
    table.close()
    for call in (lambda: table.read_into(np.array([1, 2]), out), lambda: table.append(np.array([1, 2]), out)):
        with pytest.raises(StoreError, match="the embedding table is closed; open it again"):
            call()


def test_a_full_disk_keeps_the_rows_in_memory_and_the_append_can_be_repeated(create):
    # Every write fails from the tenth on, for a while.
    faulty = FaultyOS(fail_at=10, repeat=20, error=errno.ENOSPC, calls={"write"})
    table = create(os_io=faulty)
    half = NUM_ROWS // 4
    with pytest.raises(StoreWriteError, match=r"free some space or choose another folder") as caught:
        for start in range(0, NUM_ROWS, half):
            table.append(np.arange(start, start + half), ROWS[start : start + half])
    assert caught.value.errno == errno.ENOSPC
    assert len({name.partition(".")[0] for name in names(table.folder)}) <= len(table._runs.runs)
    assert np.array_equal(read(table, range(start)), ROWS[:start])
    while True:
        try:
            table.append(np.arange(NUM_ROWS), ROWS)
            table.commit("last", num_steps=1, facts={})
            break
        except StoreWriteError:
            continue
    assert np.array_equal(read(table, range(NUM_ROWS)), ROWS)


def fail_merges(monkeypatch, error):
    """Let every merge fail, and plan one for any two runs."""

    def write(self, folder, name, *, os_io):
        raise error

    monkeypatch.setattr(run_set, "plan_merge", lambda sizes, _: (0, len(sizes)) if len(sizes) > 1 else None)
    monkeypatch.setattr(run_set.RunMerge, "write", write)


def test_a_merge_without_disk_space_is_named_once_and_training_goes_on(create, monkeypatch, caplog):
    fail_merges(monkeypatch, StoreWriteError(errno.ENOSPC, "no space", "x"))
    table = create()
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            table.append(np.arange(1500), ROWS[:1500])
            table._runs.join()
        table.commit("last", num_steps=1, facts={})
    assert len(table._runs.runs) == 4
    (line,) = caplog.messages
    assert "its runs are not merged, for lack of disk space; training goes on, with slower reads" in line
    assert np.array_equal(read(table, range(1500)), ROWS[:1500])


def test_any_other_error_of_a_merge_is_raised_at_the_next_call(create, monkeypatch):
    fail_merges(monkeypatch, ChecksumError("run-1 is damaged"))
    table = create()
    for _ in range(2):
        table.append(np.arange(1500), ROWS[:1500])
    table._runs.join()
    for _ in range(2):
        with pytest.raises(ChecksumError, match="run-1 is damaged"):
            table.commit("last", num_steps=1, facts={})
    assert np.array_equal(read(table, range(1500)), ROWS[:1500])
    table.close()


def test_an_error_of_a_merge_that_no_call_raised_is_raised_by_close(create, monkeypatch):
    fail_merges(monkeypatch, ChecksumError("run-1 is damaged"))
    table = create()
    for _ in range(2):
        table.append(np.arange(1500), ROWS[:1500])
    with pytest.raises(ChecksumError, match="run-1 is damaged"):
        table.close()
    assert names(table.folder) == []


def test_close_ends_a_merge(create, monkeypatch):
    begun = threading.Event()

    def write(self, folder, name, *, os_io):
        begun.set()
        while True:
            self._check()

    fail_merges(monkeypatch, None)
    monkeypatch.setattr(run_set.RunMerge, "write", write)
    table = create()
    for _ in range(2):
        table.append(np.arange(1500), ROWS[:1500])
    assert begun.wait(20)
    table.close()
    assert names(table.folder) == []


def test_a_folder_without_write_permission_is_read(stored):
    class Frozen(FaultyOS):
        """Refuses to open anything for writing, and to create, rename or remove."""

        def open(self, path, flags, mode=0o666):
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise PermissionError(errno.EACCES, "refused", str(path))
            return super().open(path, flags, mode)

    calls = {"mkdir", "replace", "unlink", "flock", "fsync", "fsync_dir", "write"}
    os_io = Frozen(fail_at=1, repeat=10**6, error=errno.EROFS, calls=calls)
    with EmbeddingTable.open(stored, is_read_only=True, os_io=os_io) as table:
        assert np.array_equal(read(table, [0, 2]), ROWS[[0, 2]])
    with pytest.raises(StoreWriteError, match="opening the embedding table failed: Read-only file system"):
        EmbeddingTable.open(stored, os_io=os_io)


def test_the_memory_of_a_table_is_an_upper_bound(stored):
    with EmbeddingTable.open(stored) as table:
        held = sum(run.num_bytes for run in table._runs.runs)
        assert 0 < held < table_bytes(NUM_ROWS, WIDTH, 0) - table_bytes(1, WIDTH, 0)
    # 57 GB of rows: checksums and fences take less than a hundredth.
    assert table_bytes(111_000_000, 129, 0) - table_bytes(1, 129, 0) < 0.01 * 111_000_000 * 129 * 4


def test_the_buffer_has_a_fortieth_of_the_table_if_the_slots_allow_it(create):
    assert append_buffer_rows(10**8, 100, 10**7) == 10**8 // 40
    assert append_buffer_rows(10**8, 100, 10**8) == 10**8 // 40
    assert append_buffer_rows(10**8, 100, 10**6) == 10**6 // 4
    least = 8 * 2**20 // (4 * 100 + 32)
    assert append_buffer_rows(10**8, 100, 100) == append_buffer_rows(10**5, 100, 10**5) == least
    assert append_buffer_rows(1000, 100, 1000) == 1000
    assert append_buffer_rows(10, 10**7, 10) == 1
    table = create()
    table.append(np.arange(300), ROWS[:300])
    assert table.bytes_written == 0
    table.resize_buffer(10)  # writes the rows
    assert table.bytes_written > 0
    assert table.buffer_rows == 10
    table.append(np.arange(300, 305), ROWS[300:305])
    assert np.array_equal(read(table, range(305)), ROWS[:305])


def test_create_makes_an_existing_folder_the_owners(create, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t").chmod(0o755)
    assert create().folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "full").mkdir(mode=0o755)
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(StoreExistsError):
        create("full")
    assert (tmp_path / "full").stat().st_mode & 0o077  # another table or none: not changed


def test_a_merge_of_newer_runs_in_many_steps_keeps_the_versions_in_older_ones(create, monkeypatch):
    part = []
    monkeypatch.setattr(run_set, "plan_merge", lambda sizes, _: tuple(part) if len(sizes) == 4 else None)
    monkeypatch.setattr(run_merge, "MERGE_BYTES", 1)
    table, rows = create(), ROWS.copy()
    part[:] = [0, 2]
    for shift, ids in enumerate(
        np.split(np.arange(2000), [700])[1:] * 2 + [np.arange(0, 1400, 2), np.arange(100, 1500)]
    ):
        rows[ids] = ROWS[ids] + shift
        table.append(ids, rows[ids])
        table._runs.join()
    assert [len(run) for run in table._runs.runs] == [1450, 1300, 1300]
    # The merged run is not in use by a reader's read: all bytes read so far are those of the merge.
    merged_read, merged_written = table.bytes_merged
    assert table.bytes_read == merged_read > 0
    assert merged_written == table._runs.runs[0].file_bytes < table.bytes_written
    out = np.empty_like(rows)
    INITIAL.fill(np.arange(NUM_ROWS), out)
    touched = np.union1d(np.arange(700, 2000), np.union1d(np.arange(0, 1400, 2), np.arange(100, 1500)))
    out[touched] = rows[touched]
    assert np.array_equal(read(table, range(NUM_ROWS)), out)


@pytest.mark.parametrize("count", [NUM_ROWS // 2 - 1, NUM_ROWS // 2])
def test_a_merge_with_the_oldest_run_is_dense_from_half_of_the_rows_on(create, monkeypatch, count):
    monkeypatch.setattr(run_set, "plan_merge", lambda sizes, _: (0, 2) if len(sizes) == 2 else None)
    table = create()
    for number in (count, 500):
        table.append(np.arange(number), ROWS[:number])
        table._runs.join()
    (run,) = table._runs.runs
    assert (run.is_dense, len(run)) == ((True, NUM_ROWS) if 2 * count == NUM_ROWS else (False, count))
    expected = np.empty((NUM_ROWS, WIDTH), np.float32)
    INITIAL.fill(np.arange(NUM_ROWS), expected)
    expected[:count] = ROWS[:count]
    assert np.array_equal(read(table, range(NUM_ROWS)), expected)


def test_a_commit_forces_runs_then_names_then_the_record_then_its_name(create):
    faulty = FaultyOS(calls={"fsync", "fsync_dir", "replace"})
    table = create(os_io=faulty)
    table.append(np.arange(1500), ROWS[:1500])
    before = len(faulty.history)
    table.commit("last", num_steps=1, facts={})
    assert faulty.history[before:] == ["fsync"] * 4 + ["fsync_dir", "fsync", "replace", "fsync_dir"]
    table.commit("last", num_steps=1, facts={})
    assert faulty.history[before + 8 :] == ["fsync_dir", "fsync", "replace", "fsync_dir"]


def test_files_of_both_versions_of_a_record_stay_after_a_commit_that_failed(stored):
    faulty = FaultyOS(fail_at=1, calls={"replace"})
    with EmbeddingTable.open(stored, os_io=faulty) as table:
        table.resize_buffer(400)
        for _ in range(2):
            table.append(np.arange(NUM_ROWS), ROWS)
        table._runs.join()
        with pytest.raises(StoreWriteError, match="committing failed: Input/output error"):
            table.commit("last", num_steps=8, facts={})
        assert {"run-1.rows.npy", "run-3.rows.npy"} <= set(names(stored))
        with EmbeddingTable.open(stored, is_read_only=True) as reader:
            assert reader.num_steps == 7
        table.commit("last", num_steps=8, facts={})
        assert names(stored) == ["last.json", "run-3.rows.npy", "run-3.rows.pages"]
