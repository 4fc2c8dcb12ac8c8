"""A loader's stages (sample, inspect, stage, read, gather, send), one per file, and the channels between them."""
