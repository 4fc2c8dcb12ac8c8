"""Compiles the kernels of attention for a GPU that need not be there; prints the atomics of each."""

import itertools
import json
import re
import sys
from pathlib import Path

from gloader.models import attention_kernels

sys.path.append(str(Path(__file__).parents[2]))
from triton_ptx import ptx_of

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
        of_rows = {"rows": f"*{rows}", "grad_rows": f"*{rows}"}
        ptx = ptx_of(kernel, kinds | of_rows, constants, capability)
        found[f"{name} {switches} {rows}"] = re.findall(r"(?:atom|red)\.global[.\w]*", ptx)
    return found


if __name__ == "__main__":
    print(json.dumps(atomics(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
