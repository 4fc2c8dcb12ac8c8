"""Creating stores: what is stored, what is refused, and that a refusal leaves nothing behind."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from gloader.errors import (
    ConfigError,
    FeatureValueError,
    FormatError,
    ShapeError,
    StoreExistsError,
    StoreLockedError,
    StoreWriteError,
)
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.array_reader import load_array, load_page_checksums
from gloader.ssd_store.format.format import STORE_MANIFEST, load_manifest
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.write.array_writer import BUFFER_BYTES
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def rows(num_rows=100, dim=7, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal((num_rows, dim)).astype(dtype)


def create(path, array, *, dtype="float32", **settings):
    with FeatureWriter(path, num_rows=array.shape[0], dim=array.shape[1], dtype=dtype, **settings) as writer:
        writer.append(array)


def stored(path, name="features"):
    manifest = load_manifest(path, STORE_MANIFEST)
    assert verify_directory(path, STORE_MANIFEST).is_ok
    return load_array(path, manifest.arrays[name])


@pytest.mark.parametrize("dtype", [np.float32, "float16"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1000, 1), (13, 1024), (5, 8415)])
def test_what_is_written_comes_back(tmp_path, dtype, shape):
    array = rows(*shape, dtype=dtype)
    create(tmp_path / "s", array, dtype=dtype)
    assert stored(tmp_path / "s").tobytes() == array.tobytes()
    assert np.load(tmp_path / "s" / "features.npy", allow_pickle=False).tobytes() == array.tobytes()
    assert names(tmp_path) == ["s"]
    assert names(tmp_path / "s") == ["features.npy", "features.pages", "store.json"]


def test_an_array_larger_than_the_buffer(tmp_path):
    array = rows(BUFFER_BYTES // 4 // 500 * 2 + 33, 500)
    with FeatureWriter(tmp_path / "s", num_rows=array.shape[0], dim=500, dtype="float32") as writer:
        for chunk in np.array_split(array, 7):
            writer.append(chunk)
    assert np.array_equal(stored(tmp_path / "s"), array)
    record = load_manifest(tmp_path / "s", STORE_MANIFEST).arrays["features"]
    assert load_page_checksums(tmp_path / "s", record).shape == (record.num_pages,)


def test_rows_in_any_memory_order(tmp_path):
    array = rows(60, 14)
    with FeatureWriter(tmp_path / "s", num_rows=60, dim=7, dtype="float32") as writer:
        writer.append(np.asfortranarray(array[:30, ::2]))
        writer.append(array[30:, ::2])
    assert np.array_equal(stored(tmp_path / "s"), array[:, ::2])


# --- dtypes ---


def test_bfloat16_rounds_to_nearest_even(tmp_path):
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x00000001, 0x80000000], np.uint32
    )
    array = bits.view(np.float32).reshape(1, -1)
    create(tmp_path / "s", array, dtype="bfloat16")
    assert stored(tmp_path / "s").tolist() == [[0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x0000, 0x8000]]


def test_bfloat16_keeps_a_nan_whose_payload_is_all_low_bits(tmp_path):
    array = np.array([[0x7F800001, 0xFFFFFFFF]], dtype=np.uint32).view(np.float32)
    create(tmp_path / "s", array, dtype="bfloat16")
    assert stored(tmp_path / "s").tolist() == [[0x7FC0, 0xFFFF]]


def test_bits_of_bfloat16_are_taken_as_they_are(tmp_path):
    bits = np.arange(12, dtype=np.uint16).reshape(3, 4)
    create(tmp_path / "s", bits, dtype="bfloat16")
    assert np.array_equal(stored(tmp_path / "s"), bits)


def test_int8_has_one_scale_for_each_row(tmp_path):
    array = rows(50, 9, np.float64)
    array[3] = 0
    create(tmp_path / "s", array, dtype="int8")
    levels, scale = stored(tmp_path / "s"), stored(tmp_path / "s", "features.scale")
    assert scale.dtype == np.float32
    assert scale.shape == (50,)
    assert scale[3] == 0
    assert np.abs(levels).max(axis=1)[[0, 1, 2]].tolist() == [127, 127, 127]
    assert np.all(np.abs(levels * scale[:, None] - array) <= scale[:, None] * 0.501)
    assert load_manifest(tmp_path / "s", STORE_MANIFEST).required_features == ("int8-row-scale",)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_float64_is_rounded(tmp_path, dtype):
    array = rows(10, 3, np.float64)
    create(tmp_path / "s", array, dtype=dtype)
    assert np.array_equal(stored(tmp_path / "s"), array.astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "source", "value"),
    [("float16", np.float32, 65536.0), ("bfloat16", np.float32, 3.4e38), ("float32", np.float64, 1e39)],
)
def test_a_value_beyond_the_dtype_is_refused_with_its_row(tmp_path, dtype, source, value):
    array = rows(10, 3, source)
    array[6, 1] = -value
    with pytest.raises(FeatureValueError, match=f"row 6, column 1 is .* beyond the largest {dtype}"):
        create(tmp_path / "s", array, dtype=dtype)
    assert names(tmp_path) == []


def test_infinity_is_not_out_of_range(tmp_path):
    array = np.array([[np.inf, -np.inf, np.nan]], dtype=np.float32)
    create(tmp_path / "s", array, dtype="float16")
    assert np.array_equal(stored(tmp_path / "s"), array.astype(np.float16), equal_nan=True)


@pytest.mark.parametrize("dtype", ["int64", "float64", "object", "nonsense"])
def test_a_dtype_that_features_cannot_have(tmp_path, dtype):
    with pytest.raises(ConfigError, match="allowed: float32, float16, bfloat16, int8"):
        FeatureWriter(tmp_path / "s", num_rows=1, dim=1, dtype=dtype)


# --- A10: special values ---


@pytest.mark.reliability("A10")
def test_every_bit_pattern_is_kept(tmp_path):
    bits = np.array(
        [0x7FC00000, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x00000001, 0x807FFFFF, 0x80000000],
        dtype=np.uint32,
    )
    array = np.tile(bits.view(np.float32), (300, 5))
    create(tmp_path / "s", array)
    assert stored(tmp_path / "s").tobytes() == array.tobytes()


@pytest.mark.reliability("A10")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_check_finite_names_the_first_row(tmp_path, value, dtype):
    array = rows(100, 7)
    array[42, 5] = array[77, 0] = value
    with (
        pytest.raises(FeatureValueError, match="row 42, column 5 is"),
        FeatureWriter(tmp_path / "s", num_rows=100, dim=7, dtype=dtype, check_finite=True) as writer,
    ):
        writer.append(array[:40])
        writer.append(array[40:])
    assert names(tmp_path) == []


@pytest.mark.reliability("A10")
def test_int8_refuses_what_it_cannot_hold(tmp_path):
    array = rows(10, 3)
    array[4, 2] = np.nan
    with pytest.raises(FeatureValueError, match="row 4, column 2 is nan"):
        create(tmp_path / "s", array, dtype="int8")


# --- A9: the wrong rows ---


@pytest.mark.reliability("A9")
@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([rows(9)], "has 10 rows and got 9: row 9 is missing"),
        ([], "has 10 rows and got 0: row 0 is missing"),
        ([rows(10), rows(1)], "row 10: 1 more rows exceed the declared 10"),
        ([rows(4), rows(7)], "row 4: 7 more rows exceed the declared 10; row 10 is one too many"),
        ([rows(4), rows(6, 8)], r"row 4: rows must have shape \(n, 7\), not \(6, 8\)"),
        ([rows(4).reshape(-1)], r"row 0: rows must have shape \(n, 7\), not \(28,\)"),
        (
            [rows(4), np.ones((6, 7), np.int64)],
            "row 4: .* must come as float16, float32 or float64, not int64",
        ),
        ([np.ones((6, 7), np.complex64)], "row 0: .* not complex64"),
        ([np.ones((6, 7), ">f4")], "row 0: .* not >f4"),
    ],
)
def test_the_wrong_rows_are_refused_with_their_number(tmp_path, chunks, message):
    with (
        pytest.raises(ShapeError, match=message),
        FeatureWriter(tmp_path / "s", num_rows=10, dim=7, dtype="float32") as writer,
    ):
        for chunk in chunks:
            writer.append(chunk)
    assert names(tmp_path) == []


@pytest.mark.reliability("A9")
def test_arrays_take_exactly_their_dtype_and_shape(tmp_path):
    with NewDirectory(tmp_path / "s", manifest_name=STORE_MANIFEST) as directory:
        writer = directory.array("ids", dtype="int64", shape=(4,))
        with pytest.raises(
            ShapeError, match="array 'ids', row 0: rows must be a numpy array of int64, not int32"
        ):
            writer.append(np.arange(4, dtype=np.int32))
        with pytest.raises(ShapeError, match="not list"):
            writer.append([1, 2, 3, 4])
        with pytest.raises(ShapeError, match=r"shape \('n',\), not \(2, 2\)"):
            writer.append(np.zeros((2, 2), np.int64))
        matrix = directory.array("matrix", dtype="int64", shape=(2, 3))
        with pytest.raises(ShapeError, match=r"shape \('n', 3\), not \(2, 2\)"):
            matrix.append(np.zeros((2, 2), np.int64))
        writer.append(np.arange(4))
        writer.close()
        writer.close()
        with pytest.raises(ShapeError, match="closed"):
            writer.append(np.arange(0))
        with pytest.raises(ShapeError, match="started already"):
            directory.array("ids", dtype="int64", shape=(4,))
        for name in ("../ids", "a/b", ""):
            with pytest.raises(FormatError):
                directory.array(name, dtype="int64", shape=(4,))
        with pytest.raises(FormatError, match="cannot be stored"):
            directory.array("x", dtype="object", shape=(4,))
        with pytest.raises(ShapeError, match="at least one dimension"):
            directory.array("y", dtype="int64", shape=())


def test_a_bad_dimension(tmp_path):
    with (
        pytest.raises(ShapeError, match="dim >= 1"),
        FeatureWriter(tmp_path / "s", num_rows=3, dim=0, dtype="int8"),
    ):
        pass
    assert names(tmp_path) == []


# --- A6: the target exists ---


@pytest.mark.reliability("A6")
def test_an_existing_target_is_kept(tmp_path):
    create(tmp_path / "s", rows(seed=1))
    with pytest.raises(StoreExistsError, match="pass overwrite=True") as caught:
        create(tmp_path / "s", rows(seed=2))
    assert isinstance(caught.value, FileExistsError)
    assert np.array_equal(stored(tmp_path / "s"), rows(seed=1))
    assert names(tmp_path) == ["s"]


@pytest.mark.reliability("A6")
def test_an_existing_target_is_refused_before_any_row_is_made(tmp_path):
    create(tmp_path / "s", rows(seed=1))
    with pytest.raises(StoreExistsError), FeatureWriter(tmp_path / "s", num_rows=1, dim=1, dtype="float32"):
        pytest.fail("the block was entered")


@pytest.mark.reliability("A6")
def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    with (
        pytest.raises(StoreExistsError),
        FeatureWriter(tmp_path / "s", num_rows=1, dim=1, dtype="float32") as writer,
    ):
        writer.append(rows(1, 1))
        (tmp_path / "s").mkdir()
    assert names(tmp_path) == ["s"]
    assert names(tmp_path / "s") == []


@pytest.mark.reliability("A6")
def test_overwrite_replaces_at_the_commit(tmp_path):
    create(tmp_path / "s", rows(seed=1))
    with FeatureWriter(tmp_path / "s", num_rows=5, dim=2, dtype="float32", overwrite=True) as writer:
        writer.append(rows(5, 2))
        assert np.array_equal(stored(tmp_path / "s"), rows(seed=1))  # readable until the rename
    assert np.array_equal(stored(tmp_path / "s"), rows(5, 2))
    assert names(tmp_path) == ["s"]


@pytest.mark.reliability("A6")
def test_a_failed_overwrite_keeps_the_old(tmp_path):
    create(tmp_path / "s", rows(seed=1))
    with (
        pytest.raises(ShapeError),
        FeatureWriter(tmp_path / "s", num_rows=5, dim=2, dtype="int8", overwrite=True),
    ):
        pass
    assert np.array_equal(stored(tmp_path / "s"), rows(seed=1))
    assert names(tmp_path) == ["s"]


@pytest.mark.reliability("A6")
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_overwrite_where_names_cannot_be_exchanged(tmp_path, fails_at):
    class NoExchange(FaultyOS):
        def exchange(self, first, second):
            raise OSError(22, "not here")

    create(tmp_path / "s", rows(seed=1))
    os_io = NoExchange(fail_at=fails_at + 1 if fails_at else 0, calls={"replace"})
    if fails_at:  # the first rename is the manifest's
        with pytest.raises(StoreWriteError):
            create(tmp_path / "s", rows(seed=2), overwrite=True, os_io=os_io)
    else:
        create(tmp_path / "s", rows(seed=2), overwrite=True, os_io=os_io)
    assert np.array_equal(stored(tmp_path / "s"), rows(seed=1 if fails_at else 2))
    assert names(tmp_path) == ["s"]


def test_a_replacement_cut_between_its_two_renames_is_undone_by_the_next_creation(tmp_path):
    create(tmp_path / "s", rows(seed=1))
    (tmp_path / "s").rename(tmp_path / ".s.replaced")
    with pytest.raises(StoreExistsError):
        create(tmp_path / "s", rows(seed=2))
    assert np.array_equal(stored(tmp_path / "s"), rows(seed=1))
    assert names(tmp_path) == ["s"]


@pytest.mark.reliability("A6")
def test_overwrite_does_not_touch_what_is_not_ours(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("photos", "file"):
        with pytest.raises(StoreExistsError, match="this is neither"):
            create(tmp_path / name, rows(), overwrite=True)
    assert names(tmp_path) == ["file", "photos"]
    assert names(tmp_path / "photos") == ["cat.jpg"]


def test_missing_parents_are_created_and_links_are_followed(tmp_path):
    create(tmp_path / "a" / "b" / "s", rows())
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "s")
    create(tmp_path / "link", rows(seed=3), overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert np.array_equal(stored(tmp_path / "a" / "b" / "s"), rows(seed=3))


# --- A7: two creators ---


@pytest.mark.reliability("A7")
def test_a_second_creator_is_refused(tmp_path):
    with FeatureWriter(tmp_path / "s", num_rows=100, dim=7, dtype="float32") as writer:
        with pytest.raises(StoreLockedError, match="another process is creating"):
            create(tmp_path / "s", rows(seed=2))
        writer.append(rows(seed=1))
    assert np.array_equal(stored(tmp_path / "s"), rows(seed=1))
    with pytest.raises(StoreExistsError):
        create(tmp_path / "s", rows(seed=2))


@pytest.mark.reliability("A7")
def test_what_a_dead_creator_left_is_removed(tmp_path):
    stale = tmp_path / ".s.staging"
    (stale / "scratch" / "deep").mkdir(parents=True)
    (stale / "features.npy").write_text("half")
    create(tmp_path / "s", rows())
    assert names(tmp_path) == ["s"]
    assert names(tmp_path / "s") == ["features.npy", "features.pages", "store.json"]


# --- A8: exceptions in the block ---


@pytest.mark.reliability("A8")
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), MemoryError(), ValueError("x"), OSError(5, "y")]
)
def test_an_exception_of_the_caller_passes_unchanged(tmp_path, error):
    def chunks():
        for k in range(10):
            if k == 6:
                raise error
            yield rows(10, seed=k)

    with (
        pytest.raises(type(error)) as caught,
        FeatureWriter(tmp_path / "s", num_rows=100, dim=7, dtype="float32") as writer,
    ):
        for chunk in chunks():
            writer.append(chunk)
    assert caught.value is error
    assert names(tmp_path) == []


# --- directories of arrays ---


def test_a_directory_without_commit_leaves_nothing(tmp_path):
    with NewDirectory(tmp_path / "s", manifest_name=STORE_MANIFEST) as directory:
        with directory.array("ids", dtype="int64", shape=(4,)) as writer:
            writer.append(np.arange(4))
        scratch = directory.scratch()
        (scratch / "bucket").write_text("x")
        assert directory.scratch() == scratch
    assert names(tmp_path) == []


def test_scratch_is_not_published(tmp_path):
    with NewDirectory(tmp_path / "s", manifest_name="dataset.json") as directory:
        (directory.scratch() / "bucket").write_text("x")
        assert directory.scratch().stat().st_dev == tmp_path.stat().st_dev
        with directory.array("ids", dtype="int64", shape=(4,)) as writer:
            writer.append(np.arange(4))
        manifest = directory.commit("dataset", {"name": "x"})
    assert load_manifest(tmp_path / "s", "dataset.json") == manifest
    assert names(tmp_path / "s") == ["dataset.json", "ids.npy", "ids.pages"]
    assert manifest.metadata == {"name": "x"}


def test_commit_refuses_an_unfinished_array(tmp_path):
    with (
        pytest.raises(ShapeError, match="row 2 is missing"),
        NewDirectory(tmp_path / "s", manifest_name=STORE_MANIFEST) as directory,
    ):
        directory.array("ids", dtype="int64", shape=(4,)).append(np.arange(2))
        directory.commit("x", {})
    assert names(tmp_path) == []


def test_commit_refuses_an_array_that_was_given_up(tmp_path):
    with (
        pytest.raises(StoreWriteError, match=r"the writers of the arrays \['ids'\] failed"),
        NewDirectory(tmp_path / "s", manifest_name=STORE_MANIFEST) as directory,
    ):
        directory.array("ids", dtype="int64", shape=(4,)).abort()
        directory.commit("x", {})
    assert names(tmp_path) == []


@pytest.mark.reliability("A3")
def test_space_is_checked_before_anything_is_written(tmp_path):
    with (
        pytest.raises(StoreWriteError, match=r"writing needs \d+ bytes .* has \d+ bytes .* free") as caught,
        FeatureWriter(tmp_path / "s", num_rows=2**40, dim=1024, dtype="float32"),
    ):
        pass
    assert caught.value.errno == 28
    assert names(tmp_path) == []


def test_a_written_array_holds_no_buffer_until_the_directory_is_committed(tmp_path):
    """A dataset of several types has many arrays, and the conversion a budget."""
    pieces = np.zeros((8, BUFFER_BYTES), np.uint8).view(np.int64)
    held = []
    tracemalloc.start()
    try:
        with NewDirectory(tmp_path / "s", manifest_name=STORE_MANIFEST) as directory:
            for name in ("a", "b", "c"):
                with directory.array(name, dtype="int64", shape=(pieces.size,)) as writer:
                    for piece in pieces:
                        writer.append(piece)
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[-1] < BUFFER_BYTES // 2
    assert writer.rows_written == pieces.size
