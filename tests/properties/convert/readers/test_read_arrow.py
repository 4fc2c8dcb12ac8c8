"""Random text tables: their fields are those that pandas reads, or the table is refused."""

import csv
import io

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gloader.convert.readers.open_table import open_table
from gloader.errors import GloaderError, SourceError

WORDS = [
    "", " ", "a", " a ", "007", "1", "1.5", "-0", "1e3", "nan", "NaN", "null", "NA", "None", "true", "a,b", 'say "hi"',
    "ü", "x y", "\t", ";", "0x1", "'", "a#b", "#a", "2024-01-31", "|", "9" * 20,
]  # fmt: skip


def tables(num_columns):
    return st.lists(
        st.lists(st.sampled_from(WORDS), min_size=num_columns, max_size=num_columns), min_size=1, max_size=9
    )


def text_of(rows, delimiter, quoting, end):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(rows)
    return out.getvalue()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(2, 4).flatmap(tables),  # in one column, a row of blanks is a blank line
    delimiter=st.sampled_from([",", "\t", ";", "|"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_fields_are_those_of_pandas(tmp_path, rows, delimiter, quoting, end):
    header = [f"name {number}" for number in range(len(rows[0]))]
    text = text_of([header, *rows], delimiter, quoting, end)
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    try:
        table = open_table(path)
        batches = list(table.read_arrow(table.names, error=SourceError))
    except GloaderError:
        return
    found = [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    expected = pd.read_csv(
        io.StringIO(text),
        sep=delimiter,
        dtype=str,
        keep_default_na=False,
        na_values=[""],
        skip_blank_lines=True,
    )
    assert table.names == tuple(expected.columns)
    frame = expected.astype(object).where(expected.notna(), None)
    assert found == list(frame.itertuples(index=False, name=None))


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_plain_tables_are_read(tmp_path, delimiter):
    rows = [["key", "x"], ["ann", "1"], ["bob", ""], ["a b", "007"]]
    (tmp_path / "a.csv").write_text(text_of(rows, delimiter, csv.QUOTE_MINIMAL, "\n"))
    table = open_table(tmp_path / "a.csv")
    (batch,) = table.read_arrow(["key", "x"], error=SourceError)
    assert batch.to_pydict() == {"key": ["ann", "bob", "a b"], "x": ["1", None, "007"]}
