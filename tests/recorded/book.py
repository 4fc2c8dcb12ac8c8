"""The file of recorded digests, and how what a run found is compared with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

BOOK = Path(__file__).parent / "digests.json"
ABOUT = (
    "Recorded by tests/record_digests.py. An entry changes only with a decision: it means other batches for a seed, "
    "other bytes on disk, other outputs or other names in checkpoints. The changelog then says so, and the commit that "
    "changes an entry says why."
)
_RELATIVE, _ABSOLUTE = 1e-4, 1e-4  # floats: machines add up in different orders


def read_book() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the recorded parts by section and name."""
    return {section: of for section, of in json.loads(BOOK.read_text()).items() if section != "about"}


def write_book(sections: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Write the file anew; short lists stay on a line, so that a change of one part is a change of one line."""
    lines = [f'"about": {json.dumps(ABOUT)}']
    for section, entries in sections.items():
        names = []
        for name, parts in entries.items():
            inside = ",\n".join(
                f"   {json.dumps(part)}: {json.dumps(value)}" for part, value in parts.items()
            )
            names.append(f"  {json.dumps(name)}: {{\n{inside}\n  }}")
        inside = ",\n".join(names)
        lines.append(f"{json.dumps(section)}: {{\n{inside}\n }}")
    BOOK.write_text("{\n " + ",\n ".join(lines) + "\n}\n")


def differences(found: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Return a sentence for each part that is not as recorded: texts must be equal, floats close."""
    told = []
    for part in {**recorded, **found}:
        if part not in found or part not in recorded:
            told.append(f"{part}: {'new' if part in found else 'gone'}")
        elif not _agree(found[part], recorded[part]):
            told.append(f"{part}: {found[part]}, recorded {recorded[part]}")
    return told


def _agree(found: Any, recorded: Any) -> bool:
    if not _are_floats(recorded):
        return bool(found == recorded)
    if np.shape(found) != np.shape(recorded):
        return False
    return bool(np.allclose(found, recorded, rtol=_RELATIVE, atol=_ABSOLUTE))


def _are_floats(value: Any) -> bool:
    while isinstance(value, list):
        value = value[0] if value else None
    return isinstance(value, float)
