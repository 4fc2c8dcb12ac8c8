"""The stages of a loader, one verb per file, and the channels that connect them."""
