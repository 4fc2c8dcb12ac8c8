"""Feature rows on the SSD: file formats, writer, reader and I/O. Import ``gloader.ssd_store``.

`FeatureStore` reads rows and `FeatureWriter` writes them. The classes ``*Misses`` read a batch's missing rows, which no
cache holds. A pack is a batch's missing rows, copied to one region of a temporary file. `EmbeddingTable` keeps rows
that are trained.
"""

# The package is found under two names, because the folder is also linked into the package gloader.
if __name__ != "gloader.ssd_store":
    raise ImportError("import this package as gloader.ssd_store")

from gloader.ssd_store.embedding.embedding_table import EmbeddingTable, table_bytes
from gloader.ssd_store.embedding.initial_rows import InitialRows
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
    "EmbeddingTable",
    "FeatureStore",
    "FeatureWriter",
    "MissSource",
    "PackedMisses",
    "Packer",
    "RamFeatures",
    "InRamMisses",
    "InitialRows",
    "pack_buffers",
    "pack_bytes",
    "packer_memory_bytes",
    "load_misses",
    "in_ram_bytes",
    "table_bytes",
]
