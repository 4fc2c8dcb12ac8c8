"""Compiles the gather for a GPU that need not be there; prints its loads and stores, and how often it is compiled."""

import json
import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from gloader.device.triton_kernels import _gather_kernel, block_shape

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
    signature = (
        dict(zip(POINTERS, kinds, strict=True)) | {"num_rows": "i32"} | dict.fromkeys(constants, "constexpr")
    )
    names = _gather_kernel.arg_names
    source = ASTSource(
        _gather_kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"]
    return re.findall(r"(?:ld|st)\.global[.\w:]*", compiled.asm["ptx"])


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
