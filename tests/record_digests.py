"""Write tests/recorded/digests.json anew, with what this build does: ``PYTHONPATH=. python tests/record_digests.py``.

Do so only after a decision to change batches, bytes, outputs or names, and read the difference before it is committed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from recorded.book import differences, write_book
from recorded.streams import STREAMS
from recorded.worlds import Worlds


def main() -> None:
    """Record every section."""
    with tempfile.TemporaryDirectory() as scratch:
        worlds, spill = Worlds(Path(scratch) / "worlds"), Path(scratch) / "spill"
        spill.mkdir()
        streams = {}
        for name, stream in STREAMS.items():
            found = [stream.digests(worlds, place, spill) for place in stream.places]
            if told := [text for each in found for text in differences(each, found[0])]:
                raise SystemExit(f"{name} differs by place: {told}")
            streams[name] = found[0]
    write_book({"streams": streams})


if __name__ == "__main__":
    main()
