"""Negatives as users write them: every form is read and written, everything else is refused in one sentence."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.core.negatives import Negatives, checked_negatives, parse_negatives
from gloader.errors import ConfigError

FORMS: list[tuple[str, Negatives | None]] = [
    ("uniform:5", gloader.Uniform(5)),
    ("uniform:5,strict", gloader.Uniform(5, strict=True)),
    ("binary:1.0", gloader.Binary()),
    ("binary:0.25,strict", gloader.Binary(0.25, strict=True)),
    ("uniform:256,shared", gloader.Uniform(256, shared=True)),
    ("in_batch", gloader.InBatch()),
    ("table:wrong", gloader.Table("wrong")),
    ("table:a:b,strict", gloader.Table("a:b,strict")),
    ("none", None),
]


@pytest.mark.parametrize(("text", "value"), FORMS, ids=str)
def test_every_form_is_read_and_written(text: str, value: Negatives | None) -> None:
    assert parse_negatives(text) == checked_negatives(text) == checked_negatives(value) == value
    assert type(parse_negatives(text)) is type(value)
    if value is not None:
        assert parse_negatives(str(value)) == value
        assert copy.copy(value) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [(" uniform : 3 , strict ", gloader.Uniform(3, strict=True)), ("binary:2", gloader.Binary(2.0))],
)
def test_spaces_and_whole_numbers_are_read(text: str, value: Negatives) -> None:
    assert parse_negatives(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uniform",
        "uniform:",
        "uniform:1.5",
        "uniform:5,",
        "uniform:5,loose",
        "uniform:5,strict,strict",
        "uniform:5,shared,strict",
        "binary:1.0,shared",
        "binary",
        "binary:much",
        "in_batch:3",
        "in_batch:",
        "none:1",
        "table",
        "table: ",
        "Uniform:3",
        "hard:3",
    ],
)
def test_another_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"names no negatives; write 'uniform:5', .*'table:NAME' or 'none'$"
    ):
        parse_negatives(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gloader.Uniform(0), r"^Uniform\(k=0\): k must be in 1\.\.2,147,483,647$"),
        (lambda: gloader.Uniform(-1), "k must be in"),
        (lambda: gloader.Uniform(2**31), "k must be in"),
        (lambda: gloader.Uniform(True), r"^Uniform\(k=True\): k must be a whole number of at least 1$"),
        (lambda: gloader.Uniform(2.0), "k must be a whole number"),  # type: ignore[arg-type]
        (lambda: gloader.Uniform(1, strict=1), r"^Uniform\(strict=1\): strict must be True or False$"),  # type: ignore[arg-type]
        (lambda: gloader.Uniform(1, shared=1), r"^Uniform\(shared=1\): shared must be True or False$"),  # type: ignore[arg-type]
        (
            lambda: gloader.Uniform(3, strict=True, shared=True),
            r"^Uniform\(k=3, strict=True, shared=True\): .* a true end of one of them; leave strict out$",
        ),
        (lambda: gloader.Binary(0), r"^Binary\(ratio=0\): ratio must be above 0 and at most 2,147,483,647$"),
        (lambda: gloader.Binary(-0.5), "ratio must be above 0"),
        (lambda: gloader.Binary(float("nan")), r"Binary\(ratio=nan\): ratio must be above 0"),
        (lambda: gloader.Binary(float("inf")), "ratio must be above 0 and at most"),
        (lambda: gloader.Binary("1"), r"^Binary\(ratio='1'\): ratio must be a number above 0$"),  # type: ignore[arg-type]
        (lambda: gloader.Binary(False), "ratio must be a number"),
        (lambda: gloader.Binary(1.0, strict="no"), r"^Binary\(strict='no'\)"),  # type: ignore[arg-type]
        (lambda: gloader.Table(""), r"^Table\(name=''\): name must be the name of a link table$"),
        (lambda: gloader.Table(3), r"^Table\(name=3\)"),  # type: ignore[arg-type]
        (lambda: parse_negatives("uniform:0"), r"^Uniform\(k=0\): k must be in"),
        (lambda: parse_negatives("binary:nan"), r"^Binary\(ratio=nan\)"),
        (lambda: checked_negatives(5), r"^negatives=5; pass gloader\.Uniform\(k\), .* or None, or a text"),
        (lambda: checked_negatives(gloader.Uniform), r"^negatives=<class .*Uniform'>; pass"),
    ],
)
def test_values_that_are_not_allowed_are_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_numbers_of_numpy_become_plain_ones() -> None:
    assert type(gloader.Uniform(np.int64(3)).k) is int  # type: ignore[arg-type]
    assert type(gloader.Binary(np.float32(0.5)).ratio) is float  # type: ignore[arg-type]
    assert type(gloader.Binary(2).ratio) is float


@pytest.mark.parametrize(
    ("ratio", "positives", "pairs"),
    [(1.0, 7, 7), (0.5, 7, 4), (1.1, 10, 11), (0.1, 30, 3), (1e-9, 5, 1), (3, 0, 0)],
)
def test_the_pairs_of_a_ratio_are_the_decimal_product_rounded_up(
    ratio: float, positives: int, pairs: int
) -> None:
    assert gloader.Binary(ratio).num_pairs(positives) == pairs


def test_negatives_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        gloader.Uniform(1).k = 2  # type: ignore[misc]
