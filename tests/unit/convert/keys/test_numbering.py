"""Node ids for keys: what is refused and in which words, what is spilled, and what stays in the folder."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.convert.keys.numbering import MIN_BUDGET_BYTES, Numbering
from gloader.convert.keys.values import interleaved
from gloader.core.keys import KeyChunk, as_key_chunk, key_values, text_chunk
from gloader.errors import BudgetError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.core.keys import KeyKind

SMALL = 1 << 16
LARGE = 1 << 22
MANY = 4000  # keys that do not fit in the small budget


def names(count: int, *, first: int = 0) -> list[str]:
    return [f"user-{i:06d}" for i in range(first, first + count)]


def numbered(
    folder: Path,
    nodes: list[Any] | None,
    streams: list[list[Any]],
    *,
    budget: int = LARGE,
    kind: KeyKind = "text",
    **options: Any,
) -> tuple[Any, list[list[int]]]:
    """Return the report and each stream's ids. Nothing stays in the folder, whatever happens."""
    try:
        with Numbering("user", kind, folder=folder, budget_bytes=budget, **options) as numbering:
            if nodes is not None:
                numbering.add_nodes([as_key_chunk(nodes, kind)], where="users.csv, column id")
            opened = []
            for keys in streams:
                opened.append(numbering.open_stream("orders.csv, column user"))
                opened[-1].append(as_key_chunk(keys, kind))
                opened[-1].close()
            report = numbering.resolve()
            assert numbering.memory_bytes < 100_000
            return report, [[int(i) for part in numbering.ids(each, 999) for i in part] for each in opened]
    finally:
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("budget", [SMALL, LARGE])
def test_a_small_budget_spills_and_changes_nothing(tmp_path: Path, budget: int) -> None:
    nodes = names(MANY)
    used = [nodes[i] for i in np.random.default_rng(3).integers(0, MANY, 9000)]
    report, (ids,) = numbered(tmp_path, nodes, [used], budget=budget)
    assert ids == [int(key.removeprefix("user-")) for key in used]
    assert (report.num_nodes, report.num_given, report.num_made) == (MANY, MANY, 0)
    assert (report.spilled_bytes > 0) == (budget == SMALL)
    assert report.key_bytes == 11 * MANY


