"""Words of a what-if that are almost right: changes that can be asked for again, or an error of ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import ConfigError
from gloader.replay.changes import KNOBS, parse_changes

WORDS = st.sampled_from(
    [*KNOBS, "S", "=", ",", "/", ";", "x", "%", "GB", "Gb/s", "2", "-1", "0", "1e9", "nan", " ", "é", "٣"]
)


@given(st.one_of(st.text(max_size=30), st.lists(WORDS, max_size=8).map("".join)))
def test_any_text_is_changes_or_refused(text: str) -> None:
    try:
        changes = parse_changes(text)
    except ConfigError:
        return
    assert set(changes.values) <= set(KNOBS)
    assert parse_changes(changes.text) == changes
