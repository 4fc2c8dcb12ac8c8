"""The keys of a dataset's nodes: written, read, found, verified, and refused where they contradict each other."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest

from gloader.convert.keys.stored_keys import write_keys
from gloader.core import keys as core_keys
from gloader.core.keys import KEY_KINDS, KeyChunk, as_key_chunk, fixed_chunk
from gloader.dataset import Dataset
from gloader.dataset import keys as dataset_keys
from gloader.dataset.key_record import AscendingCheck
from gloader.dataset.record import check_record
from gloader.dataset.verify import verify_dataset
from gloader.errors import BudgetError, ConfigError, FormatError, ShapeError, UnknownKeyError, VersionError
from gloader.ssd_store.format import manifest as manifest_module
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.core.keys import KeyKind
    from gloader.types import IdArray

N = 900  # nodes, in several buckets


def keys_of_kind(kind: str, count: int = N) -> list[Any]:
    """Return different keys in no order."""
    numbers = np.random.default_rng(4).permutation(count).tolist()
    if kind == "uuid":
        return [str(UUID(int=3**70 * number + 5)) for number in numbers]
    if kind == "text":
        return ["é" * (number % 5) + str(number) for number in numbers]
    return [number * 2**40 + (2**63 if kind == "uint64" else -(2**48)) for number in numbers]


def write(
    path: Path, kind: KeyKind | None, keys: list[Any], *, order: IdArray | None = None, budget: int = 1 << 20
) -> Dataset:
    """Write a dataset without edges. Node i had the row ``order[i]`` in the source."""
    count, none = len(keys), np.empty(0, np.int64)
    with Dataset.create(path, name="x", num_nodes=count, num_classes=1) as writer:
        with writer.indptr() as indptr:
            indptr.append(np.zeros(count + 1, np.int64))
        writer.indices(0, "int32").close()
        with writer.features(1, "float32") as features:
            features.append(np.zeros((count, 1), np.float32))
        writer.labels(np.zeros(count, np.int64))
        writer.splits(train=none, valid=none, test=none)
        new_ids = None
        if order is not None:
            writer.original_ids(order)
            new_ids = np.argsort(order)
        if kind is not None:
            whole = as_key_chunk(keys, kind)
            parts = [
                KeyChunk(data=whole.data, starts=whole.starts[first : first + 101])
                for first in range(0, count, 100)
            ]
            write_keys(
                writer.nodes().keys(kind), parts, num_bytes=whole.num_bytes, folder=writer.scratch,
                budget_bytes=budget, new_ids=new_ids,
            )  # fmt: skip
    return Dataset.open(path)


def checked(path: Path) -> list[str]:
    return [problem.message for problem in verify_dataset(path).problems]


@pytest.fixture(params=[True, False], ids=["in memory", "by page"])
def paged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each array into memory, or by page and in small blocks."""
    if not request.param:
        monkeypatch.setattr(dataset_keys, "_KEPT_BYTES", 0)
        monkeypatch.setattr(dataset_keys, "_BLOCK_KEYS", 70)
        monkeypatch.setattr(dataset_keys, "_BLOCK_BYTES", 50)


@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("kind", KEY_KINDS)
def test_keys_lead_to_nodes_and_back(tmp_path: Path, kind: KeyKind, in_order: bool) -> None:
    keys = keys_of_kind(kind)
    order = None if in_order else np.random.default_rng(7).permutation(N)
    dataset = write(tmp_path / "d", kind, keys, order=order)
    assert checked(tmp_path / "d") == []
    table = dataset.labelled
    assert (table.has_keys, table.key_kind) == (True, kind)
    ids = np.random.default_rng(1).integers(0, N, 333)  # some of them twice
    wanted = [keys[i if order is None else order[i]] for i in ids]
    found = dataset.keys_of(ids)
    assert found.tolist() == wanted
    assert found.dtype == (kind if "int" in kind else object)
    assert dataset.ids_of(found).tolist() == ids.tolist()
    assert dataset.ids_of(wanted, "node").tolist() == ids.tolist()
    assert dataset.keys_of([]).tolist() == []
    assert dataset.ids_of([]).tolist() == []


