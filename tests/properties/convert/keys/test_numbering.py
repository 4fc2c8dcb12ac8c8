"""Any keys, budget, chunks and hashes give the ids that a dictionary gives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.keys.numbering import Numbering
from gloader.convert.keys.values import interleaved
from gloader.core.keys import KEY_KINDS, as_key_chunk, key_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gloader.core.keys import KeyChunk, KeyKind

POOLS: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5),
    "uint64": st.integers(0, 2**64 - 1) | st.integers(0, 9),
    # Endings with a zero byte are padded like the texts without it.
    "text": st.text(max_size=12) | st.text("ab\0é", max_size=9) | st.text("x", min_size=300, max_size=310),
    "uuid": st.uuids().map(str),
}
BUDGETS = st.sampled_from([1 << 16, 1 << 17, 1 << 22])


@st.composite
def inputs(draw: st.DrawFn) -> tuple[KeyKind, list[Any], list[list[Any]]]:
    """Return a kind, different keys of nodes, and streams that use these and a few other keys."""
    kind = draw(st.sampled_from(KEY_KINDS))
    pool = draw(st.lists(POOLS[kind], min_size=1, max_size=30, unique=True))
    if draw(st.booleans()):  # so many keys that a small budget has no room
        pool += [key for key in many(kind, 3000, draw(st.integers(0, 9))) if key not in set(pool)]
    nodes = pool[: draw(st.integers(0, len(pool)))]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = draw(st.lists(st.integers(0, 4000), max_size=3))
    return kind, nodes, [[pool[i] for i in rng.integers(0, len(pool), n)] for n in lengths]


def many(kind: str, count: int, salt: int) -> list[Any]:
    """Return different keys."""
    numbers = [salt * count + i for i in range(count)]
    if kind == "text":
        return [f"node-{number}" for number in numbers]
    return [str(UUID(int=number)) for number in numbers] if kind == "uuid" else numbers


def chunks(keys: Sequence[Any], kind: KeyKind, size: int) -> Iterator[KeyChunk]:
    """Yield the keys in chunks of ``size``."""
    for start in range(0, len(keys), size):
        yield as_key_chunk(keys[start : start + size], kind)


def expected(
    nodes: list[Any] | None, streams: list[list[Any]], *, makes: bool
) -> tuple[dict[Any, int], list[list[int]]]:
    """Return the id of each key by a dictionary, and each stream's ids."""
    ids = {key: i for i, key in enumerate(nodes or [])}
    out = []
    for stream in streams:
        for key in stream if makes else []:
            ids.setdefault(key, len(ids))
        out.append([ids.get(key, -1) for key in stream])
    return ids, out


@given(
    inputs(),
    st.booleans(),
    st.sampled_from(["drop", "node"]),
    BUDGETS,
    st.sampled_from([1, 8, 64]),
    st.data(),
)
def test_the_ids_are_those_of_a_dictionary(
    case: Any, has_nodes: bool, dangling: Any, budget: int, hash_bits: int, data: st.DataObject
) -> None:
    kind, nodes, streams = case
    if hash_bits < 64:  # equal hashes are compared one by one, and one partition has half of all keys
        nodes, streams, budget = nodes[:200], [stream[:200] for stream in streams], max(budget, 1 << 17)
    makes = dangling == "node" or not has_nodes
    ids, wanted = expected(nodes if has_nodes else None, streams, makes=makes)
    size, piece = data.draw(st.integers(1, 5000)), data.draw(st.integers(1, 5000))
    with (
        tempfile.TemporaryDirectory() as folder,
        Numbering(
            "user", kind, folder=Path(folder), budget_bytes=budget, dangling=dangling, hash_bits=hash_bits
        ) as numbering,
    ):
        if has_nodes:
            numbering.add_nodes(chunks(nodes, kind, size), where="users.csv")
        opened = []
        for number, keys in enumerate(streams):
            opened.append(numbering.open_stream(f"edges-{number}.csv"))
            for chunk in chunks(keys, kind, size):
                opened[-1].append(chunk)
            opened[-1].close()
        report = numbering.resolve()
        num_given = len(nodes) if has_nodes else 0
        assert (report.num_nodes, report.num_given) == (len(ids), num_given)
        assert report.num_made == len(ids) - num_given
        assert report.dropped == tuple(found.count(-1) for found in wanted)
        for stream, found in zip(opened, wanted, strict=True):
            for _ in range(2):  # a stream can be read again
                pieces = list(numbering.ids(stream, piece))
                assert all(0 < len(each) <= piece for each in pieces)
                assert [int(each) for part in pieces for each in part] == found
        kept = list(numbering.keys(piece))
        assert [key for chunk in kept for key in key_values(chunk, kind).tolist()] == list(ids)
        assert sum(chunk.num_bytes for chunk in kept) == report.key_bytes
        numbering.close()
        assert list(Path(folder).iterdir()) == []


@given(inputs(), BUDGETS, st.data())
def test_other_names_of_the_same_nodes_give_the_same_graph(
    case: Any, budget: int, data: st.DataObject
) -> None:
    """Keys that are renamed one to one, and rows in another order, give the same ids through the keys."""
    kind, nodes, streams = case
    used = list(dict.fromkeys([*nodes, *(key for stream in streams for key in stream)]))
    names = dict(zip(used, many("text", len(used), 7), strict=True))
    order = data.draw(st.permutations(range(min(len(nodes), 50)))) if nodes else []
    shuffled = [nodes[i] for i in order] + nodes[len(order) :]

    def numbered(of: KeyKind, keys: list[Any], used_keys: list[list[Any]]) -> list[list[Any]]:
        with (
            tempfile.TemporaryDirectory() as folder,
            Numbering("a", of, folder=Path(folder), budget_bytes=budget, dangling="node") as numbering,
        ):
            numbering.add_nodes(chunks(keys, of, 100), where="nodes")
            opened = []
            for each in used_keys:
                opened.append(numbering.open_stream("edges"))
                for chunk in chunks(each, of, 100):
                    opened[-1].append(chunk)
                opened[-1].close()
            numbering.resolve()
            by_id = [key for chunk in numbering.keys(1000) for key in key_values(chunk, of).tolist()]
            return [[by_id[i] for part in numbering.ids(each, 1000) for i in part] for each in opened]

    assert numbered(kind, shuffled, streams) == streams
    renamed = [[names[key] for key in stream] for stream in streams]
    assert numbered("text", [names[key] for key in nodes], renamed) == renamed


@given(inputs(), st.data())
def test_two_columns_in_turn(case: Any, data: st.DataObject) -> None:
    kind, nodes, _ = case
    other = data.draw(st.permutations(nodes)) if len(nodes) < 50 else nodes[::-1]
    both = interleaved(as_key_chunk(nodes, kind), as_key_chunk(other, kind))
    assert key_values(both, kind).tolist() == [key for pair in zip(nodes, other, strict=True) for key in pair]
