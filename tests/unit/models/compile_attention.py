"""Compiles the kernels of attention for a GPU that need not be there; prints the atomics of each."""

import itertools
import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gloader.models import attention_kernels

FLOATS = ("scores", "importance", "tops", "totals", "weights", "grad_edges", "grad_scores", "result", "grad")


def variants() -> list[tuple[str, dict[str, bool], str]]:
    """Return each kernel with its switches and the dtype of its rows."""
    found = []
    switches = itertools.product((True, False), (True, False), (False, True), ("fp32", "bf16"))
    for is_own, has_loops, third, rows in switches:
        both = {"IS_OWN": is_own, "HAS_LOOPS": has_loops}
        found += [
            ("_edges_kernel", both | {"IS_WEIGHTED": third}, rows),
            ("_forward_kernel", both | {"IS_WEIGHTED": third}, rows),
            ("_sources_kernel", both | {"HAS_ROWS": not third}, rows),
        ]
    return found


def atomics(capability: int, ids: str, count: int) -> dict[str, list[str]]:
    kinds = dict.fromkeys(("indptr", "indices", "ends", "bounds"), f"*{ids}") | {"order": "*i64"}
    kinds |= dict.fromkeys(FLOATS, "*fp32") | dict.fromkeys(attention_kernels._SIZES, "i32")
    found = {}
    for name, switches, rows in variants()[:count]:
        kernel = getattr(attention_kernels, name)
        constants = attention_kernels.tile_shape(100, 4) | switches
        names = kernel.arg_names
        of_rows = {"rows": f"*{rows}", "grad_rows": f"*{rows}"}
        signature = {arg: "constexpr" if arg in constants else (kinds | of_rows)[arg] for arg in names}
        source = ASTSource(
            kernel,
            signature=signature,
            constexprs={(names.index(arg),): value for arg, value in constants.items()},
            attrs={
                (names.index(arg),): [["tt.divisibility", 16]]
                for arg in names
                if signature[arg].startswith("*")
            },
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4})
        assert compiled.asm["cubin"]
        found[f"{name} {switches} {rows}"] = re.findall(r"(?:atom|red)\.global[.\w]*", compiled.asm["ptx"])
    return found


if __name__ == "__main__":
    print(json.dumps(atomics(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
