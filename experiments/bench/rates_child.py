"""One run of a loader, as a process of its own: its job comes as JSON on standard input, what it saw goes out."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from gloader import Dataset, Loader
from gloader.ssd_store.cost.device_rates import RateLearner, observed

if TYPE_CHECKING:
    from gloader.ssd_store.cost.device_profile import Observation
    from gloader.ssd_store.cost.device_rates import FoundRates
    from gloader.ssd_store.cost.io_rates import Strategy
    from gloader.ssd_store.cost.strategy import MissCounts


class Watched(RateLearner):
    """Keeps what it is told of, superbatch by superbatch."""

    seen: list[list[dict[str, Any]]] = []  # noqa: RUF012 - of the only one there is
    began: FoundRates | None = None

    def __init__(self, found: FoundRates, **how: Any) -> None:
        super().__init__(found, **how)
        Watched.began = found

    def observe(self, counts: MissCounts, strategy: Strategy, *, staged_s: float, read_s: float) -> None:
        """Keep it, and pass it on."""
        super().observe(counts, strategy, staged_s=staged_s, read_s=read_s)
        if Watched.began is not None:
            found = observed(counts, strategy, Watched.began.probed, staged_s=staged_s, read_s=read_s)
            Watched.seen.append([_plain(one) for one in found])


def _plain(one: Observation) -> dict[str, Any]:
    return {"predicted": dict(one.predicted), "measured_s": one.measured_s}


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    began = time.perf_counter()
    with (
        patch("gloader.pipeline.open.disk.RateLearner", Watched),
        Loader(Dataset.open(job["dataset"]), **job["settings"]) as loader,
    ):
        opened = time.perf_counter()
        for number, _ in enumerate(loader, 1):
            if number >= job["batches"]:
                break
        reports = loader.reports
        seconds = time.perf_counter() - opened
    found = Watched.began
    print(
        json.dumps(
            {
                "open_s": opened - began,
                "seconds": seconds,
                "probed": None if found is None else asdict(found.probed),
                "rates": None if found is None else asdict(found.rates),
                "superbatches": [
                    {
                        "batches": report.num_batches,
                        "strategy": report.choice.strategy,
                        "misses": report.misses,
                        "predicted_s": report.predicted_retrieval_s,
                        "measured_s": report.measured_retrieval_s,
                    }
                    for report in reports
                ],
                "seen": Watched.seen,
            }
        )
    )


if __name__ == "__main__":
    main()
