from __future__ import annotations

from pathlib import Path

import pytest

from gloader.errors import FormatError
from gloader.lab.report.training import read_settings


def _write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_settings_have_the_names_and_words_of_people(tmp_path: Path) -> None:
    found = read_settings(
        _write(
            tmp_path,
            "run: {id: abc}\n"
            "dataset: {path: /somewhere, name: demo, fingerprint: 0123456789abcdef}\n"
            "model: {name: gat, hidden: 64}\n"
            "loader: {seed: 7, fanouts: [15, 10], memory_budget_bytes: 350000000, cache: {bytes: null}}\n"
            "runs: 3\n",
        )
    )
    assert found.named == {
        "dataset": "demo", "fingerprint": "0123456789ab", "model": "gat", "hidden": "64", "fanouts": "15,10",
        "memory budget": "350 MB", "cache bytes": "not set",
    }  # fmt: skip
    assert (found.seed, found.budget_bytes) == ("7", 350_000_000)


def test_two_settings_of_one_short_name_are_both_there(tmp_path: Path) -> None:
    found = read_settings(_write(tmp_path, "optim: {lr: 1}\nlinks: {lr: 2}\n"))
    assert found.named == {"lr": "1", "links lr": "2"}


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    found = read_settings(tmp_path / "config.yaml")
    assert (found.named, found.seed, found.budget_bytes) == ({}, "", None)


def test_a_file_that_is_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"config\.yaml"):
        read_settings(_write(tmp_path, "- 1\n- 2\n"))
