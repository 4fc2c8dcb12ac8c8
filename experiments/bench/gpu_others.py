"""The usual ways of bringing rows from the host to the device, compared with gloader's gather."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpu_findings import GpuFinding, bounded, not_checked, reported
from gpu_place import gather_by
from gpu_rates import SHAPES, in_turn, inputs_of
from gpu_sizes import seconds_of

from gloader.device import RowParts, RowTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_rates import Inputs
    from gpu_sizes import Clock, Sizes

TIMES = 5.0  # as fast as x[ids].to(device)


def check_others(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Time ``x[ids].to(device)``, DGL's gather where it is installed, and ours."""
    for shape in clock.each(SHAPES):
        inputs = inputs_of(sizes, *shape)
        usual = _rate(
            inputs, sizes, lambda ids, inputs=inputs: inputs.host[ids.cpu()].to(sizes.place).float()
        )
        yield reported(f"x[ids].to(device), {inputs.name}", usual, "GB/s of rows")
        parts = RowParts(table=None, slot_of=None, host=RowTable(rows=inputs.host), is_host_by_id=True)
        ours = _rate(
            inputs, sizes, lambda ids, inputs=inputs, parts=parts: gather_by(None, ids, parts, inputs.out)
        )
        name = f"gather of host rows beside x[ids].to(device), {inputs.name}"
        if sizes.is_gpu:
            note = f"{ours:,.1f} GB/s of rows"
            yield bounded(name, ours / usual, "times", least=TIMES, note=note, predicted="5 to 10 times")
        else:
            yield not_checked(name)
        yield _dgl(inputs, sizes)


def _rate(inputs: Inputs, sizes: Sizes, work: object) -> float:
    call = in_turn(inputs.ids, work)  # type: ignore[arg-type]
    return inputs.read_bytes / seconds_of(call, sizes.place, repeats=5, warm_up=1) / 1e9


def _dgl(inputs: Inputs, sizes: Sizes) -> GpuFinding:
    name = f"dgl.utils.gather_pinned_tensor_rows, {inputs.name}"
    if not sizes.is_gpu:
        return not_checked(name)
    try:
        from dgl.utils import gather_pinned_tensor_rows, pin_memory_inplace
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported
        return not_checked(name, f"DGL is not there: {type(error).__name__}")
    try:
        host = torch.empty_like(inputs.table, device="cpu").copy_(inputs.table)
        handle = pin_memory_inplace(host)
        rate = _rate(inputs, sizes, lambda ids: gather_pinned_tensor_rows(host, ids))
        del handle
    except Exception as error:  # noqa: BLE001 - a build without CUDA says so in its own way
        return not_checked(name, f"DGL cannot: {type(error).__name__}")
    return reported(name, rate, "GB/s of rows")
