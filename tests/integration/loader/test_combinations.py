"""The table of docs/combinations.md: each cell is a loader that gives a batch, or a refusal before the first one."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recorded.streams import ASKED, ASKED_TYPED, AT, LOADERS
from recorded.worlds import CITES, EDGES, RELATIONS, WRITES, one_type_linked, typed_linked, weights

from gloader import Dataset, collective
from gloader.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "combinations.md"
_LAYER_WISE: dict[str, Any] = {"fanouts": [64, 64]}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "`neighbor`": {},
    "`weighted`": {"sampler": "weighted"},
    "`labor`": {"sampler": "labor"},
    "`ladies`": {"sampler": "ladies", **_LAYER_WISE},
    "`fastgcn`": {"sampler": "fastgcn", **_LAYER_WISE},
    "`collective` fan-outs": {"fanouts": collective([6, 4])},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "several types": {},
    "query times": {"time_strategy": "uniform"},
    '`topology="sweep"`': {"topology": "sweep"},
    "`exclude=` of link batches": {"exclude": "reverse"},
    '`layout="merged"`': {"layout": "merged"},
}


@cache
def _table() -> dict[tuple[str, str], str]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text("utf-8").split("<!-- combinations -->\n")[1].splitlines()
        if line.startswith("|")
    ]
    columns = rows[0][1:]
    return {(row[0], column): cell for row in rows[2:] for column, cell in zip(columns, row[1:], strict=True)}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("combinations")
    of_relations = {WRITES: weights(RELATIONS[WRITES], 70), CITES: weights(RELATIONS[CITES], 71)}
    return {
        "one type": one_type_linked(folder / "one", edge_weight=weights(EDGES, 5)),
        "typed": typed_linked(folder / "typed", edge_weight=of_relations),
    }


def _refusal(dataset: Dataset, kind: str, spill: Path, settings: dict[str, Any]) -> str:
    """Return the refusal of a loader with ``settings``, or "" if its first batch comes."""
    name = "link" if "exclude" in settings else {"one type": "node", "typed": "typed"}[kind]
    if "time_strategy" in settings:
        settings = {**settings, "seeds": ASKED if kind == "one type" else ASKED_TYPED, "times": AT}
    given: dict[str, Any] = {"fanouts": [4, 3], "batch_size": 32, "seed": 1, "epochs": 1, "spill_dir": spill}
    try:
        with LOADERS[name](
            dataset, **given | {"memory_budget": "300MB", "spill_budget": "64MB"} | settings
        ) as loader:
            next(iter(loader))
    except ConfigError as refused:
        return str(refused)
    return ""


def test_the_page_names_each_sampling_and_each_setting() -> None:
    assert set(_table()) == {(sampling, column) for sampling in SAMPLINGS for column in SETTINGS}


@pytest.mark.parametrize("column", SETTINGS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_each_cell_is_as_the_page_says(
    datasets: dict[str, Dataset], tmp_path: Path, sampling: str, column: str
) -> None:
    cell = _table()[sampling, column]
    kinds = {"several types": ["typed"]}.get(column, ["one type", "typed"])
    for kind in kinds:
        if (kind, sampling) in {("typed", "`fastgcn`"), ("one type", "`collective` fan-outs")} and len(
            kinds
        ) > 1:
            continue  # the first column, and the sentence about collective fan-outs
        refusal = _refusal(datasets[kind], kind, tmp_path, SAMPLINGS[sampling] | SETTINGS[column])
        assert bool(refusal) == (cell == "no"), refusal or f"{kind}: the page says no, and a batch came"
        assert not refusal or re.search(r"; use |takes the samplers|goes with", refusal), refusal


def test_weights_and_the_latest_edges_are_refused(datasets: dict[str, Dataset], tmp_path: Path) -> None:
    assert _table()["`weighted`", "query times"] == "`uniform` only"
    settings = {"sampler": "weighted", "time_strategy": "last"}
    for kind, dataset in datasets.items():
        assert "use time_strategy='uniform'" in _refusal(dataset, kind, tmp_path, settings)


def test_collective_fan_outs_of_one_relation_are_refused(
    datasets: dict[str, Dataset], tmp_path: Path
) -> None:
    settings = SAMPLINGS["`collective` fan-outs"]
    assert "one integer per hop" in _refusal(datasets["one type"], "one type", tmp_path, settings)
