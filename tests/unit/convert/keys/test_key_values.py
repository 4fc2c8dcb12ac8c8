"""Columns of keys: the kind that they share, and what is refused."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from gloader.convert.keys.values import key_chunk, key_kind
from gloader.core.keys import key_values
from gloader.errors import SourceError

CSV, PARQUET, OTHER = "u.csv: column id", "e.parquet: column src", "f.parquet: column dst"
UUIDS = [UUID(int=1), UUID(int=2**128 - 5)]


def values(column: Any, kind: Any) -> list[Any]:
    found: list[Any] = key_values(key_chunk(column, kind, first_row=0, where="t"), kind).tolist()
    return found


@pytest.mark.parametrize(
    ("arrow_type", "kind"),
    [
        (pa.int8(), "int64"),
        (pa.uint32(), "int64"),
        (pa.int64(), "int64"),
        (pa.uint64(), "uint64"),
        (pa.string(), "text"),
        (pa.large_string(), "text"),
        (pa.dictionary(pa.int32(), pa.string()), "text"),
        (pa.binary(16), "uuid"),
    ],
)
def test_the_kind_of_a_type(arrow_type: Any, kind: str) -> None:
    assert key_kind([(PARQUET, arrow_type)]) == kind
    assert key_kind([(CSV, pa.string()), (PARQUET, arrow_type)], text_places={CSV}) == kind


def test_text_files_alone_have_texts() -> None:
    assert key_kind([(CSV, pa.string())], text_places={CSV}) == "text"


def test_signed_and_unsigned_numbers_are_the_same_keys() -> None:
    assert key_kind([(PARQUET, pa.int64()), (OTHER, pa.uint64())]) == "uint64"
    assert values(pa.array([3, 2**63 - 1]), "uint64") == [3, 2**63 - 1]
    text = "t: row 11 has the key -1, and another file has keys of type uint64, which has no negative numbers"
    with pytest.raises(SourceError, match=text):
        key_chunk(pa.array([1, -1]), "uint64", first_row=10, where="t")


def test_two_types_are_refused_with_both_places() -> None:
    text = (
        "e.parquet: column src has keys of type int64 (integers), and f.parquet: column dst has keys of type string "
        "(texts); both name nodes of one type, so both must have one type: cast one of them, in Python "
        'table.set_column(i, "NAME", table["NAME"].cast("int64"))'
    )
    with pytest.raises(SourceError, match=f"^{re.escape(text)}$"):
        key_kind([(PARQUET, pa.int64()), (OTHER, pa.string())])


@pytest.mark.parametrize("wrong", [pa.float64(), pa.bool_(), pa.date32(), pa.binary(), pa.binary(15)])
def test_a_type_that_no_key_has_is_refused(wrong: Any) -> None:
    with pytest.raises(SourceError, match=r"^e\.parquet: column src has type .*, which no key has: keys are"):
        key_kind([(PARQUET, wrong)])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", "a", "", "éß"])[1:],
        pa.array(["x", "a", "", "éß"], pa.large_string())[1:],
        pa.array(["a", "", "éß"]).dictionary_encode(),
        pa.array(["a", "", "éß"], pa.string_view()),
    ],
    ids=["string", "large_string", "dictionary", "view"],
)
def test_texts_of_any_arrow_type(column: Any) -> None:
    assert values(column, "text") == ["a", "", "éß"]
    assert values(column[:0], "text") == []


def test_numbers_of_any_arrow_type() -> None:
    for dtype in (np.int8, np.uint16, np.int32, np.int64):
        assert values(pa.array(np.array([9, 1, 100], dtype))[1:], "int64") == [1, 100]
    assert values(pa.array([2**64 - 1], pa.uint64()), "uint64") == [2**64 - 1]
    assert values(pa.array([-(2**63)]), "int64") == [-(2**63)]


def test_uuids() -> None:
    stored = pa.array([UUID(int=9).bytes, *(each.bytes for each in UUIDS)], pa.binary(16))[1:]
    texts = [str(each) for each in UUIDS]
    assert values(stored, "uuid") == texts
    assert values(pa.array([texts[0], texts[1].upper()]), "uuid") == texts
    if hasattr(pa, "uuid"):
        extended = pa.ExtensionArray.from_storage(pa.uuid(), stored)
        assert key_kind([(PARQUET, extended.type)]) == "uuid"
        assert values(extended, "uuid") == texts
    for wrong in (
        "",
        texts[0][1:],
        texts[0].replace("-", ""),
        "g" + texts[0][1:],
        texts[0].replace("-", "0"),
    ):
        with pytest.raises(
            SourceError, match=r"row 1 has the key .*, and another file has UUIDs as keys; a UUID"
        ):
            key_chunk(pa.array([texts[0], wrong]), "uuid", first_row=0, where="t")


def test_texts_of_numbers() -> None:
    texts = ["0", "-1", "7", "9223372036854775807", "-9223372036854775808"]
    assert values(pa.array(texts), "int64") == [int(text) for text in texts]
    assert values(pa.array(["18446744073709551615", "0"]), "uint64") == [2**64 - 1, 0]


@pytest.mark.parametrize("kind", ["int64", "uint64"])
@pytest.mark.parametrize(
    "wrong",
    ["007", "+7", "-0", "7.0", " 7", "7 ", "", "-", "1e3", "18446744073709551616", "99999999999999999999"],
)
def test_a_text_that_is_no_canonical_number_is_refused(kind: Any, wrong: str) -> None:
    text = (
        f"users.csv: row 5 has the key '{wrong}', and another file has integers"
        f"{'' if kind == 'int64' else ' of at least 0'} as keys; {kind} keys are whole numbers in their shortest form, "
        "such as 7 and not 007, +7 or 7.0. Write the keys as texts in both, or in one form in both"
    )
    with pytest.raises(SourceError, match=f"^{re.escape(text)}$"):
        key_chunk(pa.array(["1", wrong]), kind, first_row=4, where="users.csv")


def test_a_number_that_the_kind_does_not_hold_is_refused() -> None:
    for text, kind in (("9223372036854775808", "int64"), ("-9223372036854775809", "int64"), ("-1", "uint64")):
        with pytest.raises(SourceError, match=f"row 0 has the key '{text}'"):
            key_chunk(pa.array([text]), kind, first_row=0, where="t")  # type: ignore[arg-type]


def test_a_missing_key_is_refused_with_its_row() -> None:
    text = "t: row 22 has no key; every row needs one: leave such rows out, or give them keys"
    for column in (
        pa.array([1, 2, None]),
        pa.array(["a", "b", None]),
        pa.array(["a", "b", None]).dictionary_encode(),
    ):
        with pytest.raises(SourceError, match=f"^{text}$"):
            key_chunk(column, "text", first_row=20, where="t")


def test_bytes_that_are_no_text_are_refused_with_their_row() -> None:
    column = pa.array([b"a", b"\xff"]).view(pa.string())
    with pytest.raises(
        SourceError, match=r"t: row 4 has the bytes b'\\xff', which are no UTF-8 text: write the keys"
    ):
        key_chunk(column, "text", first_row=3, where="t")
