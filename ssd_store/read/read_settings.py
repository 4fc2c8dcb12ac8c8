"""Settings of reading: how requests are made, what is verified, how much memory they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from gloader.errors import ConfigError
from gloader.ssd_store.read.device_file import DIRECT_MODES, Direct

if TYPE_CHECKING:
    from gloader.config import IoMode, Verify

IO_MODES = ("auto", "uring", "threads", "buffered")
VERIFY_MODES = ("read", "open", "off")
DEFAULT_RING_BYTES = 8 * 2**20


class ReadKeywords(TypedDict, total=False):
    """The keywords of `FeatureStore.open` that make a `ReadSettings`."""

    io: IoMode
    verify: Verify
    direct: Direct
    queue_depth: int | None
    gap_bytes: int | None
    ring_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How a store is read; `FeatureStore.open` describes each field.

    Raises
    ------
    ConfigError
        A value is unknown or out of range.
    """

    io: IoMode = "auto"
    verify: Verify = "read"
    direct: Direct = "auto"
    queue_depth: int | None = None
    gap_bytes: int | None = None
    ring_bytes: int = DEFAULT_RING_BYTES

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("verify", self.verify, VERIFY_MODES),
            ("io", self.io, IO_MODES),
            ("direct", self.direct, DIRECT_MODES),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
        if self.gap_bytes is not None and self.gap_bytes < 0:
            raise ConfigError(f"gap_bytes={self.gap_bytes} must be at least 0")
        if self.queue_depth is not None and self.queue_depth < 1:
            raise ConfigError(f"queue_depth={self.queue_depth} must be at least 1")

    @property
    def file_mode(self) -> Direct:
        """How the file is opened: ``io="buffered"`` goes through the page cache whatever ``direct`` says."""
        return "off" if self.io == "buffered" else self.direct
