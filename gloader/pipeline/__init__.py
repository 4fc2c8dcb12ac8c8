"""A loader's stages, one verb per file, and the channels that connect the stages."""
