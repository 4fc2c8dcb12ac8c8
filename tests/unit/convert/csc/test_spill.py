"""The one shuffle of a conversion: rows of any shape, dealt out to buckets, in memory or in files."""

import io

import numpy as np
import pytest

from gloader.convert.csc.spill import Spill, append_bytes

PAIR = np.dtype([("row", np.uint32), ("place", np.int64)])


def pairs(rows):
    out = np.zeros(len(rows), PAIR)
    out["row"], out["place"] = rows, rows * 3
    return out


KINDS = {
    "records": (PAIR, (), pairs),
    "rows of numbers": (np.dtype(np.int64), (3,), lambda rows: np.column_stack([rows, rows + 1, -rows])),
    "rows of features": (np.dtype(np.float16), (5,), lambda rows: np.repeat(rows[:, None], 5, axis=1)),
}


@pytest.mark.parametrize("held_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_bucket_come_back_in_their_order(tmp_path, kind, held_bytes):
    dtype, shape, make = KINDS[kind]
    random = np.random.default_rng(5)
    buckets = random.integers(0, 7, 200)
    buckets[buckets == 4] = 5  # one of them stays empty
    rows = make(np.arange(200)).astype(dtype)
    spill = Spill(
        folder=tmp_path, name="x", dtype=dtype, row_shape=shape, num_buckets=7, held_bytes=held_bytes
    )
    with spill:
        for start in range(0, 200, 30):
            spill.deal_out(rows[start : start + 30], buckets[start : start + 30])
        assert (spill.spilled_bytes == 0) == (held_bytes > rows.nbytes)
        assert spill.counts.tolist() == np.bincount(buckets, minlength=7).tolist()
        for bucket in range(7):
            wanted = rows[buckets == bucket]
            for read in (spill.pieces, spill.full_pieces):
                found = [piece.copy() for piece in read(bucket, 8)]
                assert np.array_equal(np.concatenate([wanted[:0], *found]), wanted)
                assert all(len(piece) <= 8 for piece in found)
            assert [len(piece) for piece in found[:-1]] == [8] * max(0, -(-len(wanted) // 8) - 1)
    assert not list(tmp_path.iterdir())


class Halting(io.BytesIO):
    """A file that takes three bytes at a time."""

    def write(self, data):
        return super().write(memoryview(data).cast("B")[:3])

    def close(self):
        self.taken = self.getvalue()


class Place:
    """A path whose file is `Halting`."""

    def __init__(self):
        self.file = Halting()

    def open(self, mode, buffering):
        assert (mode, buffering) == ("ab", 0)
        return self.file


def test_a_write_that_takes_a_part_of_wide_rows_is_continued():
    rows, place = np.arange(12, dtype=np.int64).reshape(3, 4), Place()
    append_bytes(place, rows)
    assert place.file.taken == rows.tobytes()
