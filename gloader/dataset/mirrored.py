"""A dataset at a URL, mirrored in a directory of this machine.

The mirror is a partial copy on this machine's SSD. It is divided into blocks. A read of a missing block fetches the
block from the object store ("the store") at the URL. `Dataset.open` calls `open_mirrored`, and keeps the `Mirrored`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from gloader.core.machine import folder_of_machine
from gloader.core.object_traffic import ObjectTraffic
from gloader.core.paths import home_dir, require_parent, require_plain, shown_url
from gloader.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.config import ObjectSettings
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.mirror import MirrorIO


class Mirrored:
    """An open mirror with its traffic and its texts. Owns connections, threads and lock until `close`. Thread-safe.

    Parameters
    ----------
    url : the dataset's URL, without secrets
    root : the mirror's directory
    settings : the mirror's settings
    os_io : system calls for reading the directory, which fetch missing blocks
    """

    __slots__ = ("_reported", "os_io", "price", "root", "settings", "url")

    def __init__(self, url: str, root: Path, settings: ObjectSettings, os_io: MirrorIO) -> None:
        self.url = url
        self.root = root
        self.settings = settings
        self.os_io = os_io
        self.price = settings.price
        self._reported = ObjectTraffic()  # the traffic at the last call of `unreported`

    def traffic(self) -> ObjectTraffic:
        """Return the traffic since the mirror was opened."""
        stats = self.os_io.stats()
        return ObjectTraffic(
            requests=stats.requests, num_bytes=stats.bytes, retries=stats.retries, waited_s=stats.waited_s
        )

    @property
    def starved_s(self) -> float:
        """Seconds so far during which at least one reader waited for bytes."""
        return self.os_io.stats().starved_s

    def unreported(self) -> ObjectTraffic:
        """Return the traffic since the last call of this method."""
        now, before = self.traffic(), self._reported
        self._reported = now
        return now.since(before)

    def recorded(self) -> dict[str, Any]:
        """Return the settings as plain values for ``config.yaml``."""
        return self.settings.recorded()

    def rates(self, disk: IoRates) -> IoRates:
        """Return the long-run mean rates of reads, some from the disk and some from the store.

        If the mirror's budget is smaller than the dataset, blocks are removed from the mirror, and a share of all reads
        must fetch a block again.

        Parameters
        ----------
        disk : rates of reads from the mirror's disk
        """
        budget = self.settings.mirror_budget
        record = self.os_io.mirror.record
        total = sum(facts.size for facts in record.files.values())
        # The share of the dataset that the mirror cannot hold.
        share = 0.0 if budget is None or not total else max(0.0, 1 - budget / total)
        return rates_with_store(
            disk, share=share, bytes_per_s=self.os_io.likely_bytes_per_s, block_bytes=record.block_bytes
        )

    def explain(self) -> str:
        """Describe the mirror in one line: its folder, its budget and its content."""
        stats, settings = self.os_io.stats(), self.settings
        parts = [
            f"mirror of {self.url} in {self.root}: {stats.blocks_here:,} of {stats.blocks:,} blocks are here",
            ""
            if settings.mirror_budget is None
            else f"at most {format_bytes(settings.mirror_budget)} of disk",
            f"up to {settings.object_requests} requests at a time",
            "" if settings.object_limit is None else f"at most {settings.object_limit}",
        ]
        return ", ".join(filter(None, parts))

    def describe_missing(self) -> str:
        """Describe the missing blocks; empty if the mirror has every block."""
        stats = self.os_io.stats()
        if stats.blocks_here == stats.blocks:
            return ""
        return (
            f"{self.url}: {stats.blocks_here:,} of {stats.blocks:,} blocks are in the mirror {self.root.parent}; the "
            "others are fetched when they are needed"
        )

    def explain_traffic(self) -> str:
        """Describe the traffic so far in one line, with its cost if prices are known."""
        return f"from {self.url} so far: {self.traffic().describe(self.price)}"

    def figures(self, traffic: ObjectTraffic | None = None) -> dict[str, Any]:
        """Return the traffic as plain values. ``traffic`` may be the sum over all ranks; the default is this rank's."""
        counted = self.traffic() if traffic is None else traffic
        return {"url": self.url, **asdict(counted), "cost": counted.cost(self.price)}

    def close(self) -> None:
        """Release connections, threads and lock. Idempotent."""
        self.os_io.close_mirror()

    def __repr__(self) -> str:
        return f"Mirrored({self.url!r}, {str(self.root)!r})"


def open_mirrored(url: str, settings: ObjectSettings) -> tuple[Path, Mirrored]:
    """Return the mirror's directory for the dataset at ``url``, and its `Mirrored`, which the caller owns.

    Raises
    ------
    ConfigError, MissingDependencyError, StoreOpenError
        As `gloader.ssd_store.mirror.open_mirror`.
    """
    require_plain(url)
    # This import is late, because obstore is optional.
    from gloader.ssd_store.mirror import Limits, open_mirror, open_objects

    root, os_io = open_mirror(
        url,
        mirror_dir=mirrors_dir(settings),
        budget_bytes=settings.mirror_budget,
        limits=Limits.parse(settings.object_limit),
        requests=settings.object_requests,
        objects=open_objects(url, redirects=settings.object_redirects),
    )
    return root, Mirrored(shown_url(url), root, settings, os_io)


def rates_with_store(disk: IoRates, *, share: float, bytes_per_s: float, block_bytes: int) -> IoRates:
    """Return the mean rates of reads from the disk and from an object store. Pure.

    Parameters
    ----------
    disk : rates of reads from the disk
    share : share of the reads that fetch a block from the store
    bytes_per_s : the store's bandwidth
    block_bytes : bytes per block; a read of any size fetches one block
    """
    if share <= 0:
        return disk

    def mean(disk_rate: float, store_rate: float) -> float:
        # The times per read are averaged, not the rates.
        return 1 / (share / store_rate + (1 - share) / disk_rate) if disk_rate else 0.0

    blocks_per_s = bytes_per_s / block_bytes
    return replace(
        disk,
        random_reads_per_s=mean(disk.random_reads_per_s, blocks_per_s),
        medium_reads_per_s=mean(disk.medium_reads_per_s, blocks_per_s),
        wide_reads_per_s=mean(disk.wide_reads_per_s, blocks_per_s),
        read_bytes_per_s=mean(disk.read_bytes_per_s, bytes_per_s),
    )


def mirrors_dir(settings: ObjectSettings) -> Path:
    """Return the folder for mirrors. By default it is this machine's own folder, see `gloader.core.machine`."""
    if settings.mirror_dir is not None:
        require_parent(settings.mirror_dir, flag="--mirror-dir", keyword="mirror_dir=")
        return settings.mirror_dir
    return folder_of_machine(home_dir() / "mirrors")
