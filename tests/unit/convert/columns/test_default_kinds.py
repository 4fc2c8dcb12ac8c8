"""The kinds of columns without a description."""

import numpy as np
import pandas as pd
import pytest

from gloader.convert.columns.default_kinds import default_columns
from gloader.convert.readers.parquet_table import open_parquet_table

COUNT = 240
EVERY = np.arange(COUNT)


@pytest.fixture(autouse=True)
def _short_batches(monkeypatch):
    """Read in batches of 50 rows and less."""
    monkeypatch.setattr("gloader.convert.readers.typed_table._BATCH_NUMBERS", 50)
    monkeypatch.setattr("gloader.convert.readers.typed_table._BATCH_TEXTS", 50)


def kinds(folder, is_fitted=None, **columns):
    """Return the kind of each column that is taken, and the texts on the others."""
    pd.DataFrame(columns).to_parquet(folder / "t.parquet", index=False)
    table = open_parquet_table(folder / "t.parquet")
    found = default_columns(table, tuple(columns), num_rows=table.num_rows, is_fitted=is_fitted)
    assert all(spec.missing == "flag" for spec in found.specs)
    return {spec.name: spec.kind for spec in found.specs}, found.left_out


def test_kinds_by_type(tmp_path):
    taken, left_out = kinds(
        tmp_path,
        number=EVERY / 2,
        whole=EVERY,
        truth=EVERY % 2 == 0,
        date=pd.Timestamp("2020-01-01") + pd.to_timedelta(EVERY, "D"),
        pair=[np.array([1.0, each]) for each in EVERY],
        ragged=[np.ones(1 + each % 2) for each in EVERY],
        data=[b"x"] * COUNT,
        nothing=[None] * COUNT,
    )
    assert taken == {
        "number": "standard",
        "whole": "standard",
        "truth": "bool",
        "date": "time",
        "pair": "standard",
    }
    assert left_out == ("ragged (lists of several lengths)", "data (type binary)", "nothing (type null)")


def test_texts_by_their_number_of_values(tmp_path):
    taken, left_out = kinds(
        tmp_path,
        few=[f"v{each % 60}" for each in EVERY],
        rare=[f"v{each % 61}" for each in EVERY],
        own=[f"v{each}" for each in EVERY],
    )
    assert taken == {"few": "category"}
    assert left_out == (
        "rare (text: 61 different values in 240 rows)",
        "own (text: 240 different values in 240 rows)",
    )
    more = [f"v{each % 65}" for each in range(4 * 65)]
    assert kinds(tmp_path, word=more)[0] == {"word": "index"}


def test_texts_with_very_many_values_are_not_all_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("gloader.convert.columns.default_kinds._MOST_VALUES", 100)
    words = [f"v{each}" for each in EVERY] * 4
    assert kinds(tmp_path, word=words)[1] == ("word (text: more than 100 different values in 960 rows)",)


def test_only_the_fitted_rows_count(tmp_path):
    is_fitted = EVERY >= 200
    word = [f"v{each}" if each < 200 else f"w{each % 3}" for each in EVERY]
    late = [None if each >= 200 else 1.5 for each in EVERY]
    taken, left_out = kinds(tmp_path, is_fitted, word=word, late=late)
    assert taken == {"word": "category"}
    assert left_out == ("late (no value in the rows that features are fitted to)",)
