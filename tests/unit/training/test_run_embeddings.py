"""The embeddings of a run: steps, records and rows of a record."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.config import EmbedConfig
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError
from gloader.training.embeddings import NO_EMBEDDINGS, RunEmbeddings, open_embeddings, open_saved
from gloader.training.group import RankGroup

N = 40


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("given") / "d",
        num_nodes={"a": N, "b": N},
        features={},
        edges={("b", "to", "a"): np.array([[0, 1], [1, 2]])},
        labels={"a": np.arange(N) % 2},
        train=np.arange(4),
        valid=np.arange(4, 8),
        test=np.arange(8, 12),
    )


def opened(dataset: Dataset, root: Path | None, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "seed": 3,
        "root": root,
        "run_id": "0123456789abcdef",
        "find_saved": lambda: None,
    }
    config = EmbedConfig(dims={"a": 2, "b": 2})
    return open_embeddings({"a": 2, "b": 2}, dataset, config, RankGroup.alone(), **{**given, **changes})


def test_new_rows_leave_unless_a_checkpoint_names_them(dataset: Dataset, tmp_path: Path) -> None:
    with opened(dataset, tmp_path) as made:
        assert made.num_weights == 4 * N
        assert (made.present, made.best) == ("00000-0000000",) * 2
        # Equal numbers of two types begin with different rows.
        first, second = (each.rows(np.arange(N)) for each in made.by_type.values())
        assert not (first == second).any()
    assert list(tmp_path.iterdir()) == []
    with opened(dataset, tmp_path) as made:
        made.commit((1, 0), RankGroup.alone(), is_best=True)
        made.commit((2, 0), RankGroup.alone(), is_best=False)
        made.settle(RankGroup.alone(), is_kept=True)
        saved = made.saved
    for name in ("a", "b"):
        records = {path.name.partition(".")[0] for path in (tmp_path / "embeddings" / name).glob("0*")}
        assert records == {"00001-0000000", "00002-0000000"}
    # The next run of the folder has another one, until the older run goes.
    with opened(dataset, tmp_path) as other:
        assert other.folder == tmp_path / "embeddings-0123456789abcdef"
    with opened(dataset, tmp_path, find_saved=lambda: saved) as again:
        assert again.saved == saved
        assert torch.equal(again.by_type["a"].rows(np.arange(N)), first)


def test_rows_of_a_record_are_read_in_any_order(dataset: Dataset, tmp_path: Path) -> None:
    with opened(dataset, tmp_path) as made, made.at_best() as views:
        expected = made.by_type["a"].rows(np.arange(N))
        ids = torch.tensor([7, 3, 3, 39])
        assert torch.equal(views["a"].rows(ids), expected[ids])
        assert torch.equal(views["a"].rows(torch.arange(N)), expected)
        pieces = dict(views["a"].pieces(16))
        assert list(pieces) == [0, 16, 32]
        np.testing.assert_array_equal(np.concatenate(list(pieces.values())), expected.numpy())
        schema = SimpleNamespace(embedded=dict.fromkeys(made.by_type, 4))
        spec = SimpleNamespace(has_types=True, encoder=SimpleNamespace(schema=schema))
        checkpoint: Any = SimpleNamespace(spec=spec, embeddings=made.saved)
        smaller: Any = SimpleNamespace(name="small", node_tables={"a": SimpleNamespace(num_nodes=3)})
        with (
            ExitStack() as stack,
            pytest.raises(CheckpointError, match="rows of 40 nodes of type 'a', and dataset small has 3"),
        ):
            open_saved(checkpoint, smaller, stack)


def test_a_step_divides_by_the_ranks_and_skips_rows_without_a_gradient() -> None:
    calls: list[Any] = []
    leaf = torch.ones(2, 2, requires_grad=True)
    leaf.grad = torch.full((2, 2), 6.0)
    batch: Any = SimpleNamespace(embedded={"a": leaf, "b": torch.ones(1, 2, requires_grad=True)})
    by_type: Any = {
        name: SimpleNamespace(
            step=lambda given, name=name: calls.append(("step", name, given.embedded[name].grad.tolist())),
            skip=lambda _, name=name: calls.append(("skip", name)),
        )
        for name in ("a", "b")
    }
    RunEmbeddings(by_type=by_type, folder=Path(), present="", best="").step(batch, num_ranks=3)
    assert calls == [("step", "a", [[2.0, 2.0], [2.0, 2.0]]), ("skip", "b")]


def test_without_embeddings_nothing_is_done(dataset: Dataset, tmp_path: Path) -> None:
    with open_embeddings(
        {},
        dataset,
        EmbedConfig(),
        RankGroup.alone(),
        seed=0,
        root=tmp_path,
        run_id="",
        find_saved=lambda: None,
    ) as made:
        assert made is NO_EMBEDDINGS
        made.step(SimpleNamespace(embedded=None))  # type: ignore[arg-type]
        made.commit((0, 0), RankGroup.alone(), is_best=True)
        assert (made.saved, made.views, made.num_weights) == (None, {}, 0)
    assert list(tmp_path.iterdir()) == []


def test_ranks_of_several_machines_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    group: Any = SimpleNamespace(machine_hosts=(0, 2))
    with (
        pytest.raises(ConfigError, match="--embed trains its rows on one machine, and the ranks are on 2"),
        open_embeddings(
            {"a": 2}, dataset, EmbedConfig(), group, seed=0, root=tmp_path, run_id="", find_saved=lambda: None
        ),
    ):
        pass
