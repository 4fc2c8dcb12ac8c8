"""A comparison as compare.py writes it."""

from __future__ import annotations

import copy
from typing import Any


def spread(median: float) -> dict[str, float]:
    """Return a median with a tenth to either side."""
    return {"median": median, "least": 0.9 * median, "most": 1.1 * median}


def row(name: str, **values: Any) -> dict[str, Any]:
    """Return the row of a contender that was killed, changed by ``values``."""
    nothing = (
        "first_epoch_s", "later_epoch_s", "sample_s", "gather_s", "compute_s", "wait_s", "bytes_read",
        "peak_resident_bytes", "group_peak_bytes", "seconds_to_target",
    )  # fmt: skip
    return {
        "name": name,
        "home": "memmap",
        "is_limited": True,
        "outcome": "killed at the limit",
        "settings": {},
        "tried": [{"settings": {"workers": 1}, "outcome": "killed at the limit", "later_epoch_s": None}],
        "is_extrapolated": False,
        **dict.fromkeys(nothing),
        **values,
    }


def comparison(*rows: dict[str, Any]) -> dict[str, Any]:
    """Return one element of ``comparisons``."""
    return {
        "graph": {"kind": "rmat", "num_nodes": 8_000_000, "num_edges": 100_000_000, "feature_bytes": 4_096_000_000},
        "workload": {
            "fanouts": [10, 10], "model": "GraphSAGE, hidden 256", "seeds": 51_200, "batch_size": 1024, "repeats": 3,
        },
        "limit_bytes": 1_770_000_000,
        "target_accuracy": 0.5,
        "rows": copy.deepcopy(list(rows)),
    }  # fmt: skip


MEASURED = row(
    "gloader",
    home="ssd",
    outcome="done",
    settings={"policy": "belady"},
    first_epoch_s=spread(10.0),
    later_epoch_s=spread(2.0),
    sample_s=1.0,
    gather_s=2.0,
    compute_s=1.5,
    wait_s=0.25,
    bytes_read=3e9,
    peak_resident_bytes=1_500_000_000,
    seconds_to_target=spread(12.0),
)
