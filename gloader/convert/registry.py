"""The registry of sources: each source's prefix, and the function that opens it.

A *source* is a graph in a foreign format, which a conversion turns into a gloader dataset. A user names a source by a
text such as ``ogb:ogbn-arxiv``: a prefix, a colon, and an argument. This text is called ``spec``. The command
``gloader prepare`` and the cache of prepared datasets call `open_source` to open the source. The cache also calls
`source_files`, to see whether the source's files have changed.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ConfigError, GloaderError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gloader.convert.keyed_graph import KeyedGraph
    from gloader.convert.options import SourceOptions
    from gloader.convert.source import AnySource

    Opener: TypeAlias = Callable[[str, SourceOptions], AnySource | KeyedGraph]
    PathFinder: TypeAlias = Callable[[str, SourceOptions], list[Path]]

# By prefix, three texts: the module below gloader.convert.sources, the module's function (argument, options) -> source,
# and the form of ``spec`` for messages. The registry has names instead of functions. So a module, which may need torch,
# is imported only for its own source. The argument is a file or a folder of files, except for the sources in `_DEEP`
# and `_NO_FILES`.
_OPENERS = {
    "ogb": ("ogb", "open_ogb", "ogb:NAME[@DIR]"),
    "npy": ("npy", "open_npy", "npy:DIR"),
    "edges": ("edge_source", "open_edges", "edges:FILE.parquet|csv"),
    "pyg": ("pyg", "open_pyg", "pyg:FILE"),
    "dgl": ("dgl", "open_dgl", "dgl:FILE"),
    "dglcsv": ("dgl_csv", "open_dgl_csv", "dglcsv:DIR"),
    "graphbolt": ("graphbolt", "open_graphbolt", "graphbolt:DIR"),
    "tables": ("graph_folder", "open_tables", "tables:DIR"),
    "triples": ("triples", "open_triples", "triples:FILE|DIR|train=FILE,valid=FILE,test=FILE"),
    "relbench": ("relbench", "open_relbench", "relbench:DIR"),
    "igb": ("igb", "open_igb", "igb:DIR"),
    "igbh": ("igb", "open_igbh", "igbh:DIR"),
    "mag240m": ("mag", "open_mag240m", "mag240m:DIR"),
    "mag240m-papers": ("mag", "open_papers", "mag240m-papers:DIR"),
    "builtin": ("digits", "open_builtin", "builtin:digits"),
    "synthetic": ("synthetic", "open_synthetic", "synthetic:demo|community,nodes=...|rmat,nodes=..."),
}
# Sources whose files are in subfolders of the argument, or in a folder that the source's module must find. The values
# are names of functions (argument, options) -> paths in that module. The paths are files, or folders that are read
# with all their subfolders.
_DEEP = {
    "ogb": "source_paths",
    "igb": "igb_paths",
    "igbh": "igbh_paths",
    "mag240m": "mag240m_paths",
    "mag240m-papers": "papers_paths",
    "tables": "source_paths",
    "triples": "source_paths",
    "relbench": "source_paths",
    "dglcsv": "source_paths",
    "graphbolt": "source_paths",
}
_NO_FILES = frozenset({"builtin", "synthetic"})  # sources without files
_OWN_LABELS = ("npy", "edges", "pyg", "dgl", "tables")  # sources whose labels may be classes or values
# The forms of all sources' texts, for messages.
SOURCE_FORMS: tuple[str, ...] = tuple(form for _, _, form in _OPENERS.values())


def is_source(spec: str) -> bool:
    """True if ``spec`` starts with a source's prefix, or is a file such as ``graph.yaml``. Otherwise, it is a path."""
    return is_description(spec) or (spec.partition(":")[0] in _OPENERS and ":" in spec)


def is_description(spec: str) -> bool:
    """True if ``spec`` is the path of a YAML file, which stands for ``tables:`` and this path."""
    with suppress(OSError, ValueError):  # the text may be an invalid path
        return (
            spec.endswith((".yaml", ".yml"))
            and spec.partition(":")[0] not in _OPENERS
            and not Path(spec).is_dir()
        )
    return False


def full_spec(spec: str) -> str:
    """Return ``spec`` with the short forms ``synthetic:demo`` and ``graph.yaml`` written out."""
    if is_description(spec):
        return f"tables:{spec}"
    if spec != "synthetic:demo":
        return spec
    from gloader.convert.sources.synthetic import DEMO_SPEC

    return f"synthetic:{DEMO_SPEC}"


def open_source(spec: str, options: SourceOptions) -> AnySource | KeyedGraph:
    """Open the source that ``spec`` names, such as ``ogb:ogbn-arxiv``. Nothing is converted yet.

    Raises
    ------
    ConfigError
        ``spec`` has no known prefix or nothing after it, or its edges lack requested times or features.
    SourceError
        The source is missing, incomplete or malformed.
    MissingDependencyError
        The source needs a package that is not installed.
    """
    spec = full_spec(spec)
    prefix, colon, argument = spec.partition(":")
    if prefix not in _OPENERS or not colon:
        raise ConfigError(_unknown(spec, prefix if colon else spec))
    module, function, form = _OPENERS[prefix]
    if not argument:
        raise ConfigError(f"source {spec!r} names nothing after the colon; write {form}")
    opener = getattr(import_module(f"gloader.convert.sources.{module}"), function)
    try:
        source = cast("Opener", opener)(argument, options)
    except GloaderError:
        raise
    # These errors come from invalid paths, and from damaged files that a reader does not detect itself.
    except (OSError, RuntimeError, *MALFORMED) as error:
        raise SourceError(f"{shown(spec)} cannot be read as a source: {str(error) or repr(error)}") from error
    _require_columns(source, options, spec)
    return source


