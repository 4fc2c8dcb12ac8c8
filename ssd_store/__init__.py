"""Feature rows on the SSD: file formats, writer, reader and I/O."""

if __name__ != "gloader.ssd_store":
    raise ImportError("import this package as gloader.ssd_store")

from gloader.ssd_store.ram import RamFeatures
from gloader.ssd_store.reader import FeatureStore
from gloader.ssd_store.writer import FeatureWriter

__all__ = ["FeatureStore", "FeatureWriter", "RamFeatures"]
