"""Training on several ranks: the same as on one, and together in good and bad."""

import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_server
import shop
import training_scenarios
from knowledge_worlds import prepare_parts, random_parts
from link_datasets import split_communities
from rank_server import Ended, RankServer
from training_scenarios import train, typed_steps

import gloader
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.training.checkpoint.save import load_checkpoint

Run = Callable[..., list[Ended]]

SOON_S = 8.0


@pytest.fixture(scope="module")
def server(
    dataset: Path, private_tmpdir: Path, private_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankServer]:
    log = tmp_path_factory.mktemp("training-ranks") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_server, "__file__", training_scenarios.__file__)
        started = RankServer(dataset, log=log)
    with started as server:
        yield server


def _results(ended: list[Ended]) -> list[Any]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize("name", ["graphsage", "gat"])
def test_two_ranks_have_the_losses_of_one_with_twice_the_batch(
    run: Run, dataset: Path, sharing: str, name: str
) -> None:
    """103 seeds: the last step of 7 is shared as 3 and 4."""
    model = {"name": name}
    whole = train(str(dataset), model=model, loader={"batch_size": 32})
    first, second = _results(run("train", model=model, sharing=sharing))
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert first["accuracies"] == whole["accuracies"]
    assert first["test_acc"] == whole["test_acc"]
    assert (first["seeds"], first["batches"]) == (whole["seeds"], whole["batches"])
    assert len(first["summary"].pop("rank_peak_rss_bytes")) == 2
    second["summary"].pop("rank_peak_rss_bytes")
    assert second == first  # also what the second rank did not compute


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Communities, whose 384 edges make 12 steps of 32: the last but one of an epoch is whole."""
    return split_communities(tmp_path_factory.mktemp("linked") / "dataset", per_row=9).root


@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize("decoder", ["dot", "mlp"])
def test_two_ranks_learn_the_links_that_one_does_with_twice_the_batch(
    run: Run, linked: Path, sharing: str, decoder: str
) -> None:
    """Negatives are those of the row, whichever rank has it; the decoder is averaged with the encoder."""
    links = {"decoder": decoder, "negatives": "uniform:2"}
    whole = train(str(linked), links=links, loader={"batch_size": 50})
    settings = {"links": links, "loader": {"batch_size": 25}, "sharing": sharing, "dataset": str(linked)}
    first, second = _results(run("train", **settings))
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert np.allclose(first["accuracies"], whole["accuracies"], atol=1e-3)
    assert first["test_acc"] == pytest.approx(whole["test_acc"], abs=1e-3)
    for found in (first, second):
        found["summary"].pop("rank_peak_rss_bytes")
    assert second == first


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 papers with features, of which 60 are trained on, and 40 authors without."""
    random = np.random.default_rng(0)
    writes = np.stack([random.integers(0, 40, 200), random.integers(0, 100, 200)])
    path = tmp_path_factory.mktemp("papers") / "dataset"
    Dataset.from_numpy_hetero(
        path,
        num_nodes={"paper": 100, "author": 40},
        features={"paper": random.normal(size=(100, 6)).astype(np.float32)},
        edges={("author", "writes", "paper"): writes, ("paper", "by", "author"): writes[::-1].copy()},
        labels={"paper": np.arange(100) % 3},
        train=np.arange(60),
        valid=np.arange(60, 80),
        test=np.arange(80, 100),
    )
    return path


