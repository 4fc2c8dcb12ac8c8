import numpy as np
import pytest
from convert_helpers import ListEdges

from gloader.convert import prepare_plan
from gloader.convert.options import PrepareOptions
from gloader.convert.prepare_plan import plan_prepare
from gloader.convert.readers.arrays import array_features
from gloader.convert.source import Source, Splits
from gloader.convert.source_check import check_source
from gloader.errors import BudgetError, ConfigError, ShapeError, SourceError

MB = 10**6


def source(*, num_nodes=10, rows=10, dim=3, labels=None, num_classes=2):
    empty = np.empty(0, np.int64)
    return Source(
        name="x",
        origin="npy:x",
        num_nodes=num_nodes,
        num_classes=num_classes,
        edges=ListEdges([(0, 1)]),
        features=array_features(np.zeros((rows, dim), np.float32)),
        labels=np.zeros(num_nodes, np.int64) if labels is None else np.asarray(labels),
        splits=Splits(train=empty, valid=empty, test=empty),
    )


@pytest.mark.reliability("C13")
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (source(rows=9), ShapeError, "npy:x: features have 9 rows for 10 nodes"),
        (source(dim=0), ShapeError, "features have 0 columns; at least 1 is needed"),
        (source(labels=[0] * 9), ShapeError, r"labels have shape \(9,\); they must be \(10,\)"),
        (source(labels=[0] * 9 + [2]), SourceError, r"node 9 has label 2; labels are 0..1, or -1"),
        (
            source(labels=np.zeros((9, 2), np.float32)),
            ShapeError,
            r"labels have shape \(9, 2\) and dtype float32; they must be \(10, k\) float32",
        ),
        (source(labels=np.zeros((10, 2))), ShapeError, r"dtype float64; they must be \(10, k\) float32"),
        (
            source(labels=np.zeros((10, 3), np.float32)),
            ConfigError,
            "num_classes is 2, and the labels are 3 columns of values instead of classes; leave num_classes out",
        ),
        (
            source(labels=np.array([[0, np.inf]] * 10, np.float32)),
            SourceError,
            "node 0 has label inf in column 1; a label is finite, or NaN where it is unknown",
        ),
        (source(num_nodes=0, rows=0), ConfigError, "0 nodes and 2 classes; at least one of each"),
    ],
)
def test_parts_that_contradict_each_other(bad, error, text):
    with pytest.raises(error, match=text):
        check_source(bad)


@pytest.mark.reliability("C14")
def test_budget_is_checked_before_anything_is_allocated():
    with pytest.raises(BudgetError, match=r"preparing npy:x needs 25\.2 MB .* the memory budget allows 8 MB"):
        plan_prepare(source(), PrepareOptions(), budget_bytes=8 * MB)
    with pytest.raises(BudgetError, match="per feature row"):
        plan_prepare(source(rows=1, dim=10**7), PrepareOptions(), budget_bytes=100 * MB)


def test_plan_counts_memory_and_disk():
    plan = plan_prepare(source(dim=1000), PrepareOptions(dtype="float16"), budget_bytes=100 * MB)
    assert plan.memory_bytes <= plan.budget_bytes
    assert plan.rows["node"].chunk_rows >= 1000
    # Beside the rows, a header and a last page of each of seven arrays, and of their checksums.
    assert 20_000 + 14 * 8192 <= plan.dataset_bytes <= 200_000
    assert plan.scratch_bytes == 0


@pytest.mark.parametrize(("order", "copies"), [("none", 1), ("degree", 2)])
def test_columns_of_labels_count_with_their_reordered_copy(order, copies):
    num_nodes, width = 1000, 5000
    wide = np.zeros((num_nodes, width), np.float32)  # 20 MB
    of_classes = source(num_nodes=num_nodes, rows=num_nodes)
    of_values = source(num_nodes=num_nodes, rows=num_nodes, labels=wide, num_classes=width)
    check_source(of_values)
    classes, values = (
        plan_prepare(each, PrepareOptions(order=order), budget_bytes=100 * MB)
        for each in (of_classes, of_values)
    )
    added = wide.nbytes - 8 * num_nodes
    assert values.memory_bytes == classes.memory_bytes + copies * added
    assert values.dataset_bytes == pytest.approx(classes.dataset_bytes + added, rel=0.01)
    with pytest.raises(BudgetError, match="the memory budget allows"):
        plan_prepare(of_values, PrepareOptions(order=order), budget_bytes=copies * 20 * MB)


def test_unknown_dtype_is_refused():
    with pytest.raises(ConfigError, match="'float64'; allowed: float32, float16, bfloat16, int8"):
        plan_prepare(source(), PrepareOptions(dtype="float64"), budget_bytes=100 * MB)


def test_unknown_order_is_refused():
    with pytest.raises(ConfigError, match="order 'hilbert'; allowed: none, degree, community"):
        plan_prepare(source(), PrepareOptions(order="hilbert"), budget_bytes=100 * MB)


def test_another_order_counts_its_memory_and_its_temporary_rows():
    plain = plan_prepare(source(dim=10**6), PrepareOptions(), budget_bytes=100 * MB)
    assert (plain.rows["node"].range_rows, plain.scratch_bytes) == (10, 0)
    plan = plan_prepare(source(dim=10**6), PrepareOptions(order="degree"), budget_bytes=100 * MB)
    assert (plan.rows["node"].range_rows, plan.scratch_bytes) == (9, 10 * 4 * 10**6)
    assert plan.memory_bytes <= plan.budget_bytes
    whole = plan_prepare(source(dim=10**6), PrepareOptions(order="degree"), budget_bytes=200 * MB)
    assert (whole.rows["node"].range_rows, whole.scratch_bytes) == (10, 0)


@pytest.mark.reliability("C14")
def test_more_ranges_than_files_are_refused(monkeypatch):
    monkeypatch.setattr(prepare_plan, "MAX_RANGES", 1)
    with pytest.raises(
        BudgetError, match=r"putting 10 feature rows in another order takes at least 80 MB.*Raise"
    ):
        plan_prepare(source(dim=10**6), PrepareOptions(order="degree"), budget_bytes=100 * MB)
