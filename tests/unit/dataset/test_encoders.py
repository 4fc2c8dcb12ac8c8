"""Encoders: features of new rows, the JSON form, scores of quantiles, and a dataset's encoders."""

import json
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pytest

from gloader.dataset import Dataset
from gloader.dataset.encoders import ColumnEncoder, Encoders, normal_scores, shares_below
from gloader.errors import ConfigError, FeatureValueError, FormatError, ShapeError

ENCODERS = Encoders(
    columns=(
        ColumnEncoder(column="age", kind="standard", mean=(40.0,), deviation=(10.0,)),
        ColumnEncoder(column="city", kind="category", missing="flag", has_flag=True, values=("Oslo", "Rome")),
        ColumnEncoder(column="zip", kind="index", values=("1", "7")),
        ColumnEncoder(column="x", kind="number", missing="flag", mean=(0.1,)),
    )
)
ROWS = pa.table({"zip": [7, 8], "age": [40, 35], "city": ["Rome", None], "x": [0.5, 1], "more": [1, 2]})


def test_new_rows_have_the_features_of_their_columns():
    assert ENCODERS.names == ("age", "city=Oslo", "city=Rome", "city=missing", "zip[index]", "x")
    assert ENCODERS.encode(ROWS).tolist() == [[0, 0, 1, 0, 1, 0.5], [-0.5, 0, 0, 1, -1, 1]]
    assert ENCODERS.encode(ROWS.to_batches()[0]).dtype == np.float32
    assert ENCODERS.num_unseen(ROWS) == {"city": 0, "zip": 1}
    assert ENCODERS.encode(ROWS.slice(0, 0)).shape == (0, 6)


def test_an_index_is_found_by_the_number_of_its_feature_and_told_apart_by_its_values():
    assert ENCODERS.indexes == {4: ENCODERS.columns[2]}
    (zip_code,) = ENCODERS.indexes.values()
    assert zip_code.digest == ColumnEncoder(column="code", kind="index", values=("1", "7")).digest
    others = [("7", "1"), ("1", "8"), ("17",), ("1,7",)]
    assert (
        len({zip_code.digest, *(ColumnEncoder(column="zip", kind="index", values=v).digest for v in others)})
        == 5
    )


def test_wrong_rows_are_refused():
    with pytest.raises(ShapeError, match="the rows lack the column 'city'; did you mean 'cities'"):
        ENCODERS.encode(ROWS.rename_columns(["zip", "age", "cities", "x", "more"]))
    with pytest.raises(
        FeatureValueError, match=r"new.csv: row 6, column 'age' is missing; write a value there"
    ):
        ENCODERS.encode(ROWS.set_column(1, "age", pa.array([1, None])), where="new.csv", first=5)
    with pytest.raises(
        FeatureValueError, match=r"row 1, column 'x' is missing; no row had a missing value when"
    ):
        ENCODERS.encode(ROWS.set_column(3, "x", pa.array([1.0, None])))
    with pytest.raises(FeatureValueError, match=r"row 0, column 'x' is 1e\+39; it is beyond float32"):
        ENCODERS.encode(ROWS.set_column(3, "x", pa.array([1e39, 0])))
    with pytest.raises(FeatureValueError, match="row 0, column 'zip' is missing"):
        ENCODERS.encode(ROWS.set_column(0, "zip", pa.array([None, 7])))


def test_the_json_form_gives_the_same_encoders():
    document = json.loads(json.dumps(ENCODERS.to_json()))
    assert document[2] == {"column": "zip", "kind": "index", "values": ["1", "7"]}
    assert Encoders.from_json(document) == ENCODERS
    assert ENCODERS.num_json_bytes == len(json.dumps(ENCODERS.to_json()))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "is {}, not a list"),
        ([{"column": "a"}], "field 'kind' is missing"),
        ([{"column": "a", "kind": "log"}], "field 'kind' is 'log', not one of number"),
        ([{"column": "a", "kind": "number", "more": 1}], "field 'more' is unknown"),
        ([{"column": "a", "kind": "standard"}], "field 'mean' of 'a' does not have 1 numbers"),
        ([{"column": "a", "kind": "standard", "mean": [1]}], "field 'deviation' of 'a' does not have 1"),
        (
            [{"column": "a", "kind": "vector", "width": 2, "missing": "mean", "mean": [1]}],
            "does not have 2 numbers",
        ),
        ([{"column": "a", "kind": "quantile"}], "field 'quantiles' or 'width' of 'a' does not fit"),
        ([{"column": "a", "kind": "number", "width": 0}], "field 'quantiles' or 'width' of 'a' does not fit"),
    ],
)
def test_malformed_json_is_refused(document, message):
    with pytest.raises(ValueError, match=message.replace("{}", r"\{\}")):
        Encoders.from_json(document)


def test_normal_scores_are_those_of_the_standard_library():
    shares = np.concatenate([np.linspace(0, 1, 1001), [1e-9, 1e-7, 0.0749, 0.0751, 0.9249, 0.9251]])
    expected = [NormalDist().inv_cdf(min(max(share, 1e-7), 1 - 1e-7)) for share in shares]
    np.testing.assert_allclose(normal_scores(shares), expected, rtol=1e-13, atol=1e-15)


def test_shares_and_scores_are_those_of_scikit_learn():
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    random = np.random.default_rng(0)
    # Ties inside and at both ends, and values beyond the training rows.
    train = np.clip(np.round(random.standard_normal(5000), 1), -1.5, 1.5)
    values = np.concatenate([train, random.standard_normal(1000), [-9, 9]])
    for output in ("uniform", "normal"):
        transformer = preprocessing.QuantileTransformer(
            n_quantiles=1000, subsample=None, output_distribution=output
        ).fit(train[:, None])
        shares = shares_below(values, transformer.quantiles_[:, 0])
        expected = transformer.transform(values[:, None])[:, 0]
        found = shares if output == "uniform" else normal_scores(shares)
        np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.fixture
def made(tmp_path):
    """Return a function that writes a dataset with ``encoders`` in its record, and opens it."""

    def make(**metadata):
        with Dataset.create(
            tmp_path / "d", num_nodes=2, name="d", num_classes=2, metadata=metadata, overwrite=True
        ) as writer:
            with writer.indptr() as column:
                column.append(np.zeros(3, np.int64))
            with writer.indices(0, "int32") as column:
                column.append(np.empty(0, np.int32))
            with writer.features(6, "float32") as column:
                column.append(ENCODERS.encode(ROWS))
            writer.labels(np.array([0, 1]))
            writer.splits(train=np.array([0]), valid=np.array([1]), test=np.array([], np.int64))
        return Dataset.open(tmp_path / "d")

    return make


def test_a_dataset_gives_its_encoders(made):
    dataset = made(encoders={"node": ENCODERS.to_json()})
    assert dataset.encoders() == dataset.encoders("node") == ENCODERS
    assert dataset.to_numpy()["features"].tobytes() == dataset.encoders().encode(ROWS).tobytes()
    assert dataset.encoders("node:to:node") is None
    with pytest.raises(ConfigError, match="no type or relation 'nod' with encoders; did you mean 'node'"):
        dataset.encoders("nod")


def test_a_dataset_without_columns_has_no_encoders(made):
    assert made().encoders() is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([], r"'encoders' is \[\], not encoders by type"),
        ({"node": [{"column": "a"}]}, "'encoders' of 'node' field 'kind' is missing"),
    ],
)
def test_a_malformed_record_is_refused(made, entry, message):
    with pytest.raises(FormatError, match=message):
        made(encoders=entry).encoders()
