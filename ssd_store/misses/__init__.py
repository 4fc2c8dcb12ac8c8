"""Sources of the missing rows of a superbatch: direct reads, memory, packs."""
