"""The list of deletions keeps up with the code; the deletions themselves are tried by `python tests/deletions.py`."""

from __future__ import annotations

import deletions
import mutation


def test_every_deletion_has_its_place_in_the_code_and_tests_that_are_there() -> None:
    for file, lost, text, left in deletions.DELETIONS:
        assert (mutation.ROOT / file).read_text("utf-8").count(text) == 1, f"{file}: {lost}"
        assert text != left, lost
        assert all((mutation.ROOT / test).is_file() for test in deletions.TESTS[file]), file
