"""Specifications of columns: entries of a YAML file and of flags, the kinds of types, and refusals."""

from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.columns.specs import ColumnSpec, column_specs, kind_in, microseconds_text
from gloader.convert.readers.open_table import open_table
from gloader.errors import ConfigError, SourceError

DAY = 86_400 * 10**6


def parse(entry):
    return ColumnSpec.parse(entry, where="graph.yaml")


def test_entries_are_names_and_mappings():
    assert parse("age") == ColumnSpec(name="age")
    assert parse({"name": "city", "as": "category", "max": 200}) == ColumnSpec(
        name="city", kind="category", max_values=200
    )
    assert parse({"name": "city", "top": 63}) == ColumnSpec(name="city", kind="category", top=63)
    assert parse({"name": "x", "as": "quantile", "to": "uniform", "missing": "flag"}) == ColumnSpec(
        name="x", kind="quantile", score="uniform", missing="flag"
    )


@pytest.mark.parametrize("at", ["1970-01-03", date(1970, 1, 3), 172_800, "1970-01-03T00:00:00Z"])
def test_the_time_of_an_age_may_be_a_date_a_text_or_seconds(at):
    assert parse({"name": "joined", "as": "time", "at": at}).at == 2 * DAY


def test_columns_are_a_list_or_a_mapping_from_kinds():
    names = column_specs({"vector": "embedding", "category": ["city", "sex"]}, where="here")
    assert [(each.name, each.kind) for each in names] == [
        ("embedding", "vector"),
        ("city", "category"),
        ("sex", "category"),
    ]
    assert column_specs("age", where="here") == (ColumnSpec(name="age"),)


def test_flags_name_a_column_its_kind_and_its_missing_values():
    specs = [
        ColumnSpec.parse_text(text, where="--columns")
        for text in ("age", "city:category", "x:mean", "y:time:flag")
    ]
    assert specs == [
        ColumnSpec(name="age"),
        ColumnSpec(name="city", kind="category"),
        ColumnSpec(name="x", missing="mean"),
        ColumnSpec(name="y", kind="time", missing="flag"),
    ]
    with pytest.raises(ConfigError, match="'a:time:bool' gives two words of one kind, 'bool' the second"):
        ColumnSpec.parse_text("a:time:bool", where="--columns")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, r"graph.yaml: 3 is no column; write a column's name, or \{name: city, as: category\}"),
        ({"as": "category"}, "is no column; write a column's name"),
        ({"name": "x", "kind": "category"}, "column 'x' has the key 'kind'; allowed: name, as, max"),
        ({"name": "x", "as": "categorical"}, "as: 'categorical'; did you mean 'category'"),
        ({"name": "x", "max": 3}, "max: belongs to as: category or as: index; add it"),
        ({"name": "x", "as": "number", "at": 3}, "at: belongs to as: time, not to as: number"),
        ({"name": "x", "as": "category", "max": 2000}, r"max: 2000; it is a whole number in 1..1,024"),
        ({"name": "x", "as": "category", "max": True}, "max: True; it is a whole number"),
        ({"name": "x", "top": 3, "as": "category", "max": 4}, "top: and max: contradict each other"),
        ({"name": "x", "as": "category", "missing": "mean"}, "categories have no mean: write zero or flag"),
        ({"name": "x", "missing": "median"}, "missing: 'median'; allowed: zero, mean, flag"),
        ({"name": "x", "as": "quantile", "to": "normals"}, "to: 'normals'; allowed: normal, uniform"),
        ({"name": "x", "as": "time", "at": "soon"}, "at: 'soon'; it is a date such as 2024-01-31"),
        ({"name": "x", "as": "time", "at": [3]}, r"at: \[3\]; it is a date"),
    ],
)
def test_wrong_entries_are_refused_with_what_is_allowed(entry, message):
    with pytest.raises(ConfigError, match=message):
        parse(entry)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], r"columns: \[\]; it is a list"),
        (3, "columns: 3; it is a list"),
        (["age", "age"], "columns: 'age' stands there twice"),
    ],
)
def test_wrong_lists_are_refused(entries, message):
    with pytest.raises(ConfigError, match=message):
        column_specs(entries, where="graph.yaml")


TYPED = pa.table(
    {
        "whole": [1, 2],
        "real": [0.5, 1.5],
        "flag": [True, False],
        "many": [[1.0, 2.0], [3.0, 4.0]],
        "text": ["a", "b"],
        "when": pa.array([0, 1], pa.timestamp("s")),
        "blob": pa.array([b"1", b"2"]),
    }
)


@pytest.fixture
def tables(tmp_path):
    pq.write_table(TYPED, tmp_path / "t.parquet")
    text = (
        "whole,real,flag,text,when,almost,bare\n1,0.5,True,a,2024-01-31,7%,\n2,1.5,False,b,2024-02-01,8%,\n"
    )
    (tmp_path / "t.csv").write_text(text)
    return {"parquet": open_table(tmp_path / "t.parquet"), "csv": open_table(tmp_path / "t.csv")}


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_types_have_kinds_of_their_own(tables, form):
    kinds = [kind_in(ColumnSpec(name=name), tables[form]).kind for name in ("whole", "real", "flag")]
    assert kinds == ["number", "number", "bool"]
    assert kind_in(ColumnSpec(name="many"), tables["parquet"]).kind == "vector"


@pytest.mark.parametrize(
    ("form", "spec", "message"),
    [
        (
            "parquet",
            ColumnSpec(name="text"),
            "'text' holds texts. Name their kind: {name: text, as: category}",
        ),
        ("csv", ColumnSpec(name="text"), "'text' holds texts. Name their kind: {name: text, as: category}"),
        ("csv", ColumnSpec(name="when"), "'when' holds texts. Name their kind"),
        (
            "parquet",
            ColumnSpec(name="when"),
            "holds times (timestamp[ms]): take their age with {name: when, as: time}",
        ),
        ("parquet", ColumnSpec(name="blob"), "has type binary, which cannot be a feature"),
        ("csv", ColumnSpec(name="almost"), "holds text that is almost a number"),
        ("csv", ColumnSpec(name="bare"), "has no values in its first rows, so its kind is unknown"),
        ("csv", ColumnSpec(name="ral"), "has no column 'ral': did you mean 'real'?"),
        ("csv", ColumnSpec(name="real", kind="vector"), "as: vector is for lists of numbers"),
        (
            "parquet",
            ColumnSpec(name="many", kind="category"),
            "lists of numbers are as: vector or as: standard",
        ),
        ("csv", ColumnSpec(name="flag", kind="category"), "of true and false; such a column is as: bool"),
    ],
)
def test_unclear_and_wrong_kinds_are_refused_with_what_to_type(tables, form, spec, message):
    with pytest.raises(SourceError) as caught:
        kind_in(spec, tables[form])
    assert message in str(caught.value)
    assert str(tables[form].path) in str(caught.value)


def test_times_are_shown_as_dates():
    assert microseconds_text(0) == "1970-01-01"
    assert microseconds_text(DAY // 2) == "1970-01-01 12:00:00"
    assert microseconds_text(1) == "1970-01-01 00:00:00.000001"
