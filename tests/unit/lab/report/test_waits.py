from __future__ import annotations

import inspect

import pytest

from gloader.lab.report.training import _CAUSES, PARTS, cause_of, split_seconds
from gloader.observe import bottleneck

NAMES = [name for name, _ in PARTS]


@pytest.mark.parametrize(
    ("sentence", "cause"),
    [
        (
            "reading features waits for the SSD: 17% of the step (sweeps write 307 MB of 848 MB read)",
            "waiting for the SSD",
        ),
        (
            "the loop waits for the samplers: 4%; another thread of sampling would help",
            "waiting for samplers",
        ),
        (
            "the loop waits for stages that wait for each other: 54%; with less of it the loop waits for the SSD",
            "waiting for the loader",
        ),
        ("what a later version says", "waiting for the loader"),
    ],
)
def test_a_wait_has_the_cause_that_its_epoch_named(sentence: str, cause: str) -> None:
    assert cause_of(sentence) == cause
    assert cause in NAMES


def test_the_parts_of_an_epoch_are_all_of_it() -> None:
    parts = split_seconds(5.0, 1.5, {"compute": 2.0, "wait": 1.0, "sample": 99.0}, "waits for the SSD")
    assert dict(zip(NAMES, parts, strict=True)) == {
        **dict.fromkeys(NAMES, 0.0), "the model's step": 2.0, "waiting for the SSD": 1.0, "the rest of the loop": 2.0,
        "evaluation": 1.5,
    }  # fmt: skip
    # What a rank measured of its own may be a little more than the seconds of all.
    assert sum(split_seconds(1.0, 0.0, {"compute": 1.0, "wait": 0.1}, "")) == 1.1


def test_the_words_are_those_that_epochs_say() -> None:
    said = inspect.getsource(bottleneck)
    assert [words for words, _ in _CAUSES if words not in said] == []
