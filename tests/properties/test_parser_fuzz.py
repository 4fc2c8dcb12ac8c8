"""Every parser of a file, given files that are almost right: an error of ours or an answer, soon, in little memory.

The inputs are what the writers write, changed at random places: bits, bytes, lengths, words and, in JSON, values. A
dozen for each parser here, thousands in the long lane (`GLOADER_FUZZ` says how many, `GLOADER_FUZZ_SEED` which).
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import shutil
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import dgl_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from parser_guard import MAX_SECONDS, within_limits
from replayed_runs import findings_of_run, predicted, work_of_run

from gloader.cli.recipe import load_recipe
from gloader.convert.downloads import extract_archive
from gloader.convert.options import SourceOptions
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import TableEdges
from gloader.convert.registry import open_source, source_files
from gloader.convert.source import GraphSource
from gloader.convert.sources.graph_yaml import read_graph_yaml
from gloader.core.fanouts import parse_fanouts
from gloader.core.flag_values import parse_share
from gloader.core.loader_state import LoaderState
from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.dataset.schema import checked_schema
from gloader.errors import CheckpointError, GloaderError
from gloader.lab.report.build_page import read_sections
from gloader.ssd_store.cost import profile
from gloader.ssd_store.cost.device_profile import PROFILE_VERSION
from gloader.ssd_store.format.manifest import (
    EDGE_COLUMNS_FEATURE,
    FOLDERS_FEATURE,
    LINKS_FEATURE,
    RANGES_FEATURE,
    ArrayRecord,
    Manifest,
    parse_manifest,
    seal_manifest,
)
from gloader.ssd_store.spill.claim import SpillOwner
from gloader.training.checkpoint.save import load_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.reliability("J10")
SEED = int(os.environ.get("GLOADER_FUZZ_SEED", "0"))
FEW, MANY = 12, int(os.environ.get("GLOADER_FUZZ", "1500"))
ODD_NUMBERS = (
    0,
    -1,
    1.5,
    10**20,
    -(10**30),
    1e308,
    -1e308,
    5e-324,
    2**31,
    2**63,
    2**64,
    float("inf"),
    float("nan"),
)
ODD_VALUES = (*ODD_NUMBERS, None, True, "", "x" * 300, [], {}, [[]], {"a": 1}, [None], "\x1b[2J", "\ud800")
ODD_WORDS = (
    *(str(number).encode() for number in (*ODD_NUMBERS, 10**400)),
    *(
        b"",
        b"\x00",
        b"\n",
        b",",
        b'"',
        b"'",
        b"(",
        b"[" * 60,
        b"{" * 60,
        b"\xff\xfe",
        b"-",
        b"*a",
        b"&a",
        b"!!",
        b":",
    ),
    *(
        b"nan",
        b"null",
        b"None",
        b"True",
        b"9" * 5000,
        b"(" * 300,
        b"0x" + b"f" * 5000,
        b"\x1b]0;",
        "é∂".encode(),
    ),
)


def mutated(data: bytes, chance: Random) -> bytes:
    """Return ``data`` changed at one to four places."""
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, how = chance.randrange(len(content) + 1), chance.randrange(7)
        end = min(len(content), at + chance.choice((1, 2, 4, 8, 60)))
        if how == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif how == 1:
            content[at:end] = bytes(chance.choice((0, 255)) for _ in range(end - at))
        elif how == 2:
            content[at:end] = chance.choice(ODD_WORDS)
        elif how == 3:
            content[at:at] = chance.choice(ODD_WORDS)
        elif how == 4:
            del content[at:end]
        elif how == 5:
            content[at:at] = content[at:end] * chance.choice((1, 3))
        elif chance.random() < 0.3:
            del content[at:]
    return bytes(content)


def odd_json(value: Any, chance: Random) -> Any:
    """Return a JSON value with one of its parts replaced, taken out or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        changed = {name: part for name, part in value.items() if name != key or chance.random() < 0.9}
        return {**changed, key: odd_json(value[key], chance)} if key in changed else changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], odd_json(value[at], chance), *value[at + (chance.random() < 0.9) :]]
    return chance.choice(ODD_VALUES)


