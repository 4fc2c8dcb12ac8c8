"""The budget that a refusal of a loader names is enough, and is the same whatever was too small."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gloader
from gloader.core.units import parse_bytes
from gloader.errors import BudgetError

from .conftest import Written
from .linked import write_linked
from .typed import write_typed

Open = Callable[[int], Any]


def _named(open_loader: Open, budget: int) -> int:
    with pytest.raises(BudgetError) as refused:
        open_loader(budget)
    named = re.search(r'Give memory_budget="([\w.]+)" or more$', str(refused.value))
    assert named is not None, refused.value
    assert parse_bytes(named[1]) == budget + refused.value.short_bytes
    return parse_bytes(named[1])


def _check(open_loader: Open) -> None:
    named = _named(open_loader, 50_000)
    assert _named(open_loader, int(0.9 * named)) == named
    with open_loader(named) as loader:
        assert sum(1 for _ in loader) == len(loader)


@pytest.mark.reliability("S11")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"features": "ram"},
        {"topology": "direct", "features": "ssd"},
        {"topology": "sweep"},
        {"topology": "ram", "cache": "10MB", "policy": "lru", "features": "ssd"},
        {"io_strategy": "staged", "features": "ssd", "superbatch": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "auto",
)
def test_a_loader_names_a_budget_that_is_enough(
    tiny: Written, tmp_path: Path, settings: dict[str, Any]
) -> None:
    _check(
        lambda budget: gloader.Loader(
            tiny.dataset, fanouts=[4, 3], batch_size=16, memory_budget=budget, spill_dir=tmp_path, **settings
        )
    )


@pytest.mark.reliability("S11")
def test_a_loader_of_several_types_names_a_budget_that_is_enough(tmp_path: Path) -> None:
    typed = write_typed(tmp_path / "graph")
    _check(
        lambda budget: gloader.HeteroLoader(
            typed.dataset, fanouts=[4, 3], batch_size=16, memory_budget=budget
        )
    )


@pytest.mark.reliability("S11")
def test_a_loader_of_links_names_a_budget_that_is_enough(tmp_path: Path) -> None:
    linked = write_linked(tmp_path / "graph")
    _check(
        lambda budget: gloader.LinkLoader(linked.dataset, fanouts=[4, 3], batch_size=16, memory_budget=budget)
    )


@pytest.mark.reliability("S11")
def test_an_adapter_names_a_budget_that_is_enough(tiny: Written) -> None:
    pyg = pytest.importorskip("gloader.adapters.pyg")
    _check(
        lambda budget: pyg.NeighborLoader(
            tiny.dataset, [4, 3], tiny.dataset.train, batch_size=16, memory_budget=budget
        )
    )


@pytest.mark.reliability("S11")
def test_a_folder_that_is_missing_is_not_told_as_a_lack_of_memory(tiny: Written, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="spill_budget") as refused:
        gloader.Loader(
            tiny.dataset, fanouts=[4, 3], batch_size=16, spill_dir=tmp_path, spill_budget=0,
            memory_budget="200MB", features="ssd", cache=0, io_strategy="packed",
        )  # fmt: skip
    assert "Give memory_budget" not in str(refused.value)
