"""The rows of the reliability scorecard: a fault or a bad input, and what gloader promises for it."""

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
    Row("E2", "a spilled pack truncated or flipped", "ChecksumError with the batch"),
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
    Row(
        "J1",
        "any file of a dataset is damaged after it was opened",
        "the batch that reads the page raises, file and page named",
    ),
    Row("J2", "any file of an open dataset is cut short", "an exception, never a signal"),
    Row(
        "J3",
        "a sealed dataset with ids, labels or classes out of range",
        "refused with file, position and bound",
    ),
    Row(
        "J4", "a store or loader is used in a forked child", "right rows or ForkError, and the parent goes on"
    ),
    Row("J5", "several threads take from one iterator", "each batch once and whole, or an error"),
    Row(
        "J6",
        "a state or checkpoint of another run, one field at a time",
        "StateError or RankError that names the field",
    ),
    Row(
        "J7",
        "power loss in every commit of checkpoints, run folders, predictions",
        "old or new, never a mixture",
    ),
    Row("J8", "an older checkpoint beside the newest", "the newest complete one is taken"),
    Row("J9", "another user at the sockets, temporary names and spill folder", "refused"),
    Row("J10", "fuzz of every parser", "only a gloader error leaves, in time and memory"),
    Row("J11", "peak anonymous memory of every command and model", "the budget and a tenth or 64 MB"),
    Row("J12", "Ctrl-C at random moments; killed infer, report, prepare", "nothing printed, nothing left"),
    Row(
        "J13",
        "a rank is killed while the others are in a collective",
        "RankError that names it, soon, on all of them",
    ),
    Row("J14", "one flipped bit anywhere in a checkpoint", "CheckpointError"),
    Row(
        "J15",
        "resume beside an older run, with other settings, or twice at once",
        "refused, the difference named",
    ),
    Row(
        "J16",
        "prepare --overwrite under an open dataset; a source edited later",
        "old or an error; prepared again",
    ),
    Row(
        "J17",
        "an output folder or path that holds what others wrote",
        "nothing foreign is removed or replaced",
    ),
    Row("J18", "two-bit errors over all pairs of a page", "every one detected"),
    Row("J19", "small files that expand to all of memory", "refused within the budget"),
    # Passes over edges on the SSD.
    Row("K1", "a pass cannot read the edges, reads short, or they were cut", "an error behind good batches"),
    Row(
        "K2",
        "a bit of the edges flips",
        "file and page are named if the page is wanted, else nothing happens",
    ),
    Row(
        "K3",
        "the disk of passes is full or read-only, its budget too small",
        "needed and free bytes, nothing left",
    ),
    Row("K4", "what a pass wrote is damaged", "ChecksumError that names the pass, never a wrong batch"),
    Row("K5", "break, close, load_state_dict or Ctrl-C in the midst of a pass", "soon, and nothing is left"),
    Row("K6", "prepare --overwrite under a loader that sweeps", "the old edges or an error, never both"),
    Row("K7", "an id among the edges is no node, though checksums hold", "GraphError with its position"),
    Row("K8", "loaders that sweep side by side, and forked children of one", "right batches, nothing shared"),
    Row("K9", "kill -9 in the midst of a pass", "the next run removes its files and goes on bit for bit"),
    Row("K10", "a rank is killed while another sweeps for it", "RankError that names it, nothing left"),
    Row("K11", "any sizes of superbatches, threads, ranks and places to leave", "every run comes to its end"),
    # Graphs of several node types.
    Row(
        "L1",
        "a flipped bit in any file of a typed dataset, before it is opened or while it is loaded",
        "an error that names the type or relation, the right batches where nobody wants the page",
    ),
    Row("L2", "any file of a type or a relation is cut short", "an error that names it, never a signal"),
    Row("L3", "a typed dataset is replaced under a loader", "the old batches, or an error; never both"),
    Row(
        "L4",
        "the disk fills while rows of several tables are packed",
        "SpillError, what was staged of every table is gone",
    ),
    Row(
        "L5", "reading or sampling one relation fails", "that error behind the batches before it, stage named"
    ),
    Row(
        "L6", "Ctrl-C, SIGTERM or kill -9 in a typed epoch", "nothing left, the resumed batches are the same"
    ),
    Row("L7", "a read of the second table hangs", "StallError, stacks logged"),
    Row(
        "L8",
        "batches that are large in one type alone",
        "larger buffers, or needed and allowed bytes by type",
    ),
    Row("L9", "a budget that is too small for several types", "BudgetError with needed and allowed bytes"),
    Row("L10", "two typed loaders at once, one in a forked child", "right batches, ForkError in the child"),
    Row(
        "L11",
        "seeds of no labelled node, of nodes without in-edges, or none",
        "valid batches of every type and relation",
    ),
    Row(
        "L12",
        "a state of a typed loader at every step",
        "the rest is bit-identical, other loaders' are refused",
    ),
    Row("L13", "threads, places of rows and edges, ranks of a typed loader", "one digest"),
    Row(
        "L14",
        "a hostile graph.yaml or typed record, from the command line",
        "one line, nothing run or written",
    ),
)