def mutated_json(data: bytes, chance: Random) -> bytes:
    """Return JSON changed as text, or as a value."""
    if chance.random() < 0.4:
        return mutated(data, chance)
    lines = data.decode().splitlines() if data.count(b"\n{") else [data.decode()]
    at = chance.randrange(len(lines))
    lines[at] = json.dumps(odd_json(json.loads(lines[at]), chance))
    return "\n".join(lines).encode()


def mutated_zip(data: bytes, chance: Random) -> bytes:
    """Return an archive changed as a file, or in one of its members."""
    if chance.random() < 0.5:
        return mutated(data, chance)
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        infos = old.infolist()
        chosen = chance.choice(infos)
        for info in infos:
            content = old.read(info)
            new.writestr(info, mutated(content, chance) if info is chosen else content)
    return changed.getvalue()


@dataclass(frozen=True)
class Target:
    """A parser: a file that it takes, how that is changed, and the call."""

    file: str
    make: Callable[[], bytes]
    read: Callable[[Path], object]
    change: Callable[[bytes, Random], bytes] = mutated
    is_drawn: bool = False  # takes a second each
    pictures: int = 1  # that are drawn of one


def array_bytes(save: Callable[..., None], **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def npy() -> bytes:
    return array_bytes(np.save, arr=np.arange(60).reshape(20, 3))


def read_npy(path: Path) -> None:
    file = NpyFile.open(path)
    for _ in zip(file.rows(7), range(50), strict=False):
        pass


def read_npz(path: Path) -> None:
    for member in npz_members(path)[:3]:
        for _ in zip(NpyFile.open(path, member).flat(9), range(50), strict=False):
            pass


def csv() -> bytes:
    return b"# of a graph\nsrc,dst,weight\n" + b"".join(
        b"%d,%d,%d.5\n" % (i, i * 7 % 20, i) for i in range(20)
    )


def read_table(path: Path) -> None:
    list(TableEdges.open(open_table(path)).stream().chunks(6))


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"src": np.arange(30), "dst": np.arange(30) * 7 % 30, "w": np.ones(30)}), file)
    return file.getvalue()


def recipe() -> bytes:
    return (
        b"dataset:\n  path: a/b\nmodel: {name: gat, hidden: 64}\nlr: 0.003\nbatch_size: 1024\n"
        b"fanout: {'a:r:b': [15, 10], '*': [5, 5]}\n"
        b"memory-budget: 8GB\nlayout: merged\nseed: 3\n"
    )


def read_recipe(path: Path) -> None:
    known = {"dataset", "model", "hidden", "fanout", "lr", "batch-size", "memory-budget", "layout", "seed"}
    for key, text in load_recipe(path, known).items():
        if key == "fanout":
            parse_fanouts(text)
        elif key == "memory-budget":
            parse_bytes(text)


def graph_yaml() -> bytes:
    return (
        b"name: books\nnodes:\n  paper: {features: p.npy, labels: l.npy, num_classes: 3}\n  author: {num_nodes: 20}\n"
        b"  user: {file: u.csv, key: id, columns: [age, {name: c, as: time}], labels: [a, b], split: {column: f}}\n"
        b"edges:\n  author:writes:paper: {file: w.csv, src: a, dst: p, weight: n}\n  paper:cites:paper: c.npy\n"
        b"  reads: {file: r/, src: user.id, dst: paper.p, columns: {number: price}}\ndangling: drop\n"
    )


def read_description(path: Path) -> None:
    read_graph_yaml(path.parent).files()


def manifest() -> bytes:
    array = {"file": "x.npy", "dtype": "float32", "shape": [4, 2], "num_bytes": 32, "digest": "0" * 16}
    body = {
        "format": "gloader",
        "format_version": 1,
        "kind": "dataset",
        "byte_order": "little",
        "page_bytes": 4096,
        "data_offset": 4096,
        "required_features": [],
        "created_by": "gloader",
        "arrays": {"x": {**array, "pages_file": "x.pages"}},
        "metadata": {"name": "a", "num_classes": 3},
    }
    return seal_manifest(body)