def source_files(spec: str, options: SourceOptions) -> list[Path]:
    """Return all existing files that a conversion of ``spec`` would read, as sorted absolute paths.

    Raises
    ------
    ConfigError, SourceError
        As `open_source`, for errors in ``spec`` itself.
    """
    prefix, _, argument = full_spec(spec).partition(":")
    try:
        if prefix in _DEEP:
            module = import_module(f"gloader.convert.sources.{_OPENERS[prefix][0]}")
            paths = cast("PathFinder", getattr(module, _DEEP[prefix]))(argument, options)
        else:
            named = [] if prefix in _NO_FILES else [Path(argument)]
            # This option names columns, a file, or nothing. Only an existing file is found below.
            edge_features = Path(options.edge_features or "none")
            given = (options.features, options.labels, options.splits, options.nodes)
            paths = [*named, *filter(None, given), edge_features]
        found = [path.expanduser() for path in paths]
        below = "**/*" if prefix in _DEEP else "*"
        files = [file for path in found for file in _files_at(path, below) if file.is_file()]
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, or the home of an unknown user
        if isinstance(error, GloaderError):
            raise
        raise SourceError(f"{shown(spec)} names no file: {error}") from error
    return sorted(file.resolve() for file in files)


def _files_at(path: Path, below: str) -> Iterable[Path]:
    """Return a path's files: the file itself, a folder's files, or a pattern's matches.

    ``below`` is the glob for a folder: "*" for its own files, or "**/*" for those of its subfolders too.
    """
    from gloader.convert.readers.open_table import is_pattern

    if path.is_dir():
        return path.glob(below)
    return [path] if path.exists() or not is_pattern(path) else path.parent.glob(path.name)


def _require_columns(source: AnySource | KeyedGraph, options: SourceOptions, spec: str) -> None:
    """Raise ConfigError if ``options`` name edge ends, edge times or edge features that the source does not have."""
    from gloader.convert.source import GraphSource, Source  # imported late: it takes numpy

    if (options.nodes is not None or options.keys or options.dangling) and not spec.startswith("edges:"):
        raise ConfigError(
            f"--nodes, --keys and --dangling are about edges:FILE, and {shown(spec)} has no such file; a graph.yaml "
            "says file, key and dangling itself"
        )
    if options.task_tables is not None and not spec.startswith("relbench:"):
        raise ConfigError(
            f"--task-tables chooses tasks of relbench:DIR, and {shown(spec)} is no such folder; leave it out (a "
            "graph.yaml lists its tasks under tables)"
        )
    named = options.src or options.dst
    if named is not None and not spec.startswith("edges:"):
        raise ConfigError(
            f"--src and --dst name columns of edges:FILE, and {shown(spec)} has no such file; a graph.yaml says src "
            "and dst for each relation"
        )
    if options.labels_as is not None and spec.partition(":")[0] not in _OWN_LABELS:
        raise ConfigError(
            f"--labels-as is for labels in files of your own ({', '.join(f'{name}:' for name in _OWN_LABELS)}), and "
            f"{shown(spec)} knows its labels; leave it out"
        )
    # A `KeyedGraph` becomes a graph later, and `open_keyed` has checked its columns.
    if not isinstance(source, GraphSource | Source):
        return
    relations = source.graph().relations
    options.edge_names.require(
        has_times=any(each.edges.has_times for each in relations),
        has_features=any(each.edge_features is not None for each in relations),
        where=spec,
    )


def _unknown(spec: str, word: str) -> str:
    """Return the message for a text that is not a source. ``word`` is its prefix, which may be misspelled."""
    forms, is_dataset = ", ".join(SOURCE_FORMS), False
    with suppress(OSError, ValueError):  # the text may be an invalid path
        is_dataset = (Path(spec) / "dataset.json").is_file()
    if is_dataset:
        return f"{spec!r} is a prepared dataset, not a source; use it directly. Sources are: {forms}"
    from gloader.convert.readers.open_table import TRIPLES_SUFFIX, is_table, plain_suffix

    with suppress(OSError, ValueError, SourceError):
        if plain_suffix(Path(spec)) == TRIPLES_SUFFIX:
            return f"{shown(spec)} has triples, and is no source: it is one as triples:{spec}"
        if Path(spec).exists() and is_table(Path(spec)):
            return (
                f"{shown(spec)} is a table, and no source: as a list of edges it is edges:{spec}, and tables of nodes "
                "and edges are named in a graph.yaml, which is a source by its path"
            )
    nearest = get_close_matches(word.lower(), _OPENERS, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}:...? " if nearest else ""
    return f"{shown(spec)} is not a source: {hint}sources are {forms}"
