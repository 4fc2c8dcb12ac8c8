"""Tables of pairs: keys and ids of nodes become ids of the source, and scores stand beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.cli.pair_table import PairTable
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

USERS = np.array(["b", "a", "d", "c"], object)  # keys in the order of the source
ORDER = np.array([2, 0, 3, 1])  # the source's number of each stored node


def users(order: Any = None) -> Any:
    stored = USERS if order is None else USERS[order]

    def ids_of(keys: Any, *, missing: str) -> Any:
        assert missing == "-1"
        return np.array([list(stored).index(key) if key in stored else -1 for key in keys])

    return SimpleNamespace(name="user", key_kind="text", original_ids=order, ids_of=ids_of)


ITEMS: Any = SimpleNamespace(name="item", key_kind=None, original_ids=None)


def opened(path: Path, text: str) -> PairTable:
    path.write_text(text)
    table = PairTable.open(path)
    assert table is not None
    return table


@pytest.mark.parametrize("order", [None, ORDER])
def test_keys_become_the_ids_of_the_source(tmp_path: Path, order: Any) -> None:
    table = opened(tmp_path / "p.csv", "buyer,item\na,7\nd,0\nb,7\n")
    assert str(table) == "buyer and item of p.csv"
    assert table.ids(users(order), ITEMS).tolist() == [[1, 7], [2, 0], [0, 7]]


def test_ends_of_wider_tables_are_found_by_name(tmp_path: Path) -> None:
    table = opened(tmp_path / "p.csv", "note,dst,src\nx,a,b\n")
    assert table.ids(users(), users()).tolist() == [[0, 1]]
    with pytest.raises(SourceError, match="name others with a header such as src,dst, or two columns alone"):
        opened(tmp_path / "q.csv", "x,y,z\n1,2,3\n")


def test_an_unknown_key_is_named_by_its_row(tmp_path: Path) -> None:
    table = opened(tmp_path / "p.csv", "src,dst\na,b\nc,e\nd,f\n")
    with pytest.raises(
        ConfigError, match=r"--pairs .*p\.csv, column 'dst': row 1 has the key 'e', which no node of"
    ):
        table.ids(users(), users())


@pytest.mark.parametrize("width", [1, 3])
def test_scores_stand_beside_their_pairs(tmp_path: Path, width: int) -> None:
    rows = pa.table({"src": ["a", "b"] * 50, "dst": list(range(100)), "other": [0.5] * 100})
    pq.write_table(rows, tmp_path / "p.parquet", row_group_size=7)
    table = PairTable.open(tmp_path / "p.parquet")
    assert table is not None
    scores = np.random.default_rng(0).random((100, width)).astype(np.float32)
    found = pa.Table.from_batches(table.scored(scores[:, 0] if width == 1 else scores))
    names = ["score"] if width == 1 else ["score_0", "score_1", "score_2"]
    assert found.column_names == ["src", "dst", *names]
    assert found.select(["src", "dst"]).equals(rows.select(["src", "dst"]))
    assert np.array_equal(np.stack([found[name].to_numpy() for name in names], axis=1), scores)


def test_arrays_are_no_tables(tmp_path: Path) -> None:
    assert PairTable.open(tmp_path / "p.npy") is None
