"""Messages between ranks: each comes back as it was sent, and what is no message is refused, saying why."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.distributed import wire
from gloader.distributed.shared_memory import BatchShape, BlockShape, LinkShape
from gloader.distributed.wire import Message, parse, to_json
from gloader.errors import RankError
from gloader.plan.memory_plan import MemoryPlan
from gloader.plan.predict import StepSeconds
from gloader.plan.sweep_plan import SweepPlan
from gloader.ssd_store.cost.strategy import SuperbatchSize

SIZES = st.integers(0, 2**40)
TEXTS = st.text(max_size=9)
BLOCKS = st.builds(BlockShape, num_src=SIZES, num_dst=SIZES, num_edges=SIZES, is_weighted=st.booleans())
COUNTS = st.lists(SIZES, max_size=3).map(tuple)
HOPS = st.lists(st.lists(BLOCKS, max_size=3).map(tuple), max_size=3).map(tuple)
LINKS = st.builds(
    lambda pairs, others, dtype, has_times, shared: LinkShape(
        pairs + others, pairs, dtype, has_times, shared
    ),
    SIZES,
    SIZES,
    st.sampled_from(["float32", "int64"]),
    st.booleans(),
    SIZES,
)
SHAPES = st.builds(
    BatchShape,
    epoch=SIZES,
    batch=SIZES,
    num_nodes=COUNTS,
    num_seeds=COUNTS,
    hops=HOPS,
    num_degrees=SIZES,
    has_trees=st.booleans(),
    links=st.lists(LINKS, max_size=1).map(tuple),
)
PLANS = st.builds(
    MemoryPlan,
    budget_bytes=SIZES,
    features=st.sampled_from(["ram", "ssd"]),
    num_buffers=SIZES,
    ring_bytes=SIZES,
    cache_rows=st.lists(SIZES, max_size=3).map(tuple),
    superbatch=st.builds(SuperbatchSize, num_batches=SIZES, reason=TEXTS),
    planned_accesses=st.lists(SIZES, max_size=3).map(tuple),
    missed_bytes=st.lists(SIZES, max_size=3).map(tuple),
    keep_bytes=SIZES,
    pack_buffer_bytes=SIZES,
    parts=st.lists(st.tuples(TEXTS, SIZES), max_size=3).map(tuple),
    predicted_step_s=st.floats(0, 1),
    candidates=st.lists(TEXTS, max_size=3).map(tuple),
    step=st.builds(
        StepSeconds,
        seconds=st.floats(0, 1),
        weighed_s=st.floats(0, 1),
        disk_s=st.floats(0, 1),
        miss_rate=st.floats(0, 1),
        strategy=st.none() | st.sampled_from(["direct", "staged", "packed"]),
        edges_s=st.floats(0, 1),
        missed_bytes=st.lists(SIZES, max_size=3).map(tuple),
        ahead_s=st.floats(0, 1),
        misses=st.lists(st.floats(0, 1), max_size=3).map(tuple),
        swept_bytes=st.floats(0, 1),
    ),
    would_fit=st.booleans(),
    kept_share=st.floats(0, 1),
    sweeps=st.none()
    | st.builds(
        SweepPlan,
        num_batches=SIZES,
        reason=TEXTS,
        buffer_bytes=SIZES,
        checksum_bytes=SIZES,
        frontier_bytes=SIZES,
        spill_bytes=SIZES,
        file_bytes=SIZES,
        touched_bytes=SIZES,
        drawn_bytes=SIZES,
    ),
)
BY_ANNOTATION = {
    "int": SIZES,
    "int | None": st.none() | SIZES,
    "bool": st.booleans(),
    "str": TEXTS,
    "float | None": st.none() | st.floats(0, 1),
    "tuple[int, int]": st.tuples(SIZES, SIZES),
    "tuple[str, ...]": st.lists(TEXTS, max_size=3).map(tuple),
    "BatchShape": SHAPES,
    "BatchShape | None": st.none() | SHAPES,
    "MemoryPlan": PLANS,
    "tuple[int, ...]": COUNTS,
    "tuple[RowDtype, ...]": st.lists(st.sampled_from(["float32", "float16", "uint16", "int8"])).map(tuple),
}
KINDS = list(wire._KINDS.items())
FEWER = settings(
    max_examples=max(1, settings().max_examples // 4)
)  # each example tries every field of a kind
EVERY_KIND = pytest.mark.parametrize(("op", "kind"), KINDS, ids=[op for op, _ in KINDS])


def _strategy(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: BY_ANNOTATION[field.type] for field in dataclasses.fields(kind)})


def _sent(message: Message) -> dict[str, Any]:
    """Return the JSON object that the other side receives."""
    return json.loads(json.dumps(to_json(message)))


@EVERY_KIND
@given(data=st.data())
def test_every_message_comes_back_as_it_was_sent(op: str, kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(_strategy(kind))
    document = _sent(message)
    assert document["op"] == op
    assert parse(document) == message


@EVERY_KIND
@FEWER
@given(data=st.data())
def test_a_missing_field_is_named(op: str, kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(_strategy(kind))
    for field in dataclasses.fields(kind):
        document = _sent(message)
        document.pop(field.name, None)
        if field.default is not dataclasses.MISSING:
            assert getattr(parse(document), field.name) == field.default
            continue
        with pytest.raises(
            RankError, match=f"a message '{op}' whose field '{field.name}' is missing; use one"
        ):
            parse(document)


@EVERY_KIND
@FEWER
@given(data=st.data())
def test_a_field_of_another_type_is_named(op: str, kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(_strategy(kind))
    for field in dataclasses.fields(kind):
        wrongs: list[Any] = [{}, [[]], 7 if field.type == "str" else "seven", {"x": 1}]
        wrongs += [] if "None" in field.type else [None]
        wrongs += [] if field.type == "bool" else [True]
        for wrong in wrongs:
            with pytest.raises(RankError, match=f"a message '{op}' whose field '{field.name}' ") as refused:
                parse(_sent(message) | {field.name: wrong})
            assert "use one version of gloader on all ranks" in str(refused.value)


@EVERY_KIND
@FEWER
@given(data=st.data())
def test_a_field_that_nobody_knows_is_named(op: str, kind: type[Any], data: st.DataObject) -> None:
    with pytest.raises(RankError, match=f"a message '{op}' whose field 'odd' is unknown"):
        parse(_sent(data.draw(_strategy(kind))) | {"odd": 1})


@given(plan=PLANS)
def test_what_is_wrong_inside_a_plan_is_named(plan: MemoryPlan) -> None:
    whole = _sent(wire.Welcome(plan=plan, text=""))
    for field in dataclasses.fields(MemoryPlan):
        wrong, shown = ([], r"\[\]") if "None" in field.type else (None, "None")
        document = whole | {"plan": whole["plan"] | {field.name: wrong}}
        with pytest.raises(RankError, match=f"whose field 'plan' field '{field.name}' is {shown}, not "):
            parse(document)
    with pytest.raises(RankError, match="field 'plan' field 'superbatch' field 'reason' is missing"):
        parse(whole | {"plan": whole["plan"] | {"superbatch": {"num_batches": 1}}})


@FEWER
@given(welcome=_strategy(wire.Welcome))
def test_rows_of_a_dtype_that_features_cannot_have_are_refused(welcome: wire.Welcome) -> None:
    document = _sent(welcome) | {"row_dtypes": ["float32", "float64"]}
    with pytest.raises(
        RankError, match="'row_dtypes' is 'float64', not one of float16, float32, int8, uint16;"
    ):
        parse(document)


@pytest.mark.parametrize(
    "document", [None, [], "bye", 3, {}, {"op": None}, {"op": ["Bye"]}, {"op": "Welcom"}]
)
def test_what_is_no_kind_of_message_is_refused(document: object) -> None:
    with pytest.raises(
        RankError, match=r"which is no kind of message; use one version of gloader on all ranks"
    ):
        parse(document)


def test_the_bytes_are_those_of_the_protocol() -> None:
    shape = BatchShape(
        epoch=1,
        batch=2,
        num_nodes=(5,),
        num_seeds=(3,),
        hops=((BlockShape(num_src=5, num_dst=3, num_edges=9, is_weighted=False),),),
        num_degrees=5,
        has_trees=False,
        links=(),
    )
    found = to_json(wire.Batch(run=4, segments=(6, 7), rows=(5,), shape=shape))
    assert json.dumps(found) == (
        '{"op": "Batch", "run": 4, "segments": [6, 7], "rows": [5], '
        '"shape": [1, 2, [5], [3], [[[5, 3, 9, false]]], 5, false, []]}'
    )
    assert to_json(wire.Answer()) == {"op": "Answer"}
    assert to_json(wire.ErrorReport(text="t", notes=(), now=True)) == {
        "op": "ErrorReport",
        "text": "t",
        "notes": (),
        "now": True,
    }
