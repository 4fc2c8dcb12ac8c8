"""Parts that a loader owns, and their end: by `close`, by the garbage collector, or with the process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from gloader.core.signals import close_in_finalizer, uninterrupted

if TYPE_CHECKING:
    from gloader.distributed.client_run import RemoteTier
    from gloader.distributed.host import LoaderHost
    from gloader.pipeline.consumer import Run
    from gloader.pipeline.tiers import FeatureTier

_CLOSER = "gloader-close"


class LoaderParts:
    """The tier of a loader, what serves other ranks, and the run under way. Owns them until `close`.

    Knows nothing of the loader: a finalizer that held it would keep it alive.

    Parameters
    ----------
    tier : what the batches are made with
    host : serves the other ranks; None: there are none, or another rank loads
    num_ranks : ranks that share this loader
    """

    def __init__(
        self, tier: FeatureTier | RemoteTier, host: LoaderHost | None = None, *, num_ranks: int = 1
    ) -> None:
        self.tier = tier
        self.host = host
        self.num_ranks = num_ranks
        self.run: Run | None = None
        self._is_whole = True
        self._pid = os.getpid()
        self._is_closed = False

    def end_run(self) -> None:
        """Stop the run under way. Idempotent."""
        if self.run is not None:
            with uninterrupted():
                self._is_whole = self.run.close() and self._is_whole
                self.run = None

    def close(self) -> None:
        """Stop the run and release the tier, unless a stuck thread still uses it. Idempotent."""
        if os.getpid() != self._pid:
            self._is_closed = True
            return  # a forked child: neither threads nor descriptors are its own
        name = threading.current_thread().name
        if name.startswith("gloader-") and name != _CLOSER:
            # The garbage collector dropped the loader on a thread of its own, which cannot wait for itself.
            threading.Thread(target=self.close, name=_CLOSER).start()
            return
        with uninterrupted():
            self.end_run()
            if self.host is not None:
                self._is_whole = self.host.close() and self._is_whole
            if self._is_whole:
                self.tier.close()
            self._is_closed = True

    def finalize(self) -> None:
        """Close where nothing can be raised."""
        close_in_finalizer(self.close)

    def __del__(self) -> None:
        # A signal that arrived before the finalizer began lost its call. What is closed may be dropped last of all,
        # when the interpreter has taken this module apart.
        if not getattr(self, "_is_closed", True):
            self.finalize()
