"""Write tests/recorded/digests.json anew, with what this build does: ``PYTHONPATH=. python tests/record_digests.py``.

Do so only after a decision to change batches, bytes, outputs or names, and read the difference before it is committed.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from recorded.book import differences, write_book
from recorded.faces import FACES
from recorded.networks import NETWORKS
from recorded.prepared import PREPARED
from recorded.streams import STREAMS
from recorded.worlds import Worlds


def main() -> None:
    """Record every section."""
    logging.disable()  # link tables of edges that are in the graph are meant
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        worlds, streams, prepared = Worlds(root / "worlds"), {}, {}
        for name, stream in STREAMS.items():
            found = [stream.digests(worlds, place, root) for place in stream.places]
            if told := [text for each in found for text in differences(each, found[0])]:
                raise SystemExit(f"{name} differs by place: {told}")
            streams[name] = found[0]
        for number, (name, way) in enumerate(PREPARED.items()):
            prepared[name] = way.digests(root / str(number))
        faces = {name: face.digests(worlds, root) for name, face in FACES.items()}
        networks = {name: network.parts(worlds, root) for name, network in NETWORKS.items()}
    write_book({"streams": streams, "faces": faces, "prepared": prepared, "networks": networks})


if __name__ == "__main__":
    main()
