from __future__ import annotations

import importlib

import pytest

from gloader.convert import registry
from gloader.convert.options import SourceOptions
from gloader.convert.registry import full_spec, is_source, open_source
from gloader.convert.sources.synthetic import DEMO_SPEC
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sinthetic:rmat", r"did you mean synthetic:\.\.\."),
        ("OGB:ogbn-arxiv", r"did you mean ogb:\.\.\."),
        ("ogbn-arxiv", "is not a source: .*sources are ogb:NAME"),
        ("npy:", "names nothing after the colon; write npy:DIR"),
        ("", "is not a source"),
    ],
)
def test_an_unknown_source_lists_the_known(spec, message):
    with pytest.raises(ConfigError, match=message):
        open_source(spec, SourceOptions())


def test_a_prepared_folder_is_not_a_source(tmp_path):
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(ConfigError, match="is a prepared dataset, not a source; use it directly"):
        open_source(str(tmp_path), SourceOptions())


def test_a_table_alone_is_answered_with_its_forms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(ConfigError, match=r"it is edges:orders\.csv, and tables of nodes .* graph\.yaml"):
        open_source("orders.csv", SourceOptions())
    with pytest.raises(ConfigError, match=r"'users\.csv' is not a source"):
        open_source("users.csv", SourceOptions())


def test_a_source_is_told_from_a_path():
    assert is_source("ogb:ogbn-arxiv")
    assert is_source("builtin:digits")
    assert not is_source("data/ogbn-arxiv")
    assert not is_source("ogb")
    assert not is_source("data:set/x")


@pytest.mark.parametrize("prefix", list(registry._OPENERS))
def test_every_prefix_has_its_opener(prefix):
    module, function, form = registry._OPENERS[prefix]
    assert callable(getattr(importlib.import_module(f"gloader.convert.sources.{module}"), function))
    assert form.startswith(prefix + ":")


def test_the_demo_is_short_for_its_specification():
    assert full_spec("synthetic:demo") == f"synthetic:{DEMO_SPEC}"
    assert full_spec("builtin:digits") == "builtin:digits"
    assert open_source("synthetic:demo", SourceOptions()).num_nodes == 200_000
