"""The page checksum and the digest, against a twin in plain Python."""

import hashlib
import json
import struct

import numpy as np
import pytest
import version_1

from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.checksum import (
    PAGE_BYTES,
    Digest,
    checksum_pages,
    checksum_words,
    digest_of,
    num_pages_of,
    page_checksum_at,
)

M64 = 2**64 - 1
PRIME = 0x9E3779B97F4A7C15
finish = version_1.finish  # the same in every version


def step(lane, word):
    mixed = lane ^ word
    turned = [(mixed << turn | mixed >> (64 - turn)) & M64 for turn in (29, 47)]
    return ((mixed ^ turned[0] ^ turned[1]) * PRIME) & M64


def page_checksum(page: bytes, index: int) -> int:
    start = finish((index + 1) & M64)
    lanes = [(start + k) & M64 for k in range(8)]
    for position in range(0, PAGE_BYTES, 8):
        word = int.from_bytes(page[position : position + 8], "little")
        k = position // 8 % 8
        lanes[k] = step(lanes[k], word)
    total = start
    for lane in lanes:
        total = step(total, finish(lane))
    return finish(total)


def file_digest(checksums) -> str:
    state = 0
    for checksum in checksums:
        state = step(state, int(checksum))
    return f"{finish(step(state, len(checksums))):016x}"


@pytest.fixture(name="data")
def _data():
    return np.random.default_rng(0).integers(0, 256, 5 * PAGE_BYTES, dtype=np.uint8)


def checksums_of(data, first_page=0, version=2):
    out = np.empty(data.size // PAGE_BYTES, dtype=np.uint64)
    checksum_pages(data, first_page, out, version)
    return out


def test_equals_the_definition(data):
    pages = data.reshape(-1, PAGE_BYTES)
    for first in (0, 7, 2**40):
        expected = [page_checksum(page.tobytes(), first + i) for i, page in enumerate(pages)]
        assert checksums_of(data, first).tolist() == expected


def test_known_values():
    """The format may not change by accident: these figures are in docs/storage.md."""
    zeros = np.zeros(PAGE_BYTES, dtype=np.uint8)
    count = (np.arange(PAGE_BYTES) % 251).astype(np.uint8)
    known = {
        1: ["165cddaa6f27636b", "873ac6875c814cab", "087e03447cb5b8e4", "444be74b7334c7ee"],
        2: ["6dda880469c6586d", "241031f9a5f4e1be", "901e9fd7e754ceec", "45836f1f3818802f"],
    }
    for version, expected in known.items():
        pages = [checksums_of(page, i, version) for page, i in ((zeros, 0), (zeros, 1), (count, 0))]
        digest = digest_of(np.concatenate(pages[:2]), version)
        assert [*(f"{int(page[0]):016x}" for page in pages), digest] == expected
    assert digest_of(np.empty(0, np.uint64)) == file_digest([]) == "0" * 16


def test_version_1_is_as_it_was(data):
    """Against the writer of version 1, whose figures above come from the code that wrote it."""
    expected = version_1.page_checksums(data.tobytes())
    np.testing.assert_array_equal(checksums_of(data, version=1), expected)
    assert digest_of(expected, 1) == version_1.digest(expected)
    assert int(page_checksum_at(data.view(np.uint64), 512, 1, 1)) == int(expected[1])


def test_every_single_bit_changes_the_checksum(data):
    page = data[:PAGE_BYTES].copy()
    before = checksums_of(page)[0]
    for bit in range(0, PAGE_BYTES * 8, 61):  # 61 is prime to 8: every bit position of every lane occurs
        page[bit // 8] ^= 1 << bit % 8
        assert checksums_of(page)[0] != before, bit
        page[bit // 8] ^= 1 << bit % 8


def test_the_top_bit_of_two_words_changes_the_checksum(data):
    """A plain sum of products modulo 2**64 misses every even number of flipped top bits."""
    page = data[:PAGE_BYTES].copy()
    before = checksums_of(page)[0]
    page.view(np.uint64)[[0, 8]] ^= np.uint64(1 << 63)
    assert checksums_of(page)[0] != before


def test_a_page_at_the_wrong_place_does_not_pass(data):
    assert checksums_of(data[:PAGE_BYTES], 0)[0] != checksums_of(data[:PAGE_BYTES], 1)[0]


def test_words_swapped_within_a_lane_or_between_lanes_do_not_pass(data):
    words = data[:PAGE_BYTES].copy().view(np.uint64)
    before = checksums_of(words.view(np.uint8))[0]
    for other in (1, 8):
        words[[0, other]] = words[[other, 0]]
        assert checksums_of(words.view(np.uint8))[0] != before
        words[[0, other]] = words[[other, 0]]


def test_kernels_agree(data):
    words, expected = data.view(np.uint64), checksums_of(data, 3)
    out = np.empty(5, dtype=np.uint64)
    checksum_words(words, 3, out, 2)
    assert np.array_equal(out, expected)
    assert int(page_checksum_at(words, 512, 4, 2)) == int(expected[1])


def test_digest_equals_the_definition_in_any_pieces(data):
    checksums = checksums_of(data)
    for cut in range(6):
        digest = Digest()
        digest.update(checksums[:cut])
        digest.update(checksums[cut:])
        assert digest.num_pages == 5
        assert digest.hexdigest() == file_digest(checksums) == digest_of(checksums)
    assert digest_of(checksums[:4]) != digest_of(checksums)


@pytest.mark.parametrize("data", [np.zeros(PAGE_BYTES + 8, np.uint8), np.zeros(PAGE_BYTES // 8, np.uint64)])
def test_wrong_sizes_are_refused(data):
    with pytest.raises(ValueError, match="contiguous uint8 of 1 pages"):
        checksum_pages(data, 0, np.empty(1, dtype=np.uint64))


def test_a_reader_written_from_the_storage_page_alone(tmp_path):
    """Everything it uses is in docs/storage.md, nothing is ours or numpy's."""
    array = np.random.default_rng(5).standard_normal((700, 9)).astype(np.float32)
    with FeatureWriter(tmp_path / "s", num_rows=700, dim=9, dtype="float32") as writer:
        writer.append(array)

    record_bytes = (tmp_path / "s" / "store.json").read_bytes()
    record_file = json.loads(record_bytes)
    ending = f',\n  "checksum": "{record_file["checksum"]}"\n}}\n'.encode()
    assert record_bytes.endswith(ending)
    assert hashlib.sha256(record_bytes.removesuffix(ending)).hexdigest() == record_file["checksum"]
    assert (record_file["format"], record_file["format_version"]) == ("gloader", 2)
    record = record_file["arrays"]["features"]

    data = (tmp_path / "s" / record["file"]).read_bytes()
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (700, 9), }"
    assert data[:4096] == b"\x93NUMPY\x01\x00" + struct.pack("<H", 4086) + text.encode().ljust(4085) + b"\n"
    num_pages = -(-record["num_bytes"] // 4096)
    assert len(data) == 4096 * (1 + num_pages)
    checksums = [page_checksum(data[4096 * (1 + i) :][:4096], i) for i in range(num_pages)]
    assert file_digest(checksums) == record["digest"]
    pages = (tmp_path / "s" / record["pages_file"]).read_bytes()
    assert list(struct.unpack_from(f"<{num_pages}Q", pages, 4096)) == checksums
    for row in (0, 113, 114, 699):  # row 113 straddles the first two pages
        assert struct.unpack_from("<9f", data, 4096 + row * 36) == tuple(array[row].tolist())


def test_num_pages_of():
    assert [num_pages_of(n) for n in (0, 1, 4096, 4097)] == [0, 1, 1, 2]
