"""Run by tests: trains on the digits in a Python that finds nothing but what training needs; prints a line of JSON.

Then it imports every part of gpu_check, and calls the command line, which needs more.

    python bare_machine.py [DEVICE]
"""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

NEEDED = ("torch", "triton", "numba", "numpy")


def modules_of(distributions: tuple[str, ...]) -> set[str]:
    """Return the top-level modules of ``distributions`` and of what these need in their turn."""
    found: set[str] = set()
    open_ends = [*distributions]
    while open_ends:
        name = _canonical(open_ends.pop())
        if name not in found:
            found.add(name)
            try:
                texts = requires(name) or []
            except PackageNotFoundError:  # of another platform
                continue
            open_ends += [re.split(r"[^\w.-]", text)[0] for text in texts if "extra ==" not in text]
    owners = packages_distributions().items()
    return {module for module, owned in owners if not found.isdisjoint(map(_canonical, owned))}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class OnlyThese:
    """Finds no module beside those that are allowed and those of the standard library."""

    def __init__(self, allowed: set[str]) -> None:
        self._allowed = allowed | sys.stdlib_module_names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Refuse, or leave the search to others."""
        top = name.partition(".")[0]
        # The standard library does not name the module of its build's settings.
        if top not in self._allowed and not top.startswith(("_sysconfigdata", "gpu_")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def train(device: str) -> dict[str, object]:
    """Train two epochs on the digits, and return what the run says of itself."""
    from gloader import Dataset
    from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
    from gloader.convert.options import PrepareOptions, SourceOptions
    from gloader.convert.prepared_cache import ensure_dataset
    from gloader.training.train import fit

    path = ensure_dataset("builtin:digits", SourceOptions(), PrepareOptions())
    settings = TrainSettings(
        model=ModelConfig(hidden=16),
        optim=OptimConfig(epochs=2),
        loader=LoaderSettings.of(
            fanouts=(5, 5), batch_size=256, threads=1, features="ssd", memory_budget="1GB"
        ),
    )
    return fit(Dataset.open(path), settings, device=device).summary


if __name__ == "__main__":
    sys.meta_path.insert(0, OnlyThese(modules_of(NEEDED) | {"gloader"}))
    result = train(*sys.argv[1:] or ["auto"])
    sys.path.append(str(Path(__file__).parents[1] / "experiments" / "bench"))
    gpu_check = import_module("gpu_check")
    result["checks"] = [import_module(part.module).__name__ for part in gpu_check.PARTS.values()]
    print(json.dumps(result, default=str))
    from gloader.__main__ import main

    sys.exit(main())