def typed_manifest(
    more: Mapping[str, tuple[int, ...]] = {}, said: Mapping[str, Any] = {}, features: tuple[str, ...] = ()
) -> bytes:
    shapes = {"labels": (4,), "train": (2,), "valid": (1,), "test": (1,)}
    shapes = {f"nodes/paper/{name}": shape for name, shape in shapes.items()}
    shapes |= {"relations/a__to__paper/indptr": (5,), "relations/a__to__paper/indices": (3,), **more}
    records = {
        name: ArrayRecord(
            name=name,
            file=f"{name}.npy",
            dtype="int64",
            shape=shape,
            num_bytes=8 * math.prod(shape),
            digest="0" * 16,
            pages_file=f"{name}.pages",
        )
        for name, shape in shapes.items()
    }
    schema = checked_schema({"paper": 4, "a": 2}, [("a", "to", "paper")])
    metadata = {"name": "d", "num_classes": 3, **schema.to_metadata(), **said}
    required = (FOLDERS_FEATURE, *features)
    return Manifest(kind="hetero", arrays=records, metadata=metadata, required_features=required).to_bytes()


def linked_manifest() -> bytes:
    links = {name: {"relation": "a:to:paper", "reverse": None, "in_graph": 2} for name in ("train", "valid")}
    more: dict[str, tuple[int, ...]] = {"links/train/labels": (4,), "links/train/negatives": (4, 3)}
    more |= {f"links/{name}/pairs": (4, 4) for name in links}
    more |= {"relations/a__to__paper/edge_time": (3,)}
    return typed_manifest(more, {"links": links}, (LINKS_FEATURE, EDGE_COLUMNS_FEATURE))


def ranged_manifest() -> bytes:
    body = json.loads(manifest())
    del body["checksum"]
    ranges = {"part": 1, "of": 3, "bounds": {"x": [0, 1, 3, 4]}}
    changed = {"format_version": 2, "required_features": [RANGES_FEATURE], "ranges": ranges}
    return seal_manifest(body | changed)


def read_ranged(path: Path) -> None:
    found = parse_manifest(path.read_bytes(), path)
    for name in found.arrays if found.ranges is not None else ():
        held = found.held_rows(name)
        if held is not None:
            record = found.arrays[name]
            assert list(held.bounds) == sorted(held.bounds)
            assert len(held.bounds) == held.of + 1
            assert 0 <= held.first <= held.past <= record.shape[0] == held.bounds[-1]
            first, past = held.span(record.row_bytes, 4096)
            assert 0 <= first <= past <= record.num_pages


def read_typed(path: Path) -> None:
    manifest = parse_manifest(path.read_bytes(), path)
    dataset = Dataset(path.parent, manifest)
    starts = dataset.type_starts
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] == dataset.num_nodes
    for record in manifest.arrays.values():
        assert (path.parent / record.file).resolve().is_relative_to(path.parent.resolve())
    for source, _, destination in dataset.relations:
        assert {source, destination} <= set(dataset.node_types)
    for table in dataset.link_tables.values():
        assert {table.relation, table.reverse_relation or table.relation} <= set(dataset.relations)
        assert 0 <= table.in_graph <= table.num_rows
        assert table.num_bytes >= 32 * table.num_rows
    assert all(table.has_times <= ("edge_time" in table.arrays) for table in dataset.edge_tables.values())


def sealed(data: bytes, chance: Random) -> bytes:
    """Return a changed record with the checksum of what it says now."""
    body = json.loads(data)
    del body["checksum"]
    changed = mutated_json(json.dumps(body).encode(), chance)
    try:
        return seal_manifest(json.loads(changed))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return changed


def state() -> bytes:
    position = {"version": 1, "next": [3, 17], "seed": 5, "global_batch_size": 64, "fingerprint": "ab"}
    return json.dumps(position).encode()


def read_state(path: Path) -> None:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return  # the file is the user's, and so is its reading
    LoaderState.from_json(content).require_same_stream(LoaderState.from_json(json.loads(state())))


def device_profile() -> bytes:
    rates = {
        "random_reads_per_s": 4e4,
        "read_bytes_per_s": 1e9,
        "write_bytes_per_s": 1e9,
        "medium_reads_per_s": 3e4,
    }
    return json.dumps({"version": PROFILE_VERSION, **rates, "queue_depth": 64, "is_direct": True}).encode()


def read_profile(path: Path) -> None:
    found = profile.remembered_profile(path.parent)
    assert found is None or 4096 <= found.sweep_gap_bytes <= 65536


