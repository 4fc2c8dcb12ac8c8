"""The machines of a launch, as a loader that is being opened sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.row_ranges import copy_bounds, host_bounds
from gloader.distributed.exchange.run_exchange import Exchanges
from gloader.distributed.exchange.serve import OwnedRows
from gloader.distributed.exchange.transport import gather
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.dataset.feature_rows import FeatureRows
    from gloader.distributed.exchange.launch import Launch
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.ssd_store import FeatureStore

# Of the memory budget, for rows on their way: enough for rounds that keep disk and network busy, little beside a cache.
_MEMORY_SHARE: Final = 1 / 16
_LEAST_BYTES, _MOST_BYTES = 8 * 2**20, 256 * 2**20


class LaunchMachines:
    """Opens a loader together with those of the other machines: an `OtherMachines`.

    Parameters
    ----------
    launch : the machines
    tables : the rows that are exchanged
    """

    def __init__(self, launch: Launch, tables: Sequence[FeatureRows]) -> None:
        self._launch = launch
        self._tables = tables
        self._memory_bytes = 0

    @property
    def must_exchange(self) -> bool:
        """Whether no machine reads alone."""
        return self._launch.must_exchange

    def memory_bytes(self, budget_bytes: int) -> int:
        """Return the bytes of the budget that exchanges take."""
        self._memory_bytes = int(min(max(_MEMORY_SHARE * budget_bytes, _LEAST_BYTES), _MOST_BYTES))
        return self._memory_bytes

    def agree_on_superbatch(self, plan: MemoryPlan, *, num_ranks: int) -> int:
        """Return the batches of superbatches of as many steps as every machine has memory for; 0: no exchange.

        Collective.

        Parameters
        ----------
        plan : of this machine
        num_ranks : of it, each of which has a batch in a step

        Raises
        ------
        ConfigError
            Rows have to be exchanged, and a machine does not read them from the SSD.
        RankError
            A machine is gone, or could not open its loader.
        """
        launch = self._launch
        group = launch.connect()
        error: BaseException | None = None
        try:
            steps = max(plan.superbatch.num_batches // num_ranks, 1)
            own = np.array([plan.features == "ssd", steps], np.float64)
            gathered = gather(group, own, is_cancelled=lambda: False)
        except BaseException as raised:
            error = raised
            raise
        finally:
            group.close(error)
        if gathered[:, 0].all():
            return num_ranks * int(gathered[:, 1].min())
        if launch.must_exchange:
            held = sorted(name for name, reads in zip(launch.names, gathered[:, 0], strict=True) if not reads)
            who = f"machine {held[0]} holds" if len(held) == 1 else f"machines {', '.join(held)} hold"
            raise ConfigError(
                f"{who} the features in memory, and rows are exchanged where all machines read them from the SSD: use "
                "features='ssd', or exchange='never' where every machine has all rows"
            )
        return 0

    def refuse(self, error: BaseException) -> None:
        """Tell the other machines that this one has no loader, whatever they do together next."""
        self._launch.connect().close(error)

    def exchange(self, stores: Sequence[FeatureStore]) -> Exchanges:
        """Return what exchanges the rows of ``stores``, of each table."""
        parts, count = self._launch.parts, len(self._launch.hosts)
        tables = [
            OwnedRows(
                store=store,
                bounds=host_bounds(parts, rows.name) if parts else copy_bounds(store.num_rows, count),
            )
            for rows, store in zip(self._tables, stores, strict=True)
        ]
        return Exchanges(self._launch, tables, memory_bytes=self._memory_bytes)
