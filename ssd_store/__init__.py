"""Feature rows on the SSD: file formats, writer, reader and I/O."""

if __name__ != "gloader.ssd_store":
    raise ImportError("import this package as gloader.ssd_store")

from gloader.ssd_store.misses.direct import DirectMisses, MissSource
from gloader.ssd_store.misses.in_ram import InRamMisses, in_ram_bytes, load_misses
from gloader.ssd_store.misses.pack import Packer, pack_buffers, packer_memory_bytes
from gloader.ssd_store.misses.packed_misses import PackedMisses
from gloader.ssd_store.read.ram import RamFeatures
from gloader.ssd_store.read.reader import FeatureStore
from gloader.ssd_store.regions.layout import pack_bytes
from gloader.ssd_store.write.writer import FeatureWriter

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
