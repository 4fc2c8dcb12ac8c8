"""The 76 rows of the reliability scorecard: a fault or a bad input, and what gloader promises for it."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One row of the scorecard."""

    id: str
    fault: str
    promise: str


ROWS: tuple[Row, ...] = (
    Row("A1", "kill -9 while a store is created", "open refuses, re-creation succeeds"),
    Row("A2", "power loss: unsynced writes lost, torn or reordered", "open refuses or verification passes"),
    Row("A3", "disk full on data, manifest or fsync", "StoreWriteError, staging gone, old store untouched"),
    Row("A4", "short write, then EFBIG", "the write goes on, then as A3"),
    Row("A5", "fsync returns EIO", "fatal, no retry, target not created"),
    Row("A6", "the target exists", "StoreExistsError, or an atomic replacement"),
    Row("A7", "two creators on one path", "one wins, the other raises StoreLockedError"),
    Row("A8", "Ctrl-C or an exception while rows are appended", "propagates unchanged, nothing left"),
    Row("A9", "too few or too many rows, wrong width or dtype", "ShapeError with the row, nothing committed"),
    Row("A10", "NaN, Inf and denormal features", "stored and returned bit-exact"),
    Row("B1", "truncated feature file", "TruncatedStoreError at open"),
    Row("B2", "truncated after open", "the batch that needs it raises, no SIGBUS"),
    Row("B3", "one bit flipped in a data page", "ChecksumError with page, rows and offset"),
    Row("B4", "a bit flipped in manifest, header or checksums", "FormatError or ChecksumError at open"),
    Row("B5", "EIO on the n-th read", "StoreReadError with offset and errno"),
    Row("B6", "EINTR and short reads", "transparent: the same bytes"),
    Row("B7", "the file system refuses O_DIRECT", "one logged fallback, the same bytes"),
    Row("B8", "row size no multiple of a sector", "bytes equal the oracle's"),
    Row("B9", "read-only file system", "open, train and verify work, nothing written"),
    Row("B10", "another version, build or endianness", "VersionError with both versions"),
    Row("B11", "two processes on one store", "both correct, neither blocks"),
    Row("B12", "a directory, FIFO, link loop, missing, no permission", "StoreOpenError quickly"),
    Row("B13", "the file-descriptor limit is reached", "raises with advice, descriptors released"),
    Row("C1", "seed id out of range", "SeedError with up to five ids"),
    Row("C2", "neighbour id out of range, malformed indptr", "GraphError with the position"),
    Row("C3", "edge ids of the wrong dtype", "GraphError, casts only after a range check"),
    Row("C4", "duplicate edges", "kept as parallel edges; deduplicated on request"),
    Row("C5", "self loops", "kept, the node appears once"),
    Row("C6", "isolated seed, no edges, one node", "a valid batch with an empty hop"),
    Row("C7", "no seeds, an empty rank", "no batches and no threads; DDP refuses"),
    Row("C8", "duplicate seeds in a batch", "SeedError"),
    Row("C9", "fan-out 0, -1, above the degree, malformed", "defined meaning, or ConfigError"),
    Row("C10", "batch size 0, above the dataset, not dividing", "ConfigError, or exact counts"),
    Row("C11", "cache of 0, 1, all and more slots", "identical batches"),
    Row("C12", "a batch larger than the cache", "a valid plan, never evicts what the step reads"),
    Row("C13", "features or labels of the wrong length, dim 0", "ShapeError at construction"),
    Row("C14", "memory or spill budget too small", "BudgetError with needed and allowed bytes"),
    Row("C15", "unknown key, wrong type, stale recipe", "ConfigError with the nearest valid key"),
    Row("D1", "a sampler thread raises", "the same error in the caller, stage and batch noted"),
    Row("D2", "two stages raise together", "the first wins, the others are notes, threads joined"),
    Row("D3", "a stage raises SystemExit, MemoryError, Ctrl-C", "as D1, no silent thread death"),
    Row("D4", "Ctrl-C in mid-epoch", "KeyboardInterrupt within 5 s, nothing left"),
    Row("D5", "SIGTERM", "as D4, exit code 143"),
    Row("D6", "break, del, an exception in the loop body", "no hang, the next iteration starts clean"),
    Row("D7", "slow consumer, slow producer", "memory bounded, no busy wait"),
    Row("D8", "close() twice, from a thread, during a wait", "idempotent, the waiter is told"),
    Row("D9", "iteration after close; two live iterators", "LoaderClosedError, LoaderBusyError"),
    Row("D10", "a stuck read", "stacks are logged, then StallError"),
    Row("D11", "fork after threads started", "ForkError in the child"),
    Row("D12", "numba's workqueue threading layer", "works; no parallel kernels in the package"),
    Row("D13", "a buffer held while batches are pulled", "blocks, never overwrites"),
    Row("E1", "disk full during a spill", "SpillError, spill removed, store untouched"),
    Row("E2", "a spill record truncated or flipped", "ChecksumError with the batch"),
    Row("E3", "spill of a killed run", "removed by the next run; a live owner's is kept"),
    Row("E4", "two runs with one name and folder", "no collision"),
    Row("E5", "an invalid plan", "PlanError, never a wrong row"),
    Row("E6", "Belady's optimality", "misses equal the brute-force optimum"),
    Row("E7", "many batches, a short superbatch, one batch", "correct"),
    Row("F1", "resume at every step of two epochs", "the suffix is bit-identical"),
    Row("F2", "resume after kill -9", "the digest of an uninterrupted run"),
    Row("F3", "threads, prefetch, caches, policies, back ends", "one digest"),
    Row("F4", "world sizes 1, 2 and 4", "the union of rank batches is the single-rank batch"),
    Row("F5", "state of another dataset or configuration", "StateError with the field that differs"),
    Row("F6", "corrupted or edited state", "StateError"),
    Row("F7", "hash seed, locale, folder, global seeds changed", "the same digest"),
    Row("F8", "out of core against all in memory", "a bit-identical loss curve"),
    Row("G1", "a rank is killed in mid-epoch", "the others end, no orphans, spill cleaned"),
    Row("G2", "one rank's gather raises", "its error first, with the rank"),
    Row("G3", "uneven shards", "equal batch counts, no hang"),
    Row("G4", "ranks disagree on configuration", "all raise at start"),
    Row("G5", "restart after a lost rank", "resumes with the same digest"),
    Row("H1", "an archive that would write outside its folder", "UnsafeArchiveError before any byte"),
    Row("H2", "a decompression bomb, a million members", "refused by limits"),
    Row("H3", "a pickle payload in .pt, .npy, .npz", "not executed"),
    Row("H4", "a manifest with absurd shapes or paths", "FormatError without allocation"),
    Row("H5", "a download that is not what was expected", "nothing installed"),
)

# Rows that this version claims: an open one fails the run that asked for the report.
CLAIMED: tuple[str, ...] = (
    *(f"A{number}" for number in range(1, 11)),
    *(f"B{number}" for number in range(1, 14)),
    *(f"C{number}" for number in range(1, 16)),
    *(f"D{number}" for number in range(1, 14)),
    *(f"E{number}" for number in range(1, 8)),
    *(f"F{number}" for number in range(1, 9)),
    *(f"H{number}" for number in range(1, 6)),
)
