"""The gather, in torch and as the Triton kernel under its interpreter, against a loop."""

import importlib
import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from gloader.core.dtypes import RowFormat
from gloader.device.row_table import (
    RowParts,
    RowTable,
    fill_cached,
    gather_rows,
    has_triton,
    rows_as_tensor,
    torch_dtype,
)
from gloader.errors import ShapeError

BRAIN = RowFormat(dtype=np.dtype(np.uint16), dim=2, is_bfloat16=True)
NUM_NODES, NUM_CACHED, BATCH = 50, 20, 37
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
# Bits of a NaN with a payload, a signalling one, both infinities, -0, the smallest, a middle and the largest subnormal.
SPECIAL = {
    torch.float32: (0x7FC12345, 0x7F812345, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x80012345, 0x007FFFFF),
    torch.float16: (0x7E12, 0x7C12, 0x7C00, 0xFC00, 0x8000, 1, 0x8123, 0x03FF),
    torch.bfloat16: (0x7FD2, 0x7F92, 0x7F80, 0xFF80, 0x8000, 1, 0x8012, 0x007F),
}
_INTEGER = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}

Gather = Callable[[torch.Tensor, RowParts, torch.Tensor], None]


def _table(num: int, dim: int, dtype: torch.dtype, seed: int) -> RowTable:
    generator = torch.Generator().manual_seed(seed)
    rows = (20 * torch.randn(num, dim, generator=generator)).to(dtype)
    if dtype == torch.int8:
        scale = torch.rand(num, generator=generator)
        scale[::7] *= 1e-42  # a subnormal factor
        return RowTable(rows=rows, scale=scale)
    # Every third row begins with a special value, another one in each.
    bits = np.array(SPECIAL[dtype], dtype=np.uint32 if dtype == torch.float32 else np.uint16)
    places = range(0, num, 3)
    chosen = torch.from_numpy(np.resize(bits, len(places)).view(f"i{bits.itemsize}"))
    rows.view(_INTEGER[dtype])[list(places), 0] = chosen
    return RowTable(rows=rows)


def _wide(row: torch.Tensor) -> torch.Tensor:
    """Widen as the host does; torch would make quiet NaNs of signalling ones."""
    if row.dtype == torch.float16:
        return torch.from_numpy(row.numpy().astype(np.float32))
    if row.dtype == torch.bfloat16:
        return (row.view(torch.int16).int() << 16).view(torch.float32)
    return row.float()


