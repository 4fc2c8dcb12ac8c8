"""Compiles the kernels of sampling for a GPU that need not be there, and prints the shifts of 64 bits of each."""

import json
import re
import sys
from pathlib import Path

from gloader.device import sampling_kernels

sys.path.append(str(Path(__file__).parents[2]))
from triton_ptx import ptx_of

KINDS = {
    **dict.fromkeys(("nodes", "ends", "totals", "graph_indptr", "starts", "degrees", "counts", "offsets"), "*i64"),
    **dict.fromkeys(("draws", "edge_ids", "keys"), "*i64"),
    **dict.fromkeys(("labels", "indices", "is_first", "num_first", "rows"), "*i32"),
    **dict.fromkeys(("fanout", "num_rows", "num_lanes", "hop", "capacity"), "i32"),
    "repeats": "*i8",
}  # fmt: skip
# The sources of edges have the dtype of the graph.
VARIANTS = [
    ("_draw_kernel", {"IS_MERGED": False, "IS_REPLACED": False}),
    ("_find_kernel", {"IS_DRAWN": True, "IS_REPLACED": False}),
    ("_count_kernel", {"IS_MERGED": False, "IS_REPLACED": False}),
    ("_count_kernel", {"IS_MERGED": True, "IS_REPLACED": True}),
    ("_draw_kernel", {"IS_MERGED": True, "IS_REPLACED": True}),
    ("_repeat_kernel", {}),
    ("_find_kernel", {"IS_DRAWN": False, "IS_REPLACED": False}),
    ("_find_kernel", {"IS_DRAWN": True, "IS_REPLACED": True}),
    ("_first_kernel", {}),
    ("_label_kernel", {}),
]


def shifts(capability: int, indices: str, count: int) -> dict[str, list[str]]:
    kinds = KINDS | dict.fromkeys(("graph_indices", "sources"), f"*{indices}")
    found = {}
    for name, switches in VARIANTS[:count]:
        kernel = getattr(sampling_kernels, name)
        constants = switches | {"LANES": sampling_kernels._LANES}
        ptx = ptx_of(kernel, kinds, constants, capability)
        found[f"{name} {switches}"] = re.findall(r"shr\.\w+64", ptx)
    return found


if __name__ == "__main__":
    print(json.dumps(shifts(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
