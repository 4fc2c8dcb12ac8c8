"""The recorded durations, and the order that they give."""

from durations import TESTS, longest_first, read_durations


def test_files_come_by_their_seconds_and_those_without_last_as_they_were():
    files = ["a.py", "b.py", "c.py", "new.py", "other.py"]
    seconds = {"a.py": 1.5, "b.py": 30.0, "c.py": 2.0, "gone.py": 90.0}
    assert longest_first(files, seconds) == ["b.py", "c.py", "a.py", "new.py", "other.py"]


def test_every_duration_is_of_a_file_that_is_there():
    """`make durations` measures again what was moved; an entry may be moved by hand as well."""
    gone = [name for name in read_durations() if not (TESTS / name).is_file()]
    assert gone == []
