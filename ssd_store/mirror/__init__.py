"""Datasets in object stores: a mirror on this disk whose blocks come when they are wanted."""

from gloader.ssd_store.mirror.limits import Limits
from gloader.ssd_store.mirror.mirror_io import MirrorIO
from gloader.ssd_store.mirror.objects import ObjectFacts, ObjectStore
from gloader.ssd_store.mirror.obstore_client import open_objects
from gloader.ssd_store.mirror.open_mirror import open_mirror
from gloader.ssd_store.mirror.stats import MirrorStats

__all__ = ["Limits", "MirrorIO", "MirrorStats", "ObjectFacts", "ObjectStore", "open_mirror", "open_objects"]
