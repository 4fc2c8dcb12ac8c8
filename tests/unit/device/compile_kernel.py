"""Compiles the gather for a GPU that need not be there; prints its loads and stores, and how often it is compiled."""

import json
import re
import sys
from pathlib import Path

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from gloader.device.row_table import block_shape
from gloader.device.triton_kernels import _gather_kernel

sys.path.append(str(Path(__file__).parents[2]))
from triton_ptx import ptx_of

POINTERS = ("ids", "slot_of", "table", "table_scale", "host", "host_scale", "out")


def loads_and_stores(capability: int, dim: int, table: str, host: str, *, is_by_id: bool) -> list[str]:
    rows, columns = block_shape(dim)
    constants = {
        "DIM": dim,
        "ROWS": rows,
        "COLUMNS": columns,
        "HAS_TABLE": True,
        "HAS_MAP": True,
        "HAS_HOST": True,
        "IS_BY_ID": is_by_id,
        "IS_TABLE_SCALED": table == "i8",
        "IS_HOST_SCALED": host == "i8",
    }
    kinds = ("*i64", "*i32", f"*{table}", "*fp32", f"*{host}", "*fp32", "*fp32")
    signature = dict(zip(POINTERS, kinds, strict=True)) | {"num_rows": "i32"}
    ptx = ptx_of(_gather_kernel, signature, constants, capability)
    return re.findall(r"(?:ld|st)\.global[.\w:]*", ptx)


def compilations(capability: int, *nums: int) -> int:
    """Return how many kernels serve batches of ``nums`` rows: Triton compiles one for each specialisation."""
    backend = make_backend(GPUTarget("cuda", capability, 32))
    bind = create_function_from_signature(_gather_kernel.signature, _gather_kernel.params, backend)
    pointers = [torch.empty(16)] * len(POINTERS)
    constants = (len(_gather_kernel.params) - len(pointers) - 1) * [1]
    return len({str(bind(*pointers, num, *constants)[1]) for num in nums})


if __name__ == "__main__":
    print(json.dumps(loads_and_stores(*json.loads(sys.argv[1]), is_by_id=json.loads(sys.argv[2]))))
    print(compilations(json.loads(sys.argv[1])[0], 1, 16, 17))
