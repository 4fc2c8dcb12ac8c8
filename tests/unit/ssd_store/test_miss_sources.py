"""Every miss source of ours passes the conformance suite: direct reads, rows in memory, packs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gloader.core.signals import NEVER
from gloader.ssd_store import DirectMisses, Packer, load_misses
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.source_suites import MissSourceSuite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gloader.ssd_store import FeatureStore, MissSource
    from gloader.types import IdArray


class TestDirect(MissSourceSuite):
    is_prepared = False

    @contextmanager
    def open_source(
        self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
    ) -> Iterator[MissSource]:
        yield DirectMisses(store)


@pytest.mark.reliability("E5")
class TestInRam(MissSourceSuite):
    @contextmanager
    def open_source(
        self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
    ) -> Iterator[MissSource]:
        yield load_misses(store, misses, cancellation=NEVER)


@pytest.mark.reliability("E5")
class TestPacked(MissSourceSuite):
    @contextmanager
    def open_source(
        self, store: FeatureStore, misses: Sequence[IdArray], tmp_path: Path
    ) -> Iterator[MissSource]:
        with SpillFolder(tmp_path, budget_bytes=10**8) as spill, Packer(store, spill) as packer:
            yield packer.pack(misses, superbatch=7, cancellation=NEVER)