@pytest.mark.parametrize("budget", [SMALL, LARGE])
def test_keys_make_nodes_in_order_of_first_appearance(tmp_path: Path, budget: int) -> None:
    first, second = names(MANY)[::-1], names(MANY, first=MANY // 2)
    report, (one, two) = numbered(tmp_path, None, [first * 2, second], budget=budget)
    assert one == [*range(MANY)] * 2
    assert two[: MANY // 2] == [*range(MANY // 2)][::-1]
    assert two[MANY // 2 :] == [*range(MANY, MANY + MANY // 2)]
    assert (report.num_nodes, report.num_given, report.dropped) == (MANY + MANY // 2, 0, (0, 0))


@pytest.mark.parametrize("budget", [SMALL, LARGE])
def test_a_key_of_two_nodes_is_refused_with_both_rows(tmp_path: Path, budget: int) -> None:
    nodes = names(MANY)
    nodes[3100], nodes[3700] = nodes[2900], nodes[5]  # the first of the two is named
    text = (
        "users.csv, column id: rows 2900 and 3100 both have the key 'user-002900'; each node of type 'user' has a key "
        "of its own: leave one of the rows out"
    )
    with pytest.raises(SourceError, match=f"^{re.escape(text)}$"):
        numbered(tmp_path, nodes, [names(2)], budget=budget)


@pytest.mark.parametrize("budget", [SMALL, LARGE])
@pytest.mark.parametrize("wrong", [2, 3900])
def test_a_key_without_a_node_is_refused_with_its_row(tmp_path: Path, budget: int, wrong: int) -> None:
    used = names(MANY)
    used[wrong], used[3950] = "nobody", "nothing"
    text = (
        f"orders.csv, column user: row {wrong} has the key 'nobody', which no row of users.csv, column id has; add the "
        "node, or say what becomes of such rows with `dangling: drop` (they are left out) or, without `tables`, "
        "`dangling: node` (each such key makes a node)"
    )
    with pytest.raises(SourceError, match=f"^{re.escape(text)}$"):
        numbered(tmp_path, names(MANY), [names(3), used], budget=budget)


@pytest.mark.parametrize("budget", [SMALL, LARGE])
def test_keys_without_a_node_are_dropped_or_make_nodes(tmp_path: Path, budget: int) -> None:
    nodes, used = names(MANY), [*names(MANY), "b", "a", "b"]
    report, (_, ids) = numbered(tmp_path, nodes, [["z"], used], budget=budget, dangling="drop")
    assert ids == [*range(MANY), -1, -1, -1]
    assert (report.num_nodes, report.num_made, report.dropped) == (MANY, 0, (1, 3))
    report, (one, ids) = numbered(tmp_path, nodes, [["z"], used], budget=budget, dangling="node")
    assert (one, ids[-3:]) == ([MANY], [MANY + 1, MANY + 2, MANY + 1])
    assert (report.num_nodes, report.num_made, report.dropped) == (MANY + 3, 3, (0, 0))


def test_rows_of_two_columns_in_turn_are_counted_as_rows(tmp_path: Path) -> None:
    places = ("e.csv, column src", "e.csv, column dst")
    with Numbering("user", "int64", folder=tmp_path, budget_bytes=LARGE) as numbering:
        numbering.add_nodes([as_key_chunk([10, 11, 12], "int64")], where="users.csv")
        with pytest.raises(SourceError, match=r"e\.csv, column dst: row 1 has the key -7, which no row"):
            numbering.open_stream(places).append(
                interleaved(as_key_chunk([10, 11], "int64"), as_key_chunk([12, -7], "int64"))
            )


def test_a_key_that_is_too_long_is_refused_with_its_row(tmp_path: Path) -> None:
    text = r"^orders\.csv, column user: row 1 has a key of 65536 bytes; a key has at most 65535 bytes: write shorter"
    with pytest.raises(SourceError, match=text):
        numbered(tmp_path, None, [["a", "x" * 65536]])
    report, ids = numbered(tmp_path, None, [["a", "x" * 65535, "x" * 65535]])
    assert (report.num_nodes, ids) == (2, [[0, 1, 1]])


def test_budgets_that_are_too_small_are_answered_with_one_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(
        BudgetError, match=r"of type 'user' takes at least 65\.6 KB; .* Raise --memory-budget"
    ):
        numbered(tmp_path, None, [], budget=MIN_BUDGET_BYTES - 1)
    long = ["x" * 3000, "y" * 3000]
    with pytest.raises(
        BudgetError, match=r"row 0 has a key of 3000 bytes, for which .* has no room"
    ) as error:
        numbered(tmp_path, None, [long], budget=SMALL)
    enough = SMALL + error.value.short_bytes
    assert numbered(tmp_path, None, [long], budget=enough)[1] == [[0, 1]]
    with pytest.raises(BudgetError, match=r"^one of 32 groups of keys, with \d+ keys, does not fit"):
        numbered(tmp_path, None, [names(60_000)], budget=SMALL)
    with pytest.raises(BudgetError) as error:
        numbered(tmp_path, None, [names(60_000)], budget=SMALL)
    number = re.search(r"; ([\d.]+) KB for keys are enough", str(error.value))
    assert number
    assert (
        numbered(tmp_path, None, [names(60_000)], budget=int(float(number[1]) * 1000))[0].num_nodes == 60_000
    )


def test_the_order_of_calls_is_held(tmp_path: Path) -> None:
    with Numbering("user", "text", folder=tmp_path, budget_bytes=LARGE) as numbering:
        stream = numbering.open_stream("e.csv")
        with pytest.raises(ValueError, match="after the last one was closed"):
            numbering.open_stream("f.csv")
        with pytest.raises(ValueError, match="before its streams"):
            numbering.add_nodes([], where="n.csv")
        with pytest.raises(ValueError, match="known after `resolve`"):
            list(numbering.ids(stream, 1))
        stream.close()
        with pytest.raises(ValueError, match="after its close"):
            stream.append(text_chunk(["a"]))
        report = numbering.resolve()
        assert numbering.resolve() is report
        assert (report.num_nodes, list(numbering.ids(stream, 5)), list(numbering.keys(5))) == (0, [], [])
        with pytest.raises(ValueError, match="before `resolve`"):
            numbering.open_stream("g.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_chunk_may_be_a_part_of_its_bytes(tmp_path: Path) -> None:
    whole = text_chunk(["left out", "a", "", "a", "left out"])
    with Numbering("user", "text", folder=tmp_path, budget_bytes=LARGE) as numbering:
        stream = numbering.open_stream("e.csv")
        stream.append(KeyChunk(data=whole.data, starts=whole.starts[1:5]))
        stream.append(KeyChunk(data=whole.data, starts=whole.starts[2:3]))  # no key
        stream.close()
        assert numbering.resolve().num_nodes == 2
        assert [part.tolist() for part in numbering.ids(stream, 9)] == [[0, 1, 0]]
        assert [key_values(chunk, "text").tolist() for chunk in numbering.keys(1)] == [["a"], [""]]


def test_two_types_share_a_folder(tmp_path: Path) -> None:
    with (
        Numbering("a", "text", folder=tmp_path, budget_bytes=SMALL) as one,
        Numbering("b", "text", folder=tmp_path, budget_bytes=SMALL) as two,
    ):
        streams = [one.open_stream("e"), two.open_stream("e")]
        for start in range(0, MANY, 500):
            streams[0].append(text_chunk(names(500, first=start)))
            streams[1].append(text_chunk(names(500, first=start)[::-1]))
        for stream, numbering in zip(streams, (one, two), strict=True):
            stream.close()
            assert numbering.resolve().spilled_bytes
            assert [i for part in numbering.ids(stream, 300) for i in part] == [*range(MANY)]
    assert list(tmp_path.iterdir()) == []


_MEASURED = """
import sys
from pathlib import Path

from gloader.convert.csc import spill
from gloader.convert.keys.numbering import Numbering
from gloader.core.keys import as_key_chunk, text_chunk
from gloader.observe.peak_memory import anonymous_bytes

folder, chunk, count, budget = Path(sys.argv[1]), *map(int, sys.argv[2:])
held, write = [], spill.append_bytes

def names(count, first=0):
    return [f"user-{i:06d}" for i in range(first, first + count)]

def number(budget, count, chunk, nodes):
    with Numbering("user", "text", folder=folder, budget_bytes=budget, dangling="node") as numbering:
        numbering.add_nodes([as_key_chunk(names(nodes), "text")], where="n.csv")
        stream = numbering.open_stream("e.csv")
        for start in range(0, chunk * count, chunk):
            stream.append(text_chunk(names(chunk, start)))
        stream.close()
        report = numbering.resolve()
        assert sum(len(part) for part in numbering.ids(stream, 999)) == chunk * count
        return report

def measured(path, array):
    held.append(anonymous_bytes())
    write(path, array)

number(1 << 16, 1, 9000, 5000)  # loads the kernels
spill.append_bytes = measured
before = anonymous_bytes()
print(number(budget, count, chunk, 1).spilled_bytes, max(held) - before)
"""


def test_memory_stays_within_the_budget(tmp_path: Path) -> None:
    """The anonymous memory is read at every write to a file, which is where blocks, tables and pieces are in use.

    In a process of its own: threads and freed memory of other tests would be counted here.
    """
    chunk, count, budget = 20_000, 16, 8_000_000
    command = [sys.executable, "-c", _MEASURED, str(tmp_path), *map(str, (chunk, count, budget))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spilled, grown = map(int, done.stdout.split())
    assert spilled > budget / 2
    chunk_bytes = chunk * (11 + 8 + 140)  # bytes, starts, and the Python texts that they are made of
    assert budget / 4 < grown < budget + chunk_bytes
