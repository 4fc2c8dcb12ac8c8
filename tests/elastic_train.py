"""`gloader train` on a rank that is killed once: by itself, before it computes a batch, as the variables below say.

KILLED="rank epoch index"; a group that torchrun started again is left alone.
"""

import os
import signal
import sys
from collections.abc import Iterator

from gloader.cli.main import main
from gloader.loader import Loader
from gloader.types import ReadyBatch

_iterate = Loader.__iter__


def _iterate_until_killed(loader: Loader) -> Iterator[ReadyBatch]:
    rank, epoch, index = map(int, os.environ["KILLED"].split())
    for batch in _iterate(loader):
        is_it = (batch.id.epoch, batch.id.index) == (epoch, index) and int(os.environ["RANK"]) == rank
        if is_it and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


if __name__ == "__main__":
    Loader.__iter__ = _iterate_until_killed  # type: ignore[method-assign]
    sys.exit(main(["train", *sys.argv[1:]]))
