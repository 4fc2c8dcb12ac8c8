"""A conversion that numbers keys and is stopped: by Ctrl-C, by kill -9, or by a full disk. Nothing stays behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from run_server import RunServer

from gloader.cli.main import main
from gloader.convert.csc import spill as spilling
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUDGET = "60MB"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a description of buyers and their orders."""
    folder = tmp_path_factory.mktemp("shop")
    draw = random.Random(0)  # noqa: S311 - data, not secrets
    users = [f"user-{number:05d}" for number in range(2_000)]
    lines = [f"{user},{draw.randrange(90)},{draw.randrange(2)}\n" for user in users]
    (folder / "users.csv").write_text("id,age,kind\n" + "".join(lines))
    lines = [f"{draw.choice(users)},sku-{draw.randrange(500)}\n" for _ in range(40_000)]
    (folder / "orders.csv").write_text("user,item\n" + "".join(lines))
    (folder / "graph.yaml").write_text(
        "nodes:\n  user: {file: users.csv, key: id, columns: [age], labels: kind}\n"
        "edges:\n  buys: {file: orders.csv, src: user.user, dst: item.item}\n"
    )
    return folder / "graph.yaml"


@pytest.fixture(scope="module")
def server(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunServer]:
    folder = tmp_path_factory.mktemp("server")
    with RunServer(["prepare", str(shop), str(folder / "first")], log=folder / "log") as runs:
        yield runs


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the folder that the datasets appear in, and their temporary files beside them."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def words(shop: Path, out: Path) -> list[str]:
    return ["prepare", str(shop), str(out), "--memory-budget", BUDGET]


def left(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith((".", "gloader-"))]


def test_ctrl_c_at_any_moment_leaves_nothing(server: RunServer, shop: Path, place: Path) -> None:
    whole = server.run(words(shop, place / "whole"))
    assert whole.status == 0
    assert left(place) == []
    moments, num_stopped = random.Random(1), 0  # noqa: S311 - moments, not secrets
    for turn in range(6):
        out = place / f"run-{turn}"
        after_s = moments.uniform(0.0, whole.seconds)
        ended = server.run(words(shop, out), after_s=after_s, number=signal.SIGINT)
        assert ended.status in (0, 130), ended.text
        assert "Traceback" not in ended.text
        # The signal may come between the dataset's appearance and the end of the process.
        assert out.exists() or ended.status == 130
        assert not out.exists() or Dataset.open(out).num_nodes
        assert left(place) == []
        num_stopped += not out.exists()
    assert num_stopped


def test_after_kill_9_the_next_conversion_removes_what_is_left(
    server: RunServer, shop: Path, place: Path
) -> None:
    whole = server.run(words(shop, place / "whole"))
    fingerprint = Dataset.open(place / "whole").fingerprint
    moments = random.Random(2)  # noqa: S311 - moments, not secrets
    for turn in range(5):
        out = place / f"killed-{turn}"
        server.run(words(shop, out), after_s=moments.uniform(0.0, whole.seconds), number=signal.SIGKILL)
        assert len(left(place)) <= 2  # the folder with keys, and the unfinished dataset
        # The kill may come between the dataset's appearance and the removal of the keys.
        again = place / f"again-{turn}" if out.exists() else out
        assert server.run(words(shop, again)).status == 0
        assert Dataset.open(out).fingerprint == Dataset.open(again).fingerprint == fingerprint
        assert left(place) == []


def test_kill_9_while_keys_are_numbered_leaves_one_folder_that_goes_away(shop: Path, place: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys
        from gloader.cli.main import main
        from gloader.convert.keys.numbering import Numbering

        Numbering.resolve = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        main(sys.argv[1:])
        """
    )
    out = place / "out"
    ended = subprocess.run(
        [sys.executable, "-c", code, *words(shop, out)], env=os.environ, capture_output=True, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    (name,) = left(place)
    assert name.startswith("gloader-keys-")
    assert any((place / name).rglob("keys-user-order-0"))
    assert not out.exists()
    assert main(words(shop, out)) == 0
    assert left(place) == []


def test_a_full_disk_at_any_write_of_keys_leaves_nothing(
    shop: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = spilling.append_bytes, [0, 0]

    def limited(path: Path, array: Any) -> None:
        calls[0] += "gloader-keys-" in str(path)
        if calls[0] == calls[1]:
            raise StoreWriteError(errno.ENOSPC, f"No space left on device: {path}")
        write(path, array)

    monkeypatch.setattr(spilling, "append_bytes", limited)

    def convert(name: str) -> None:
        source = open_source(f"tables:{shop}", SourceOptions(memory_budget_bytes=10**8))
        prepare(source, place / name, PrepareOptions(memory_budget_bytes=10**8))

    calls[1] = -1
    convert("whole")
    total = calls[0]
    assert total > 3
    for last in sorted({1, total // 2, total}):
        calls[:] = [0, last]
        with pytest.raises(StoreWriteError, match="No space left"):
            convert("full")
        assert not (place / "full").exists()
        assert left(place) == []


def test_a_disk_without_room_for_the_ids_is_refused_before_the_keys_are_read(
    shop: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pc.read_csv(shop.with_name("orders.csv"))
    pq.write_table(table, shop.with_name("orders.parquet"))
    other = shop.with_name("parquet.yaml")
    other.write_text(shop.read_text().replace("orders.csv", "orders.parquet"))
    monkeypatch.setattr("gloader.ssd_store.os_io.free_bytes", lambda *_, **__: 100_000)
    monkeypatch.setattr("gloader.convert.key_numbers.numbered", None)
    source = open_source(f"tables:{other}", SourceOptions(memory_budget_bytes=10**8))
    # Each of the two ends of an edge takes 8 bytes.
    with pytest.raises(StoreWriteError, match=rf"needs {16 * table.num_rows} bytes .* has 100000 bytes"):
        prepare(source, place / "out", PrepareOptions(memory_budget_bytes=10**8))
    assert left(place) == []