def _cases(dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, RowParts]]:
    """Return the ids of a batch, and every combination of parts; what must not be read is NaN."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randperm(NUM_NODES, generator=generator)[:BATCH]
    slot_of = torch.full((NUM_NODES,), -1, dtype=torch.int32)
    slot_of[torch.randperm(NUM_NODES, generator=generator)[:NUM_CACHED]] = torch.arange(
        NUM_CACHED, dtype=torch.int32
    )
    cached, everything = _table(NUM_CACHED, dim, dtype, 2), _table(NUM_NODES, dim, dtype, 3)
    staged = _table(BATCH, dim, torch.float32, 4)
    whole = RowTable(rows=staged.rows.clone())
    staged.rows[slot_of[ids] >= 0] = torch.nan
    stored = RowTable(rows=_table(BATCH, dim, dtype, 5).rows, scale=everything.scale)
    whole_stored = RowTable(rows=stored.rows.clone(), scale=everything.scale)
    stored.rows[slot_of[ids] >= 0] = 99
    return ids, {
        "cached and staged": RowParts(table=cached, slot_of=slot_of, host=staged),
        "cached and in place": RowParts(table=cached, slot_of=slot_of, host=everything, is_host_by_id=True),
        "all cached": RowParts(table=everything, slot_of=None, host=None),
        "all in place": RowParts(table=None, slot_of=None, host=everything, is_host_by_id=True),
        "all staged": RowParts(table=None, slot_of=None, host=whole),
        "cached and staged as stored": RowParts(table=cached, slot_of=slot_of, host=stored),
        "all staged as stored": RowParts(table=None, slot_of=None, host=whole_stored),
    }


def _expected(ids: torch.Tensor, parts: RowParts) -> torch.Tensor:
    """One row after another."""
    found = []
    for position, node in enumerate(ids.tolist()):
        mapped = node if parts.slot_of is None else int(parts.slot_of[node])
        slot = -1 if parts.table is None else mapped
        table = parts.table if slot >= 0 else parts.host
        assert table is not None
        index = slot if slot >= 0 else node if parts.is_host_by_id else position
        row = _wide(table.rows[index])
        # The host's part has a factor for each node, wherever it has their rows.
        found.append(row if table.scale is None else row * table.scale[slot if slot >= 0 else node])
    return torch.stack(found)


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Gather]:
    """The Triton kernel, run by the interpreter on the CPU."""
    if not has_triton():
        pytest.skip(
            "the kernel is not run: Triton is missing (pip install -e '.[gpu]'); its twin in torch is"
        )
    if torch.cuda.is_available():
        pytest.skip("the kernel is compiled here, and tests/gpu runs it")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel's module is imported
    try:
        kernel = importlib.import_module("gloader.device.triton_kernels")
        yield lambda ids, parts, out: kernel.launch_gather(ids, parts, out, 3)
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 24, 100])
def test_torch_brings_every_row_from_where_it_is(dim: int, dtype: torch.dtype) -> None:
    ids, cases = _cases(dim, dtype)
    for (name, parts), id_dtype in zip(
        cases.items(), itertools.cycle((torch.int64, torch.int32)), strict=False
    ):
        out = torch.empty(BATCH, dim)
        gather_rows(ids.to(id_dtype), parts, out=out)
        assert _same_bits(out, _expected(ids, parts)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "dim", [1, 24, 100, 600]
)  # one column, some, no power of two, more than one block of columns
def test_the_kernel_brings_the_same_bits(interpreted: Gather, dim: int, dtype: torch.dtype) -> None:
    ids, cases = _cases(dim, dtype)
    for (name, parts), id_dtype in zip(
        cases.items(), itertools.cycle((torch.int64, torch.int32)), strict=False
    ):
        out = torch.full((BATCH + 1, dim), 7.0)
        interpreted(ids.to(id_dtype), parts, out[:BATCH])
        assert _same_bits(out[:BATCH], _expected(ids, parts)), name
        assert (out[BATCH] == 7).all(), name  # nothing behind the batch is written


def test_short_ids_reach_rows_beyond_two_gigabytes(interpreted: Gather) -> None:
    dim = 512
    last = 2**31 // dim + 1
    rows = torch.empty((last + 1, dim), dtype=torch.int8)  # of which one page is touched
    rows[last] = 3
    ids = torch.tensor([last], dtype=torch.int32)
    for place in ({"table": RowTable(rows=rows), "host": None}, {"table": None, "host": RowTable(rows=rows)}):
        parts = RowParts(slot_of=None, is_host_by_id=place["table"] is None, **place)
        out = torch.zeros(1, dim)
        interpreted(ids, parts, out)
        assert (out == 3).all()


def test_the_kernel_does_nothing_for_an_empty_batch(interpreted: Gather) -> None:
    _, cases = _cases(4, torch.float32)
    interpreted(torch.empty(0, dtype=torch.int64), cases["all cached"], torch.empty(0, 4))


def test_rows_that_are_held_are_filled_in() -> None:
    ids, cases = _cases(24, torch.float16)
    parts = cases["cached and staged"]
    assert parts.host is not None
    assert parts.table is not None
    assert parts.slot_of is not None
    out = parts.host.rows.clone()
    fill_cached(ids, parts.table, parts.slot_of, out=out)
    assert _same_bits(out, _expected(ids, parts))


def test_the_special_values_are_among_the_rows() -> None:
    for dtype, bits in SPECIAL.items():
        values = _table(NUM_NODES, 4, dtype, 0).rows[::3, 0].float()
        tiny = torch.finfo(dtype).tiny
        assert int(torch.isnan(values[: len(bits)]).sum()) == 2
        assert int(torch.isinf(values[: len(bits)]).sum()) == 2
        assert int(((values[: len(bits)].abs() < tiny) & (values[: len(bits)] != 0)).sum()) == 3
        assert bool(torch.signbit(values[4]))


def test_what_does_not_fit_is_refused() -> None:
    ids, cases = _cases(24, torch.float16)
    with pytest.raises(
        ShapeError, match=r"shape \(37, 24\) for 37 ids; it is torch.float32 of shape \(36, 24\)"
    ):
        gather_rows(ids, cases["all cached"], out=torch.empty(36, 24))
    with pytest.raises(ShapeError, match="the host has 37 rows for 38 ids"):
        gather_rows(torch.zeros(38, dtype=torch.int64), cases["all staged"], out=torch.empty(38, 24))
    host = RowTable(rows=torch.zeros(37, 24, dtype=torch.int8))
    with pytest.raises(ShapeError, match="rows are int8; pass the factors of all nodes"):
        gather_rows(ids, RowParts(table=None, slot_of=None, host=host), out=torch.empty(37, 24))
    with pytest.raises(ShapeError, match="must come from a table or from the host"):
        RowParts(table=None, slot_of=None, host=None)
    with pytest.raises(ShapeError, match="whose rows are on the host"):
        RowParts(table=host, slot_of=torch.zeros(3, dtype=torch.int32), host=None)


def test_stored_rows_become_tensors_over_the_same_memory() -> None:
    bits = np.array([[0x3F80, 0x4000]], dtype=np.uint16)
    rows = rows_as_tensor(bits, BRAIN)
    assert rows.tolist() == [[1.0, 2.0]]
    bits[0, 0] = 0x4040
    assert rows.tolist() == [[3.0, 2.0]]
    assert torch_dtype(BRAIN) == torch.bfloat16
    assert RowFormat(dtype=np.dtype(np.float16), dim=3).row_bytes == 6
    with pytest.raises(ShapeError, match="not float64; use device_cache=0"):
        torch_dtype(RowFormat(dtype=np.dtype(np.float64), dim=2))