@pytest.mark.parametrize(("sharing", "name"), [("shared", "rgcn"), ("private", "rgat"), ("shared", "rsage")])
def test_two_ranks_train_over_several_types_as_one_does(
    run: Run, papers: Path, sharing: str, name: str, tmp_path: Path
) -> None:
    """Their learned rows too, which checkpoints of both ranks hold once."""
    model = {"name": name}
    whole = train(str(papers), model=model, loader={"batch_size": 32})
    shared = {"dataset": str(papers), "model": model, "sharing": sharing, "out": str(tmp_path / "run")}
    first, second = _results(run("train", **shared, optim={"epochs": 2}))
    assert first["losses"] == pytest.approx(whole["losses"][:2], rel=1e-4)
    assert second["losses"] == first["losses"]
    longer, _ = _results(run("train", **shared, resume=True))
    assert longer["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert longer["test_acc"] == whole["test_acc"]


def test_two_ranks_train_embeddings_as_one_does(run: Run, papers: Path, tmp_path: Path) -> None:
    """Their mean gradient, also of the rows; checkpoints and evaluations are those of the first rank."""
    embed = {"dims": {"author": 5, "paper": 3}, "optimizer": "sparse-adam"}
    whole = train(str(papers), model={"name": "rgcn"}, loader={"batch_size": 32}, embed=embed)
    shared = {"dataset": str(papers), "model": {"name": "rgcn"}, "embed": embed, "out": str(tmp_path / "run")}
    first, second = _results(run("train", **shared, optim={"epochs": 2}))
    assert first["losses"] == pytest.approx(whole["losses"][:2], rel=1e-4)
    assert second["losses"] == first["losses"]
    longer, _ = _results(run("train", **shared, resume=True))
    assert longer["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert longer["test_acc"] == whole["test_acc"]


def test_two_ranks_train_on_a_knowledge_graph_and_resume_with_the_same_bits(run: Run, tmp_path: Path) -> None:
    parts = random_parts(num_entities=40, sizes=(400, 40, 40))
    path = str(prepare_parts(tmp_path, parts).root)
    common = {"dataset": path, "epochs": 3}
    whole, second = _results(run("knowledge", out=str(tmp_path / "whole"), resume=False, **common))
    assert second == whole
    assert whole[0][-1] < whole[0][0]
    cut = {"out": str(tmp_path / "cut"), **common}
    _results(run("knowledge", **(cut | {"epochs": 2}), resume=False))
    assert _results(run("knowledge", **cut, resume=True))[0] == whole


@pytest.fixture(scope="module")
def of_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random graph of 200 nodes: rare labels 1, labels of which half are unknown, and the same in several types."""
    random = np.random.default_rng(3)
    rare = (random.random(200) < 0.15).astype(np.int64)
    bits = (random.random((200, 4)) < 0.5).astype(np.float32)
    bits[:, 1:][random.random((200, 3)) < 0.6] = np.nan
    splits = {"train": np.arange(100), "valid": np.arange(100, 150), "test": np.arange(150, 200)}
    edges = random.integers(0, 200, (2, 1000))
    features = random.normal(size=(200, 6)).astype(np.float32)
    root = tmp_path_factory.mktemp("kinds")
    for name, labels in {"rare": rare, "bits": bits}.items():
        Dataset.from_numpy(root / name, edge_index=edges, features=features, labels=labels, **splits)
    Dataset.from_numpy_hetero(
        root / "typed bits",
        num_nodes={"paper": 200, "author": 200},
        features={"paper": features},
        edges={("author", "writes", "paper"): edges, ("paper", "by", "author"): edges[::-1].copy()},
        labels={"paper": bits},
        **splits,
    )
    return {name: root / name for name in ("rare", "bits", "typed bits")}


@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        ("bits", {}),
        ("typed bits", {"model": {"name": "rgcn"}}),
        ("rare", {"task": "binary", "optim": {"class_weights": "balanced"}}),
        ("rare", {"task": "binary", "optim": {"balance": "classes"}}),
    ],
)
def test_two_ranks_learn_the_labels_that_one_does_with_twice_the_batch(
    run: Run, of_kind: dict[str, Path], sharing: str, labels: str, settings: dict[str, Any]
) -> None:
    """With unknown labels, as many on one rank as on none of the other; weights; and draws that repeat nodes."""
    path = of_kind[labels]
    whole = train(str(path), loader={"batch_size": 32}, **settings)
    first, second = _results(run("train", dataset=str(path), sharing=sharing, **settings))
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert np.allclose(first["accuracies"], whole["accuracies"], atol=1e-3)
    assert first["test_acc"] == pytest.approx(whole["test_acc"], abs=1e-3)
    assert first["seeds"] == whole["seeds"] if labels != "rare" else True
    for found in (first, second):
        found["summary"].pop("rank_peak_rss_bytes")
    assert second == first


def test_two_ranks_step_over_several_types_as_one_does(run: Run, dataset: Path, tmp_path: Path) -> None:
    """Batches with few edges: relations and types that a rank's batch lacks, and learned rows that both have or one."""
    (whole,) = typed_steps(rank=0, world=1, dataset=str(dataset), folder=tmp_path)
    first, second = (rank for (rank,) in _results(run("typed_steps")))
    assert first == second
    assert first.keys() == whole.keys()
    assert np.any(whole["embs.field, gradient 0"])
    for name, values in whole.items():
        np.testing.assert_allclose(first[name], values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("sharing", ["shared", "private"])
def test_two_ranks_learn_the_rows_of_a_table_that_one_does_with_twice_the_batch(
    run: Run, tmp_path: Path, sharing: str
) -> None:
    """Fan-outs take all orders, so that draws, which depend on a row's place in its batch, do not differ."""
    weights = np.random.default_rng(3).random(shop.NUM_CUSTOMERS).astype(np.float32)
    shop.write_shop(tmp_path / "shop", weights=weights).close()
    settings = {"table": "both", "model": {"name": "rsage"}, "optim": {"epochs": 2}}
    whole = train(str(tmp_path / "shop"), loader={"batch_size": 50, "fanouts": (6, 6)}, **settings)
    settings |= {"dataset": str(tmp_path / "shop"), "loader": {"batch_size": 25, "fanouts": (6, 6)}}
    first, second = _results(run("train", sharing=sharing, **settings))
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert first["test_acc"] == pytest.approx(whole["test_acc"], abs=1e-3)
    for result in (first, second):
        result["summary"].pop("rank_peak_rss_bytes")
    assert second == first


@pytest.mark.parametrize("sharing", ["shared", "private"])
def test_two_ranks_learn_the_hop_columns_that_one_does_with_twice_the_batch(
    run: Run, dataset: Path, tmp_path: Path, sharing: str
) -> None:
    gloader.propagate(dataset, tmp_path / "hops", hops=2)
    model = {"name": "sign", "dropout": 0.0}  # each rank draws its own dropout
    whole = train(str(tmp_path / "hops"), model=model, loader={"batch_size": 32, "features": "ssd"})
    loader = {"batch_size": 16, "features": "ssd"}
    first, second = _results(
        run("train", model=model, sharing=sharing, dataset=str(tmp_path / "hops"), loader=loader)
    )
    assert first["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert first["test_acc"] == whole["test_acc"]
    for result in (first, second):
        result["summary"].pop("rank_peak_rss_bytes")
    assert second == first


@pytest.mark.reliability("G3")
@pytest.mark.parametrize("sharing", ["shared", "private"])
def test_a_number_of_seeds_that_ranks_do_not_divide_trains(run: Run, sharing: str) -> None:
    """103 seeds in steps of 24: four whole ones, and one of 7."""
    results = _results(run("train", world=3, loader={"batch_size": 8}, sharing=sharing))
    assert [result["batches"] for result in results] == [[5, 5, 5]] * 3
    assert results[0]["seeds"] == [103] * 3


@pytest.mark.parametrize("sharing", ["shared", "private"])
def test_rows_on_the_devices_of_the_ranks_do_not_change_a_loss(run: Run, sharing: str) -> None:
    plain = _results(run("train", loader={"features": "ssd"}, sharing=sharing))[0]
    held = _results(run("train", loader={"features": "ssd", "device_cache": "20000"}, sharing=sharing))
    assert plain["device_hits"] == 0
    assert [found["losses"] for found in held] == [plain["losses"]] * 2
    assert held[0]["device_hits"] > 0


@pytest.mark.parametrize(
    "step", [{"autocast": "bf16"}, {"grad_compress": "bf16"}, {"grad_compress": "powersgd"}]
)
def test_cheaper_steps_learn_about_the_same(run: Run, step: dict[str, str]) -> None:
    plain = _results(run("train", loader={"features": "ram"}))[0]
    cheap = _results(run("train", loader={"features": "ram"}, step=step))[0]
    assert cheap["losses"] == pytest.approx(plain["losses"], rel=0.02)
    assert cheap["losses"] != plain["losses"]


@pytest.mark.reliability("G1")
@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_training_on_the_others(run: Run, sharing: str, killed: int) -> None:
    ended = run("train", trouble="killed", on=killed, sharing=sharing)
    assert ended[killed].status == -9
    other = ended[1 - killed]
    assert other.status == 1
    assert other.seconds < SOON_S
    assert other.error.startswith("gloader.errors.RankError: ")


@pytest.mark.reliability("G2")
@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_rank_is_announced_there_and_ends_the_others(
    run: Run, sharing: str, failing: int
) -> None:
    ended = run("announced", trouble="failing", on=failing, sharing=sharing)
    own, other = ended[failing].result, ended[1 - failing].result
    assert own[0] == f"rank {failing} failed: OSError: boom in the loop"
    assert own[-1] == "raised OSError: boom in the loop"
    assert len(own) == 2
    assert other[-1].startswith("raised RankError: ")


@pytest.mark.reliability("G4")
def test_ranks_with_other_models_all_raise_at_the_start(run: Run) -> None:
    for ended in run("train", odd={"hidden": 9}):
        assert ended.error.startswith(
            "gloader.errors.RankSettingsError: model.hidden is 8 on rank 0 and 9 on rank 1; it has to be the same"
        )


@pytest.mark.reliability("G5")
@pytest.mark.parametrize("sharing", ["shared", "private"])
@pytest.mark.parametrize("at", [(1, 3), (2, 0)])
def test_a_run_that_lost_a_rank_is_resumed_as_if_it_had_not(
    run: Run, tmp_path: Path, sharing: str, at: tuple[int, int]
) -> None:
    settings = {"optim": {"checkpoint_every": 2}, "model": {"dropout": 0.4}, "sharing": sharing}
    whole = _results(run("train", **settings))[0]
    out = str(tmp_path / "cut")
    run("train", trouble="killed", at=at, out=out, **settings)
    again = _results(run("train", out=out, resume=True, **settings))[0]
    for name in ("losses", "accuracies", "test_acc"):
        assert again[name] == whole[name]
    left = sorted(path.name for path in (tmp_path / "cut").iterdir())
    assert left == ["checkpoint-00003-0000000", "config.yaml", "metrics.jsonl", "result.json", "scores.json"]


def test_two_ranks_go_on_where_one_stopped_and_the_other_way_round(
    run: Run, dataset: Path, tmp_path: Path
) -> None:
    whole = train(str(dataset), loader={"batch_size": 32})
    out = str(tmp_path / "moved")
    train(str(dataset), loader={"batch_size": 32}, optim={"epochs": 1}, out=out)
    _results(run("train", optim={"epochs": 2}, out=out, resume=True))
    last = train(str(dataset), loader={"batch_size": 32}, out=out, resume=True)
    assert last["losses"] == pytest.approx(whole["losses"], rel=1e-4)
    assert last["test_acc"] == whole["test_acc"]


def test_a_budget_that_is_too_small_is_raised_on_all_ranks(run: Run) -> None:
    first, second = run("train", loader={"memory_budget": 3_000_000})
    assert first.error.startswith("gloader.errors.BudgetError")
    assert "BudgetError" in second.error


def test_ranks_hear_of_the_work_of_the_first_one(run: Run) -> None:
    first, second = _results(run("working"))
    assert first[0] == second[0] == [0, 7]
    assert first[1] == second[1] == {"a": pytest.approx(0.3)}
    assert first[2:] == ["ValueError: no such thing", "RankError: rank 1 failed: OSError: only here"]
    assert second[2:] == ["RankError: rank 0 failed: ValueError: no such thing", "OSError: only here"]


@pytest.mark.reliability("J13")
def test_a_rank_that_is_killed_in_a_collective_is_named_on_all_others(run: Run) -> None:
    first, _, third = run("leaving", world=3)
    for other in (first, third):
        # The other one may have ended with its own error by the time that this one looks.
        assert re.match(
            r"gloader\.errors\.RankError: (rank 1 has|ranks 0 and 1 have|ranks 1 and 2 have) ended; see what it or "
            r"torchrun says",
            other.error,
        )
        assert other.error.count("RankError") == 1  # the transport's text is behind ours
        assert other.seconds < SOON_S


@pytest.mark.reliability("J13")
def test_a_lost_rank_ends_what_waits_for_it_on_a_device(run: Run) -> None:
    ended = run("on_devices", world=3)
    assert ended[2].status == -9
    for text, seconds in _results(ended[:2]):
        assert text.startswith("rank 2 has ended; see what it or torchrun says")
        assert seconds < 5.0


def test_a_rank_that_is_done_is_not_lost(run: Run) -> None:
    assert _results(run("done_first")) == [False, False]


def test_ranks_with_folders_of_their_own_go_on_from_copies_of_the_first_ones(
    run: Run, tmp_path: Path
) -> None:
    """As workers of Ray do, which may see no folder in common."""
    settings = {"optim": {"checkpoint_every": 2}, "model": {"dropout": 0.4}}
    whole = _results(run("train", **settings))[0]
    run("train_apart", **settings, base=str(tmp_path), trouble="killed", at=(1, 3))
    first, second = tmp_path / "of-rank-0", tmp_path / "of-rank-1"
    assert load_checkpoint(first).position == (1, 2)
    assert not list(second.iterdir())  # the first one writes for all
    shutil.copytree(first, second, dirs_exist_ok=True)
    ended = _results(run("train_apart", **settings, base=str(tmp_path)))
    assert [rank["positions"] for rank in ended] == [[[2, 0], [2, 2], [3, 0]]] * 2
    for name in ("losses", "accuracies", "test_acc"):
        assert ended[0][name] == whole[name]


@pytest.fixture(scope="module", name="parts")
def _parts(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """Return a function that returns the dataset in so many parts, each a folder of its own."""
    arrays = Dataset.open(dataset).to_numpy()

    def write(of: int) -> list[str]:
        folder = tmp_path_factory.mktemp("parts")
        return [
            str(Dataset.from_numpy(folder / str(part), **arrays, num_classes=5, ranges=(part, of)).root)
            for part in range(of)
        ]

    return write


@pytest.mark.reliability("N13")
@pytest.mark.parametrize(
    ("names", "holds"),
    [
        (["a", "b"], [0, 1]),
        (["a", "a", "b"], [1, 1, 0]),  # machines need not stand in the order of their parts
    ],
)
def test_machines_with_parts_of_the_rows_train_and_evaluate_as_those_with_copies(
    run: Run, parts: Callable[[int], list[str]], names: list[str], holds: list[int]
) -> None:
    loader = {"features": "ssd", "cache": 9600}
    settings: dict[str, Any] = {"world": len(names), "names": names, "loader": loader}
    copies = _results(run("train_on_machines", **settings))
    folders = parts(2)
    ranges = _results(run("train_on_machines", **settings, datasets=[folders[part] for part in holds]))
    for copy, own in zip(copies, ranges, strict=True):
        for name in ("losses", "accuracies", "test_acc"):
            assert own[name] == copy[name], name


@pytest.mark.reliability("F2")
@pytest.mark.reliability("N13")
def test_a_run_over_parts_that_lost_a_machine_goes_on_in_mid_epoch_with_the_parts_on_other_machines(
    run: Run, parts: Callable[[int], list[str]], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "names": ["a", "b"],
        "loader": {"features": "ssd", "cache": 9600, "spill_dir": str(tmp_path / "spill")},
        "optim": {"checkpoint_every": 2},
        "model": {"dropout": 0.4},
    }
    (tmp_path / "spill").mkdir(mode=0o700)
    copies = _results(run("train_on_machines", **settings))[0]
    first, second = parts(2)
    settings["out"] = str(tmp_path / "run")
    run("train_on_machines", **settings, datasets=[first, second], trouble="killed", on=0, at=(1, 3))
    assert load_checkpoint(tmp_path / "run").position == (1, 2)
    again = _results(run("train_on_machines", **settings, datasets=[second, first], resume=True))[0]
    for name in ("losses", "accuracies", "test_acc"):
        assert again[name] == copies[name], name


@pytest.mark.reliability("N3")
def test_a_machine_that_is_killed_as_it_serves_one_that_evaluates_is_named(
    run: Run, parts: Callable[[int], list[str]], tmp_path: Path
) -> None:
    loader = {"features": "ssd", "cache": 9600, "spill_dir": str(tmp_path)}
    first, second = run(
        "train_on_machines", names=["a", "b"], datasets=parts(2), loader=loader, dies_serving=1
    )
    assert second.status == -signal.SIGKILL
    assert first.status == 1
    assert first.error.startswith("gloader.errors.RankError: rank 1 (machine b) is gone or does not answer")
    assert first.seconds < 20


@pytest.mark.reliability("J13")
@pytest.mark.parametrize(
    ("trouble", "on", "text"),
    [
        ("killed", 1, "rank 1 (machine a) is gone or does not answer"),
        ("stands still", 2, "rank 2 (machine b) is gone or does not answer"),
        ("failing", 2, "rank 2 (machine b) failed: OSError: boom in the loop"),
        ("interrupted", 2, "rank 2 (machine b) was ended by a signal"),
    ],
)
def test_a_rank_that_ends_or_hangs_in_the_loop_is_named_on_all_machines(
    run: Run, trouble: str, on: int, text: str
) -> None:
    settings: dict[str, Any] = {"names": ["a", "a", "b"], "loader": {"stall_timeout_s": 2.0}}
    ended = run("train_on_machines", world=3, trouble=trouble, on=on, **settings)
    for rank in {0, 1, 2} - {on}:
        assert ended[rank].error.startswith(f"gloader.errors.RankError: {text}")
        assert ended[rank].seconds < SOON_S


@pytest.mark.reliability("N14")
def test_ctrl_c_ends_machines_that_exchange_within_seconds_and_nothing_is_left(
    run: Run, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir(mode=0o700)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    words = (
        f"--out {tmp_path / 'run'} --spill-dir {spill} --exchange always --features ssd --cache 9600 --fanout 4,3 "
        "--hidden 8 --epochs 100000 --batch-size 16 --memory-budget 900MB --device cpu --json"
    )
    settings: dict[str, Any] = {"names": ["a", "b"], "port": port, "words": words.split()}
    ended = run("commanded", kill=(0, 1), signal_number=signal.SIGINT, **settings)
    assert _results(ended) == [{"status": 130, "threads": []}] * 2
    assert max(how.seconds for how in ended) < SOON_S
    assert [path.name for path in spill.rglob("*")] == []


@pytest.mark.reliability("N11")
def test_a_part_of_the_rows_alone_is_refused_in_a_sentence(
    run: Run, parts: Callable[[int], list[str]]
) -> None:
    folders = parts(2)
    with pytest.raises(
        ConfigError, match=r"rows 300 to 600 of 'node' are on no machine of this run: there is part 0"
    ):
        train(folders[0])
    ended = run("train_on_machines", names=["a", "b"], datasets=[folders[1], folders[1]])
    for rank in ended:
        assert rank.status == 1
        assert "rows 0 to 300 of 'node' are on no machine of this run" in rank.error


def _in_parts(folder: Path, name: str) -> list[str]:
    """Write a graph with features of edges, several types, or links, as a copy and in two parts."""
    rng = np.random.default_rng(3)
    options: list[dict[str, Any]] = [{}, {"ranges": "0/2"}, {"ranges": "1/2"}]
    folders = [folder / name / each.get("ranges", "copy").replace("/", "-") for each in options]
    features = rng.standard_normal((400, 12)).astype(np.float32)
    labels = rng.integers(0, 3, 400)
    cites, writes = rng.integers(0, 400, (2, 2500)), rng.integers(0, [[150], [400]], (2, 900))
    for path, how in zip(folders, options, strict=True):
        if name == "types":
            Dataset.from_numpy_hetero(
                path,
                edges={"author:writes:paper": writes, "paper:cites:paper": cites},
                features={"paper": features, "author": features[:150, :5].copy()},
                labels={"paper": labels},
                add_reverse=True,
                **how,
            )
            continue
        rows = np.random.default_rng(4).standard_normal((2500, 6)).astype(np.float32)
        split = {"edge_split": (0.8, 0.1, 0.1)} if name == "links" else {"edge_features": rows}
        Dataset.from_numpy(path, features=features, labels=labels, edge_index=cites, **split, **how)
    return [str(path) for path in folders]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("edges", {"model": {"name": "gine"}}),
        ("types", {"model": {"name": "rsage"}}),
        ("links", {"links": {"decoder": "dot", "negatives": "uniform:2"}}),
    ],
)
def test_every_table_of_features_is_evaluated_over_machines(
    run: Run, tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    """Of edges, of several types, and of the ends of links, whose scores are looked up by pairs."""
    copy, *parts = _in_parts(tmp_path, name)
    settings = settings | {
        "names": ["a", "b"],
        "loader": {"features": "ssd", "cache": 4000, "exchange": "always"},
    }
    whole = _results(run("train_on_machines", **settings, dataset=copy))
    found = _results(run("train_on_machines", **settings, datasets=parts, dataset=copy))
    for one, other in zip(whole, found, strict=True):
        for figure in ("losses", "accuracies", "test_acc"):
            assert one[figure] == other[figure], figure
