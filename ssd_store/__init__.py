"""Feature rows on the SSD: file formats, writer, reader and I/O."""

if __name__ != "gloader.ssd_store":
    raise ImportError("import this package as gloader.ssd_store")

from gloader.ssd_store.feature_store import FeatureStore, FeatureWriter, RamFeatures
from gloader.ssd_store.miss_sources import (
    DirectMisses,
    InRamMisses,
    MissSource,
    PackedMisses,
    Packer,
    in_ram_bytes,
    load_misses,
    pack_buffers,
    packer_memory_bytes,
)
from gloader.ssd_store.spill.regions import pack_bytes

__all__ = [
    "DirectMisses",
    "FeatureStore",
    "FeatureWriter",
    "MissSource",
    "PackedMisses",
    "Packer",
    "RamFeatures",
    "InRamMisses",
    "pack_buffers",
    "pack_bytes",
    "packer_memory_bytes",
    "load_misses",
    "in_ram_bytes",
]
