"""Recipes: what is accepted, and what a mistake in one is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gloader.cli import main as cli
from gloader.cli.failure import EXIT_USAGE
from gloader.cli.recipe import load_recipe, nearest_key
from gloader.cli.train import RunFlags
from gloader.config import EmbedConfig, LoaderSettings, ModelConfig, OptimConfig
from gloader.core.fanouts import checked_fanouts
from gloader.errors import ConfigError

DEFAULTS = (ModelConfig(), OptimConfig(), LoaderSettings())
KNOWN = {"epochs", "lr", "fanout", "memory-budget", "batch-norm", "dataset", "model"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def test_values_become_the_words_of_flags(tmp_path: Path) -> None:
    path = write(
        tmp_path, "epochs: 3\nfanout: [10, 5]\nmemory_budget: 2GB\nbatch-norm: true\nlr: 0.01\nmodel:\n"
    )
    assert load_recipe(path, KNOWN) == {
        "epochs": "3",
        "fanout": "10,5",
        "memory-budget": "2GB",
        "batch-norm": "true",
        "lr": "0.01",
    }


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", r"unknown key 'epoch'; did you mean 'epochs'\?"),
        ("memory_budgett: 3", r"unknown key 'memory_budgett'; did you mean 'memory-budget'\?"),
        ("learning_rate: 3", r"unknown key 'learning_rate'; did you mean 'lr'\?"),
        ("fanouts: [3]", r"unknown key 'fanouts'; did you mean 'fanout'\?"),
        ("zzzzqqq: 1", r"unknown key 'zzzzqqq'; keys are: batch-norm, dataset"),
        ("? " + "z" * 5000 + "\n: 1", r"unknown key .z{40,60}\.\.\.z{40,60}.; keys are"),
        ("epochs: {a: 1}", r"key 'epochs' holds a dict; write a number"),
        ("epochs: [[1]]", r"key 'epochs' holds a list; write a number"),
        ("memory_budget: 1\nmemory-budget: 2", r"key 'memory-budget' is given twice"),
        ("- 1\n- 2", r"holds a list, not settings; write lines such as 'epochs: 10'"),
        ("[epochs]\nvalue = 3", r"is not YAML|holds a"),
        ("a: b: c", r"is not YAML"),
        ("", r"holds a NoneType, not settings"),
        ("!!python/object/apply:os.system ['true']", r"is not YAML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_recipe(path, KNOWN)
    assert str(path) in str(caught.value)


@pytest.mark.reliability("C15")
def test_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recipe .*none\.yaml cannot be read: No such file"):
        load_recipe(tmp_path / "none.yaml", KNOWN)


def test_nearest_key_knows_the_names_of_other_tools() -> None:
    assert nearest_key("num_neighbors", KNOWN) == "fanout"
    assert nearest_key("num_neighbors", {"epochs"}) is None


@dataclass
class Call:
    """What the command was called with."""

    run: RunFlags
    model: ModelConfig
    optim: OptimConfig
    loader: LoaderSettings


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    made: list[Call] = []

    def train(
        run: RunFlags,
        model: ModelConfig = DEFAULTS[0],
        optim: OptimConfig = DEFAULTS[1],
        loader: LoaderSettings = DEFAULTS[2],
    ) -> None:
        made.append(Call(run, model, optim, loader))

    # cyclopts resolves annotations in the module's namespace, which this file postpones.
    train.__annotations__ = {
        "run": RunFlags,
        "model": ModelConfig,
        "optim": OptimConfig,
        "loader": LoaderSettings,
    }
    monkeypatch.setattr(cli.train, "train", train)
    return made


def test_command_line_wins_over_the_recipe(tmp_path: Path, calls: list[Call]) -> None:
    path = write(tmp_path, "dataset: builtin:digits\nepochs: 3\nlr: 0.5\nfanout: [4, 2]\nbatch_norm: true\n")
    assert cli.main(["train", "--config", str(path), "--epochs", "9", "--memory_budget", "1GB"]) == 0
    (call,) = calls
    assert (call.run.dataset, call.optim.epochs, call.optim.lr) == ("builtin:digits", 9, 0.5)
    assert (call.loader.sampling.fanouts, call.model.batch_norm, call.loader.memory.memory_budget) == (
        (4, 2),
        True,
        10**9,
    )


@pytest.mark.parametrize(
    ("written", "fanouts"),
    [
        ("'author:writes:paper=25,20;*=10,5'", "author:writes:paper=25,20;*=10,5"),
        ("{'author:writes:paper': [25, 20], '*': [10, 5]}", "author:writes:paper=25,20;*=10,5"),
        ("collective:25,20", "collective:25,20"),
        ("[-1, 5]", "-1,5"),
    ],
)
def test_fanouts_by_relation_and_of_all_together(
    written: str, fanouts: str, tmp_path: Path, calls: list[Call]
) -> None:
    path = write(tmp_path, f"dataset: builtin:digits\nfanout: {written}\n")
    assert cli.main(["train", "--config", str(path)]) == 0
    assert cli.main(["train", "--dataset", "builtin:digits", "--fanout", fanouts]) == 0
    assert {call.loader.sampling.fanouts for call in calls} == {checked_fanouts(fanouts)}


@pytest.mark.parametrize("written", ["'author=64,32'", "{author: 64, '*': 32}", "[author=64, 32]"])
def test_embeddings_by_type_in_a_recipe_are_those_of_the_flag(written: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"dataset: builtin:digits\nembed: {written}\n")
    app = cli.build_app()
    called = [
        app.parse_args(words)[1].arguments["embed"]
        for words in (
            ["train", "--config", str(path)],
            ["train", "--dataset", "x", "--embed", "author=64", "--embed", "32"],
        )
    ]
    assert called[0] == called[1] == EmbedConfig(dims={"author": 64, "*": 32})


def test_the_section_of_a_run_is_read_by_the_names_of_the_flags(tmp_path: Path) -> None:
    path = write(tmp_path, "embeddings: {dims: {author: 64}, optimizer: adagrad, lr: 0.5, cache: 10%}\n")
    known = {"embed", "embed-optimizer", "embed-lr", "embed-cache", "lr", "optimizer", "cache"}
    assert load_recipe(path, known) == {
        "embed": "author=64",
        "embed-optimizer": "adagrad",
        "embed-lr": "0.5",
        "embed-cache": "10%",
    }


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "x", "--epoch", "3"], "Unknown option: --epoch. Did you mean --epochs?"),
        (
            ["--dataset", "x", "--epochs", "abc"],
            'Invalid value for --epochs: unable to convert "abc" into int.',
        ),
        (["--dataset", "x", "--model", "gatt"], 'Did you mean "gat"?'),
        (["--epochs", "3"], "gloader train needs --dataset; gloader train --help says what that is"),
        (["--epochs", "3", "--dataset"], "--dataset requires an argument"),
        (["--datasett", "x"], "gloader train has no --datasett. Did you mean --dataset?"),
        (["--dataset", "x", "--zzz"], "Unknown option: --zzz. gloader train --help lists its flags"),
        (
            ["--dataset", "x", "--fanout", "10", "5"],
            "--fanout takes its numbers as one word: write --fanout 10,5",
        ),
        (["--dataset", "x", "--model", "gcn", "sage"], "sage belongs to no flag: --model takes gcn"),
        (["--dataset", "x", "--explain", "yes"], "yes belongs to no flag: --explain takes no value"),
        (
            ["--resume", "runs/a"],
            "--resume takes no value: write --out runs/a --resume; the other flags stand in",
        ),
        (["--dataset", "x", "--resume", "r"], "gloader train --config r/config.yaml --out r --resume"),
        (["--dataset", "x", "--memory-budget", "8QB"], "'8QB' is not a size"),
        (["--dataset", "x", "--fanout", "3,x"], "'3,x' is not a fan-out"),
        (["--dataset", "x", "--fanout", "a:b=1"], "'a:b' names no relation; write source:name:destination"),
        (["--dataset", "x", "--fanout", "a:b:c=1;*=1,2"], "different numbers of hops: a:b:c 1, * 2"),
    ],
)
def test_mistakes_on_the_command_line(
    words: list[str], message: str, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *words]) == EXIT_USAGE
    assert message in error_line(capsys)
    assert calls == []


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["fit", "--node", "9", "--edges", "9", "--features", "9"],
            "Unknown option: --node. Did you mean --nodes?",
        ),
        (["explain"], "explain is no command, but a flag: gloader train --explain"),
        (["trane"], 'there is no command "trane". Did you mean train? Commands: analyze, autotune, bench, '),
        (["frobnicate"], "plan, prepare, propagate, report, train, verify"),
        (["doctor", "--disk", "x"], "Unknown option: --disk. gloader doctor takes --path, --network, --json"),
    ],
)
def test_mistakes_before_the_flags_of_a_run(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == EXIT_USAGE
    assert message in error_line(capsys)


@pytest.mark.reliability("C15")
def test_wrong_type_in_a_recipe_names_the_recipe(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "dataset: x\nepochs: many\n")
    assert cli.main(["train", "--config", str(path)]) == EXIT_USAGE
    line = error_line(capsys)
    assert "recipe.yaml" in line
    assert 'unable to convert "many" into int' in line


def test_recipe_may_not_hold_flags_of_one_call(
    tmp_path: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "dataset: x\nresume: true\n")
    assert cli.main(["train", "--config", str(path)]) == EXIT_USAGE
    assert "unknown key 'resume'" in error_line(capsys)


RECIPES = sorted((Path(__file__).parents[3] / "experiments" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_accepted(path: Path, calls: list[Call]) -> None:
    assert cli.main(["train", "--dataset", "somewhere", "--config", str(path)]) == 0
    (call,) = calls
    assert call.model.name == path.stem.rpartition("-")[2]