def owner() -> bytes:
    return json.dumps({"pid": 3, "start_ticks": 17, "boot_id": "a-b", "host": "h"}).encode()


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("a/", "")
        out.writestr("a/b.txt", "text " * 20)
        out.writestr("a/c/d.txt", "more")
    return file.getvalue()


def unpack(path: Path) -> None:
    target = path.with_name("unpacked")
    extract_archive(path, target)
    shutil.rmtree(target)


def saved_graph() -> bytes:
    content = {
        "x": torch.zeros(6, 2),
        "edge_index": torch.zeros(2, 3, dtype=torch.int64),
        "y": torch.zeros(6),
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def read_source(prefix: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        source = open_source(f"{prefix}:{path}", SourceOptions(memory_budget_bytes=10**8))
        # A name that another byte has made no relation leaves a graph of one type.
        is_typed = isinstance(source, GraphSource)
        for each in source.relations if is_typed else [source]:
            for chunk, _ in zip(each.edges.chunks(4), range(20), strict=False):
                assert chunk.src.shape == chunk.dst.shape
        for each in source.nodes if is_typed else [source]:
            for _ in zip(each.features.chunks(3) if each.features else (), range(20), strict=False):
                pass

    return read


def saved_hetero_graph() -> bytes:
    content = {
        "a": {"x": torch.zeros(6, 2), "y": torch.zeros(6)},
        "b": {"num_nodes": 3},
        ("b", "to", "a"): {"edge_index": torch.zeros(2, 3, dtype=torch.int64)},
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def checkpoint() -> bytes:
    content = {
        "version": 2,
        "spec": {"name": "mlp", "in_dim": 4, "hidden": 3, "num_classes": 2, "num_layers": 2},
        "fingerprint": "ab",
        "weights": {"a": torch.zeros(3)},
        "progress": {"epoch": 1},
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def inspection() -> bytes:
    misses = {"belady": {"misses": [9, 4, 2]}, "none": {"misses": [9, 9, 9]}}
    sizes = {
        "num_nodes": 9,
        "row_bytes": 8,
        "accesses": 9,
        "distinct_rows": 5,
        "batches": 2,
        "epoch_batches": 2,
    }
    content = {**sizes, "slots": [0, 4, 8], "policies": misses, "knee": {"slots": 4}, "dataset": "a"}
    return json.dumps(content).encode()


def trace() -> bytes:
    spans = [
        {"ph": "X", "cat": "stage", "name": "read", "ts": 10 * i, "dur": 8, "pid": 1, "tid": 2,
         "args": {"epoch": i % 2, "batch": i, "superbatch": i // 3}}
        for i in range(8)
    ]  # fmt: skip
    names = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "read"}}]
    return json.dumps({"traceEvents": [*names, *spans]}).encode()


def analysis() -> bytes:
    found = findings_of_run(predicted("disk=2x", work=work_of_run(read_s=0.015)))
    return json.dumps(found.to_json()).encode()


def metrics() -> bytes:
    line = {
        "epoch": 0,
        "rows_gathered": 10,
        "bottleneck": "read",
        "seconds": 1.0,
        "evaluate_seconds": 0.1,
        "loss": 0.5,
        "train_acc": 0.5,
        "valid_acc": 0.4,
        "hit_rate": 0.3,
        "bytes_read": 5,
        "bytes_written": 0,
        "stage_seconds": {"compute": 0.5, "wait": 0.25},
        "memory_bytes": [7, 9, 8],
    }
    return "\n".join(json.dumps({**line, "epoch": epoch}) for epoch in range(3)).encode()


def read_report(path: Path) -> None:
    read_sections(path if path.name != "metrics.jsonl" else path.parent)


def sizes() -> bytes:
    return b"8GB 512MiB 1.5kb 10% 15,10,-1 4096 author:writes:paper=25,20;*=10,5 collective:25,20"


def read_sizes(path: Path) -> None:
    for word in path.read_bytes().decode("latin-1").split(" "):
        for parse in (parse_bytes, parse_share, parse_fanouts):
            # Each word by itself: an error of one hides none of another.
            try:
                parse(word)
            except GloaderError:
                continue


def specs() -> bytes:
    return b"synthetic:rmat,nodes=40,edges=60,dim=2,classes=2,a=0.5|igb:/nowhere@19|npy:~nobody/x|ogb:ogbn-arxiv@/x"


def read_specs(path: Path) -> None:
    options = SourceOptions(memory_budget_bytes=10**7, root=path.parent / "none")
    for spec in path.read_bytes().decode("latin-1").split("|"):
        for use in (source_files, open_source):
            try:
                # Sources of some thousand nodes are real work, not parsing.
                use(spec.replace("ogb:", "ogb:x-"), options)
            except GloaderError:
                continue


TARGETS = {
    "record": Target("a.json", manifest, lambda path: parse_manifest(path.read_bytes(), path)),
    "record, sealed": Target(
        "a.json", manifest, lambda path: parse_manifest(path.read_bytes(), path), sealed
    ),
    "record with ranges": Target("a.json", ranged_manifest, read_ranged, sealed),
    "typed record": Target("a.json", typed_manifest, read_typed, sealed),
    "record with links": Target("a.json", linked_manifest, read_typed, sealed),
    "npy": Target("a.npy", npy, read_npy),
    "npz": Target("a.npz", lambda: array_bytes(np.savez_compressed, x=np.arange(40)), read_npz, mutated_zip),
    "csv": Target("a.csv", csv, read_table),
    "csv.gz": Target("a.csv.gz", lambda: gzip.compress(csv()), read_table),
    "parquet": Target("a.parquet", parquet, read_table),
    "yaml": Target("a.yaml", recipe, read_recipe),
    "tables": Target("graph.yaml", graph_yaml, read_description),
    "state": Target("a.json", state, read_state, mutated_json),
    "owner": Target("a.json", owner, lambda path: SpillOwner.parse(path.read_text("latin-1")), mutated_json),
    "profile": Target("a.json", device_profile, read_profile, mutated_json),
    "archive": Target("a.zip", archive, unpack, mutated_zip),
    "pyg": Target("a.pt", saved_graph, read_source("pyg"), mutated_zip),
    "pyg, typed": Target("a.pt", saved_hetero_graph, read_source("pyg"), mutated_zip),
    "dgl": Target("a.bin", lambda: dgl_files.content("by_source"), read_source("dgl")),
    "dgl, typed": Target("a.bin", lambda: dgl_files.content("typed"), read_source("dgl")),
    "checkpoint": Target("checkpoint.pt", checkpoint, load_checkpoint, mutated_zip),
    "inspection": Target("inspect.json", inspection, read_report, mutated_json, is_drawn=True),
    "trace": Target("trace.json", trace, read_report, mutated_json, is_drawn=True),
    "analysis": Target("analysis.json", analysis, read_report, mutated_json, is_drawn=True, pictures=4),
    "metrics": Target("metrics.jsonl", metrics, read_report, mutated_json),
    "sizes": Target("a.txt", sizes, read_sizes),
    "specs": Target("a.txt", specs, read_specs),
}


def fuzz(name: str, folder: Path, numbers: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> None:
    target = TARGETS[name]
    path = folder / target.file
    monkeypatch.setattr(profile, "_profile_path", lambda _: path)
    original = target.make()
    path.write_bytes(original)
    # As it was written; loads what the parser imports, too. A checkpoint is made by hand here, without its digest.
    with suppress(CheckpointError):
        target.read(path)
    for number in numbers:
        chance = Random(f"{SEED} {name} {number}")  # noqa: S311
        path.write_bytes(target.change(original, chance))
        with (
            suppress(GloaderError),
            within_limits(f"{name}, input {number}", seconds=target.pictures * MAX_SECONDS),
        ):
            target.read(path)


@pytest.mark.parametrize("name", TARGETS)
def test_almost_right_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(name, tmp_path, range(3 if TARGETS[name].is_drawn else FEW), monkeypatch)


@pytest.mark.parametrize(
    ("name", "numbers"),
    # Pyarrow aborts where the statistics of a column do not fit its schema; a name of a column has 3,000 letters.
    [("parquet", [810, 1092]), ("csv", [748])],
)
def test_files_that_the_long_lane_found(
    name: str, numbers: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz(name, tmp_path, numbers, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_many_almost_right_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzz(
        name,
        tmp_path,
        range(MANY // (15 * TARGETS[name].pictures) if TARGETS[name].is_drawn else MANY),
        monkeypatch,
    )
