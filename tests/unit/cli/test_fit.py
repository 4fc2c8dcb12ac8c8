"""Sizes of graphs as people write them."""

from __future__ import annotations

import pytest
from cyclopts import Token

from gloader.cli.fit import _whole
from gloader.cli.main import main
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("111059956", 111_059_956),
        ("111e6", 111_000_000),
        ("1.6B", 1_600_000_000),
        ("111M", 111_000_000),
        ("0.3k", 300),
    ],
)
def test_a_number_may_have_a_unit(text: str, number: int) -> None:
    assert _whole(int, [Token(value=text)]) == number


@pytest.mark.parametrize("text", ["", "M", "many", "1.5", "-3", "1e400", "nan", "1e3M", "0.0001k"])
def test_anything_else_is_told_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="it must be a whole number, such as 111059956, 111e6 or 111M"):
        _whole(int, [Token(value=text)])


def test_what_was_assumed_of_the_training_nodes_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    size = [
        "fit",
        "--nodes",
        "1e5",
        "--edges",
        "5e5",
        "--features",
        "8",
        "--fanout",
        "2",
        "--memory-budget",
        "1GB",
    ]
    assert main(size) == 0
    shown = " ".join(capsys.readouterr().out.replace("\xa0", " ").split())
    assert (
        "training nodes 1,000 (assumed: a hundredth of all; --train-nodes says it) batches an epoch 1 "
        in shown
    )
    assert main([*size, "--train-nodes", "6e4"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("\xa0", " ").split())
    assert "training nodes 60 k batches an epoch 59 " in shown