@pytest.mark.usefixtures("paged")
@pytest.mark.parametrize("bits", [8, 1])
def test_equal_hashes_are_decided_by_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int
) -> None:
    whole = KeyChunk.hashes

    def cut(self: KeyChunk) -> Any:
        return whole(self) >> np.uint64(64 - bits) << np.uint64(64 - bits)

    monkeypatch.setattr(core_keys.KeyChunk, "hashes", cut)
    keys = keys_of_kind("text")
    dataset = write(tmp_path / "d", "text", keys)
    assert dataset.ids_of(keys).tolist() == [*range(N)]
    assert dataset.ids_of(["no", keys[3]], missing="-1").tolist() == [-1, 3]


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_the_index_does_not_depend_on_the_budget(tmp_path: Path, kind: KeyKind) -> None:
    keys = keys_of_kind(kind)
    one, two = (write(tmp_path / str(budget), kind, keys, budget=budget) for budget in (1 << 20, 3000))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != write(tmp_path / "r", kind, keys[::-1]).fingerprint


def test_a_budget_without_room_for_the_index_is_refused(tmp_path: Path) -> None:
    text = r"sorting the keys of 900 nodes takes at least \d+ B; the memory budget leaves 10 B for it"
    with pytest.raises(BudgetError, match=text):
        write(tmp_path / "d", "int64", keys_of_kind("int64"), budget=10)
    assert list(tmp_path.iterdir()) == []


def test_unknown_keys_are_named_or_become_minus_one(tmp_path: Path) -> None:
    keys = keys_of_kind("text")
    dataset = write(tmp_path / "d", "text", keys)
    text = "no node of type 'node' has the key 'nobody' (2 of 3 keys are unknown); missing=\"-1\" gives -1 for them"
    with pytest.raises(UnknownKeyError, match=re.escape(text)):
        dataset.ids_of([keys[5], "nobody", "nothing"])
    assert dataset.ids_of([keys[5], "nobody", ""], missing="-1").tolist() == [5, -1, -1]
    with pytest.raises(ConfigError, match=r'missing is \'drop\'; it must be "error" or "-1"'):
        dataset.ids_of([keys[5]], missing="drop")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no node type of this dataset"):
        dataset.ids_of(keys, "user")


@pytest.mark.parametrize(
    ("kind", "wrong", "text"),
    [
        ("int64", [1, "2"], "keys are integers that int64 holds here; key 1 is '2'"),
        ("int64", [1.0], "keys are integers that int64 holds here; key 0 is 1.0"),
        ("int64", [True], "keys are integers that int64 holds here; key 0 is True"),
        ("int64", np.array([1.0]), "keys are integers that int64 holds here; key 0 is 1.0"),
        ("int64", np.array([2**63], np.uint64), "key 0 is 9223372036854775808"),
        ("int64", [2**63], "key 0 is 9223372036854775808"),
        ("uint64", [0, -1], "keys are integers that uint64 holds here; key 1 is -1"),
        ("uint64", np.array([-1]), "keys are integers that uint64 holds here; key 0 is -1"),
        ("text", [1], "keys are texts here; key 0 is 1"),
        ("text", "abc", "keys must be a sequence of keys, not the one text 'abc'"),
        ("text", np.array([["a"]]), "keys must be one-dimensional, not of shape (1, 1)"),
        ("uuid", ["1"], "keys are UUIDs here; key 0 is '1'"),
    ],
)
def test_keys_of_another_kind_are_refused(tmp_path: Path, kind: KeyKind, wrong: Any, text: str) -> None:
    dataset = write(tmp_path / "d", kind, keys_of_kind(kind, 10))
    with pytest.raises(ShapeError, match=re.escape(text)):
        dataset.ids_of(wrong)


def test_keys_of_other_python_types(tmp_path: Path) -> None:
    numbers, uuids = keys_of_kind("int64", 10), keys_of_kind("uuid", 10)
    dataset = write(tmp_path / "d", "int64", numbers)
    assert dataset.ids_of([np.int64(numbers[3]), numbers[1]]).tolist() == [3, 1]
    assert dataset.ids_of(np.array(numbers[:2], object)).tolist() == [0, 1]
    dataset = write(tmp_path / "u", "uuid", uuids)
    assert dataset.ids_of([UUID(uuids[4]), uuids[2].upper()]).tolist() == [4, 2]


