import pickle

import numpy as np
import pytest

from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.errors import SourceError


@pytest.fixture
def array():
    return np.random.default_rng(0).integers(0, 100, (37, 5))


@pytest.fixture(params=["npy", "npz", "deflated"])
def file(request, tmp_path, array):
    if request.param == "npy":
        np.save(tmp_path / "a.npy", array)
        return NpyFile.open(tmp_path / "a.npy")
    save = np.savez if request.param == "npz" else np.savez_compressed
    save(tmp_path / "a.npz", x=array, y=array[:3])
    return NpyFile.open(tmp_path / "a.npz", "x")


def test_rows_and_elements_stream_in_order(file, array):
    assert np.array_equal(np.concatenate(list(file.rows(7))), array)
    assert np.array_equal(np.concatenate(list(file.flat(11, start=20, stop=90))), array.ravel()[20:90])
    assert np.array_equal(file.read(), array)
    assert [len(rows) for rows in file.rows(20)] == [20, 17]


def test_two_streams_of_one_file_interleave(file, array):
    pairs = list(zip(file.rows(10), file.rows(10), strict=True))
    assert all(np.array_equal(first, second) for first, second in pairs)


def test_column_major_arrays_say_so(tmp_path, array):
    np.save(tmp_path / "a.npy", np.asfortranarray(array))
    file = NpyFile.open(tmp_path / "a.npy")
    assert file.is_fortran
    assert file.shape == (5, 37)
    assert np.array_equal(file.read(), array)


def test_scalars_and_empty_arrays(tmp_path):
    np.save(tmp_path / "scalar.npy", np.int64(7))
    np.save(tmp_path / "empty.npy", np.empty((0, 4)))
    assert NpyFile.open(tmp_path / "scalar.npy").read().item() == 7
    assert NpyFile.open(tmp_path / "empty.npy").read().shape == (0, 4)
    assert list(NpyFile.open(tmp_path / "empty.npy").rows(3)) == []


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.reliability("H3")
@pytest.mark.parametrize("kind", ["npy", "npz", "bare pickle"])
def test_pickles_are_refused_and_not_executed(tmp_path, kind):
    evil = np.array([Payload(tmp_path / "created")], dtype=object)
    path = tmp_path / "evil.npy"
    member = None
    if kind == "npy":
        np.save(path, evil, allow_pickle=True)
    elif kind == "npz":
        path, member = tmp_path / "evil.npz", "x"
        np.savez(path, x=evil)
    else:
        path.write_bytes(pickle.dumps(evil))
    with pytest.raises(SourceError, match=r"evil.np"):
        NpyFile.open(path, member).read()
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("kept", [0, 5, 60, 200])
def test_truncated_file_is_named(tmp_path, array, kept):
    path = tmp_path / "a.npy"
    np.save(path, array)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"a\.npy"):
        NpyFile.open(path).read()


def test_truncated_after_opening_is_named(tmp_path, array):
    path = tmp_path / "a.npy"
    np.save(path, array)
    file = NpyFile.open(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(SourceError, match=r"a\.npy.*ends .* bytes early"):
        list(file.rows(8))


def test_corrupt_member_is_named(tmp_path, array):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=array)
    data = bytearray(path.read_bytes())
    data[120] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.npz\[x\]"):
        NpyFile.open(path, "x").read()


def test_missing_files_and_members(tmp_path, array):
    np.savez(tmp_path / "a.npz", x=array)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(SourceError, match=r"b\.npy is missing"):
        NpyFile.open(tmp_path / "b.npy")
    with pytest.raises(SourceError, match=r"a\.npz\[z\] is missing"):
        NpyFile.open(tmp_path / "a.npz", "z")
    with pytest.raises(SourceError, match=r"text\.npz is corrupt"):
        npz_members(tmp_path / "text.npz")
    assert npz_members(tmp_path / "a.npz") == ("x",)


def test_header_that_promises_too_much_allocates_nothing(tmp_path):
    with (tmp_path / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**10)}
        )
    with pytest.raises(SourceError, match="truncated: its header promises 9007199254740992 bytes"):
        NpyFile.open(tmp_path / "huge.npy")


def test_a_header_that_python_2_wrote_is_read_without_a_word(tmp_path):
    np.save(tmp_path / "old.npy", np.arange(12))
    old = (tmp_path / "old.npy").read_bytes().replace(b"(12,), }  ", b"(12L,), } ")
    assert b"12L" in old
    (tmp_path / "old.npy").write_bytes(old)
    assert np.array_equal(NpyFile.open(tmp_path / "old.npy").read(), np.arange(12))


def test_files_without_a_header(tmp_path):
    rows = np.arange(12, dtype="<f4").reshape(4, 3)
    rows.tofile(tmp_path / "raw.npy")
    file = NpyFile.raw(tmp_path / "raw.npy", dtype=np.dtype("<f4"), row_shape=(3,))
    assert np.array_equal(file.read(), rows)
    with pytest.raises(SourceError, match="not a multiple of the 20 of a row"):
        NpyFile.raw(tmp_path / "raw.npy", dtype=np.dtype("<f4"), row_shape=(5,))
