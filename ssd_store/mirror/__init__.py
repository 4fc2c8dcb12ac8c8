"""Datasets in object stores: a mirror on this disk, whose blocks are fetched on demand."""

from gloader.ssd_store.mirror.block_fetch import MirrorStats
from gloader.ssd_store.mirror.mirror_io import MirrorIO
from gloader.ssd_store.mirror.object_store import Limits, ObjectFacts, ObjectStore, open_objects
from gloader.ssd_store.mirror.open_mirror import open_mirror

__all__ = ["Limits", "MirrorIO", "MirrorStats", "ObjectFacts", "ObjectStore", "open_mirror", "open_objects"]