def test_nodes_without_keys(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", None, [0, 1])
    assert (dataset.labelled.has_keys, dataset.labelled.key_kind) == (False, None)
    text = r"d: nodes of type 'node' have no keys, only ids 0\.\.N-1; nodes have keys if `gloader prepare` was given"
    for call in (dataset.keys_of, dataset.ids_of):
        with pytest.raises(ConfigError, match=text):
            call([0])


def test_a_node_that_is_not_there_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d", "text", ["a", "b"])
    with pytest.raises(ShapeError, match=r"nodes of type 'node' are in 0\.\.1; these are not: \[2, -1\]"):
        dataset.keys_of([0, 2, -1])


def test_an_older_build_refuses_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", "text", ["a", "b"])
    monkeypatch.setattr(manifest_module, "KNOWN_FEATURES", manifest_module.KNOWN_FEATURES - {"node-keys"})
    with pytest.raises(VersionError, match=r"needs features \['node-keys'\] that this build"):
        Dataset.open(tmp_path / "d")


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_arrays_that_contradict_each_other_are_refused(tmp_path: Path, kind: KeyKind) -> None:
    write(tmp_path / "d", kind, keys_of_kind(kind, 300))
    manifest = load_manifest(tmp_path / "d", DATASET_MANIFEST)
    names = [name for name in manifest.arrays if name.startswith("keys")]
    check_record(tmp_path, manifest)
    for name in names:
        arrays = {each: record for each, record in manifest.arrays.items() if each != name}
        with pytest.raises(
            FormatError, match="nodes with keys need the arrays keys, " if name != "keys" else "need"
        ):
            check_record(tmp_path, replace(manifest, arrays=arrays))
    changes = {
        "keys": {"shape": (299, 16), "dtype": "uint8"} if kind != "text" else {"dtype": "uint16"},
        "keys.offsets": {"shape": (300,)},
        "keys.hash": {"shape": (301,)},
        "keys.node": {"dtype": "int16"},
        "keys.buckets": {"shape": (4,)},
    }
    for name in names:
        arrays = {**manifest.arrays, name: replace(manifest.arrays[name], **changes[name])}
        with pytest.raises(FormatError, match=r"keys"):
            check_record(tmp_path, replace(manifest, arrays=arrays))
    features = tuple(each for each in manifest.required_features if each != "node-keys")
    text = "with the array 'keys[a-z.]*', the record must name the required feature 'node-keys'"
    with pytest.raises(FormatError, match=text):
        check_record(tmp_path, replace(manifest, required_features=features))


def test_verify_checks_the_values_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "argsort", lambda values, **_: np.arange(len(values)))
    write(tmp_path / "e", "text", keys_of_kind("text", 300))
    monkeypatch.undo()
    (message,) = checked(tmp_path / "e")
    assert re.search(r"keys\.hash\[\d+\] = \d+ is smaller than \d+ before it; it must ascend", message)


def test_ascending_values_come_in_parts() -> None:
    check = AscendingCheck("keys.offsets", 7)
    assert [check.wrong(np.array(part, np.int64)) for part in ([0, 0, 3], [], [3, 7])] == [None] * 3
    assert check.wrong_end() is None
    assert AscendingCheck("keys.offsets", 7).wrong(np.array([1])) == "keys.offsets[0] is 1; it must be 0"
    check = AscendingCheck("keys.offsets", 9)
    check.wrong(np.array([0, 5]))
    assert check.wrong(np.array([4, 9])) == "keys.offsets[2] = 4 is smaller than 5 before it; it must ascend"
    check = AscendingCheck("keys.buckets", 9)
    check.wrong(np.array([0, 5]))
    assert check.wrong_end() == "keys.buckets[1], its end, is 5; it must be 9"
    top = AscendingCheck("keys.hash", None)
    assert top.wrong(np.array([1, 2**63 + 1], np.uint64)) is None
    assert top.wrong(np.array([2**63 + 1, 2**63], np.uint64)) is not None
    assert top.wrong_end() is None


def test_the_hash_is_that_of_the_page(tmp_path: Path) -> None:
    """docs/storage.md has the hash, so that other programs can find keys."""

    def mix(word: int) -> int:
        word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) % 2**64
        return word ^ word >> 31

    for key in (b"", b"a", b"12345678", b"123456789", b"x" * 23, bytes(16)):
        value = mix(len(key) ^ 0x9E3779B97F4A7C15)
        for start in range(0, len(key), 8):
            value = mix(value ^ int.from_bytes(key[start : start + 8], "little"))
        padded = np.frombuffer(b"??" + key + b"!!!!!!!!", np.uint8)
        for data in (padded, padded[: 2 + len(key)]):  # a word at the end is read byte by byte
            chunk = KeyChunk(data=data, starts=np.array([2, 2 + len(key)]))
            assert chunk.hashes().tolist() == [value]
    assert fixed_chunk(np.array([7])).hashes().tolist() == [mix(mix(8 ^ 0x9E3779B97F4A7C15) ^ 7)]
