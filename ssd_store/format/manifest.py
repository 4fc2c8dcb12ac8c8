"""The commit record for a directory with arrays: names, headers, row ranges, and a parser for untrusted bytes.

The commit record, or manifest, is the JSON file that lists a directory's arrays. It is written last, so a directory
with a record is complete. `Manifest` is the record, `ArrayRecord` its entry for one array, and `parse_manifest` reads
the bytes. A dataset (`dataset.json`) and a stand-alone feature store (`store.json`) differ only in the manifest's name.
docs/storage.md describes the bytes.

Array names become file names, in the folder of a node type, a relation, a link table or a task table. Every array file
begins with a ``.npy`` header padded to 4096 bytes. A page is 4 KiB of the data after it, and has a checksum in the
``.pages`` file. The digest is a hash of an array's page checksums.

Several machines may divide a dataset: each stores a part, a range of the rows of each feature matrix. The record then
lists the ranges. Offsets, page checksums and the digest are the full matrix's, and the file has a hole in place of each
missing page.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gloader.core.dtypes import STORED_DTYPES
from gloader.core.ids import MAX_PARTS, RowRanges
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import ChecksumError, FormatError, VersionError
from gloader.ssd_store.format.checksum import FORMAT_VERSION, PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from gloader.core.ids import HeldRows


# Folders in a dataset with several node types or relations (edge types): nodes/TYPE/ and
# relations/SOURCE__RELATION__DESTINATION/.
NODES: Final = "nodes"
RELATIONS: Final = "relations"
LINKS: Final = "links"  # links/NAME/ for a link table (edges to predict), also in a dataset with one type
TASKS: Final = "tables"  # tables/NAME/ for a task table (rows to predict), also in a dataset with one type
SEPARATOR: Final = "__"  # between source type, relation and destination type
# Longest folder name. File systems allow 255 bytes; the difference leaves room for copies under longer names.
MAX_FOLDER_LENGTH: Final = 240

ALLOWED: Final = "1 to 100 of the characters A-Z a-z 0-9 _ . -"  # a valid name, for messages
# A name becomes a file name: no folder, no hidden file, no dot or dash at the end.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,98}[A-Za-z0-9_])?")
_FOLDER = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,238}[A-Za-z0-9_])")


def is_plain_name(name: object) -> bool:
    """Return True if ``name`` may name an array or its file: letters, digits, ``_ . -``, no folder. Pure."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None and ".." not in name


def is_type_name(name: object) -> bool:
    """Return True if ``name`` may name a node type or a relation: a plain name without ``__``. Pure."""
    return isinstance(name, str) and is_plain_name(name) and SEPARATOR not in name


def is_array_name(name: object) -> bool:
    """Return True if ``name`` is a plain name, or in a type's, a relation's, a link or a task table's folder. Pure.

    Each part between slashes is checked, so a name cannot lead to any other folder, within the directory or outside.
    """
    if not isinstance(name, str):
        return False
    *folders, last = name.split("/", 3)  # three folders or more match no case below
    if not is_plain_name(last):
        return False
    match folders:
        case []:
            return True
        case [kind, folder] if kind in (NODES, LINKS, TASKS):
            return is_type_name(folder)
        case [kind, folder] if kind == RELATIONS:
            is_spelled = _FOLDER.fullmatch(folder) is not None and ".." not in folder
            return is_spelled and folder.count(SEPARATOR) >= 2
    return False


def is_in_folder(name: str) -> bool:
    """Return True if the array ``name`` is in a folder within its directory. Pure."""
    return "/" in name


def is_of_links(name: str) -> bool:
    """Return True if the array ``name`` belongs to a link table. Pure."""
    return name.startswith(f"{LINKS}/")


def is_of_tasks(name: str) -> bool:
    """Return True if the array ``name`` belongs to a task table. Pure."""
    return name.startswith(f"{TASKS}/")


def is_of_graph(name: str) -> bool:
    """Return True if the array ``name`` belongs to a node type or a relation. Pure."""
    return not is_of_links(name) and not is_of_tasks(name)


DATA_OFFSET: Final = 4096  # byte at which an array's elements begin in its file
MAX_NDIM: Final = 4  # maximum number of dimensions of an array
MAX_DATA_BYTES: Final = 2**62  # maximum bytes in an array, so that offsets fit int64

_MAGIC = b"\x93NUMPY\x01\x00"  # the first bytes of a ``.npy`` file of version 1
_PREFIX_BYTES = len(_MAGIC) + 2  # two more bytes hold the header's length


def stored_dtype(logical: str) -> np.dtype[np.generic]:
    """Return the stored numpy dtype for elements of dtype ``logical``. Pure.

    Raises
    ------
    FormatError
        The dtype cannot be stored.
    """
    try:
        return STORED_DTYPES[logical].stored
    except (KeyError, TypeError):
        raise FormatError(
            f"dtype {repr(logical)[:100]} cannot be stored; allowed: {', '.join(STORED_DTYPES)}"
        ) from None


def data_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return an array's element bytes without padding. Pure; exact for any size.

    Raises
    ------
    FormatError
        The dtype is unknown, a dimension is negative, or the size exceeds 2**62 bytes.
    """
    if len(shape) > MAX_NDIM:
        raise FormatError(
            f"shape {repr(shape)[:100]} has {len(shape)} dimensions; at most {MAX_NDIM} are allowed"
        )
    # These are Python ints: a product of huge lengths must not wrap before the comparison.
    total = stored_dtype(dtype).itemsize
    for length in shape:
        if not 0 <= length <= MAX_DATA_BYTES:
            raise FormatError(f"shape {shape} holds {length}; each length must lie in 0..2**62")
        total *= length
    if total > MAX_DATA_BYTES:
        raise FormatError(f"an array of shape {shape} and dtype {dtype} needs {total} bytes, above 2**62")
    return total


def file_bytes(num_bytes: int) -> int:
    """Return the file size for ``num_bytes`` in elements: the header page and whole pages. Pure."""
    return DATA_OFFSET + -(-num_bytes // DATA_OFFSET) * DATA_OFFSET


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the 4096 bytes before the data, the only valid header for such an array. Pure.

    Raises
    ------
    FormatError
        See `data_bytes`.
    """
    data_bytes(dtype, shape)  # checks the dtype and the shape
    # The header is written by hand: numpy's header differs between versions, and this one is compared byte by byte.
    lengths = ", ".join(str(int(length)) for length in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{STORED_DTYPES[dtype].descr}', 'fortran_order': False, 'shape': ({lengths}), }}"
    padded = text.ljust(DATA_OFFSET - _PREFIX_BYTES - 1) + "\n"
    return _MAGIC + len(padded).to_bytes(2, "little") + padded.encode("ascii")


# A required feature is a name in the record for something that a build must support to read the directory.
RANGES_FEATURE: Final = "row-ranges"  # an older build would mistake the holes for damage
_KEYS: Final = frozenset({"part", "of", "bounds"})


def ranges_to_json(ranges: RowRanges) -> dict[str, Any]:
    """Return the row ranges of the machines' parts in the form for a commit record. Pure."""
    return {
        "part": ranges.part,
        "of": ranges.of,
        "bounds": {name: list(bounds) for name, bounds in ranges.tables.items()},
    }


def parse_ranges(body: object, num_rows: Mapping[str, int], path: Path | str) -> RowRanges:
    """Return the row ranges in a commit record. Pure.

    Parameters
    ----------
    body : the record's entry "ranges", unchecked, in the form of `ranges_to_json`
    num_rows : N for each array that may be partly stored: a matrix with page checksums
    path : the record's path, for messages

    Raises
    ------
    FormatError
        The ranges are malformed, or contradict the arrays.
    """
    where = f"{path}: 'ranges'"
    if not isinstance(body, dict) or body.keys() != _KEYS:
        raise FormatError(f"{where} must be an object of part, of and bounds, not {shown(body)}")
    part, of = body["part"], body["of"]
    if type(of) is not int or not 1 <= of <= MAX_PARTS:
        raise FormatError(f"{where}: 'of' is {shown(of)}; it must be a whole number in 1..{MAX_PARTS}")
    if type(part) is not int or not 0 <= part < of:
        raise FormatError(f"{where}: 'part' is {shown(part)}; it must be a whole number in 0..{of - 1}")
    bounds = body["bounds"]
    if not isinstance(bounds, dict) or not bounds:
        raise FormatError(f"{where}: 'bounds' must be an object with an entry for each matrix of features")
    tables = {name: _checked_bounds(name, rows, of, num_rows, where) for name, rows in bounds.items()}
    return RowRanges(part=part, of=of, tables=tables)


def _checked_bounds(
    name: str, bounds: Any, of: int, num_rows: Mapping[str, int], where: str
) -> tuple[int, ...]:
    """Return the ``bounds`` of the matrix ``name`` as a tuple, or raise FormatError.

    Part i of the ``of`` parts has the rows ``bounds[i]`` to ``bounds[i + 1] - 1``.
    """
    if name not in num_rows:
        raise FormatError(f"{where}: {name[:100]!r} is no matrix with page checksums of this record")
    count = num_rows[name]
    is_list = isinstance(bounds, list) and all(type(row) is int for row in bounds)
    if (
        not is_list
        or len(bounds) != of + 1
        or bounds != sorted(bounds)
        or (bounds[0], bounds[-1]) != (0, count)
    ):
        raise FormatError(
            f"{where}: the bounds of {name!r} are {shown(bounds)}; they must be {of + 1} rows that ascend from 0 to "
            f"{count}"
        )
    return tuple(bounds)


JsonValue: TypeAlias = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None

FORMAT_NAME: Final = "gloader"
# Version 1 has another checksum, and most of its arrays have no page checksums.
READABLE_VERSIONS: Final = (1, FORMAT_VERSION)
BYTE_ORDER: Final = "little"
DATASET_MANIFEST: Final = "dataset.json"  # the record's name in a dataset
STORE_MANIFEST: Final = "store.json"  # the record's name in a stand-alone feature store
MANIFEST_NAMES: Final = (STORE_MANIFEST, DATASET_MANIFEST)
# The parser's limits lie far above any dataset, and far below any harm.
MAX_MANIFEST_BYTES: Final = 16 * 2**20
MAX_ARRAYS: Final = 10_000
FOLDERS_FEATURE: Final = "array-folders"  # arrays in the folders for types and relations
LINKS_FEATURE: Final = "link-tables"  # arrays in the folders for link tables
TASKS_FEATURE: Final = "task-tables"  # arrays in the folders for task tables
# Link tables whose relation the graph does not have. An older build would call the record damaged.
FREE_LINKS_FEATURE: Final = "free-links"
ROW_TIMES_FEATURE: Final = (
    "row-times"  # times of nodes; an older build would deliver batches without row ages
)
# Edge features and edge times. A build that ignored them would train without the features, or on edges after a seed's
# time.
EDGE_COLUMNS_FEATURE: Final = "edge-columns"
# Labels that are values (N, k) instead of classes (N,). An older build would refuse only their dtype, without a reason.
LABEL_VALUES_FEATURE: Final = "label-values"
KEYS_FEATURE: Final = "node-keys"  # keys of nodes; an older build would give ids in their place
EMBEDDING_FEATURE: Final = (
    "embedding-table"  # sorted runs of an embedding table, and rows in no run by a formula
)
# Advice in errors of files that are damaged or not readable. `embedding.damage` has other advice for embedding tables.
RESTORE: Final = "restore it from a copy or prepare it again"
VERIFY: Final = f"run `gloader verify`, then {RESTORE}"
CHECK_DEVICE: Final = "check the device and `gloader verify`"
# "int8-row-scale" is for int8 features with a float32 factor per row.
KNOWN_FEATURES: Final = frozenset(
    {
        "int8-row-scale",
        FOLDERS_FEATURE,
        LINKS_FEATURE,
        TASKS_FEATURE,
        FREE_LINKS_FEATURE,
        ROW_TIMES_FEATURE,
        EDGE_COLUMNS_FEATURE,
        KEYS_FEATURE,
        RANGES_FEATURE,
        LABEL_VALUES_FEATURE,
        EMBEDDING_FEATURE,
    }
)

_DIGEST = re.compile(r"[0-9a-f]{16}")
# Bytes of `_trailer`, the record's end. The SHA-256 takes 64 hexadecimal digits.
_TRAILER_BYTES = len(b',\n  "checksum": "') + 64 + len(b'"\n}\n')


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRecord:
    """One array's entry in the commit record."""

    name: str
    file: str  # within the directory: a basename, after the folder for its type or relation if it has one
    dtype: str  # logical dtype: a key in STORED_DTYPES
    shape: tuple[int, ...]
    num_bytes: int  # bytes in the elements; the file adds the header page and pads to whole pages
    digest: str  # 16 hexadecimal digits over the page checksums
    pages_file: str | None  # file with page checksums; None for a version-1 array without such a file
    version: int = FORMAT_VERSION  # the directory's version; not stored in the array's own record

    @property
    def num_pages(self) -> int:
        """Number of 4 KiB pages in the data region."""
        return -(-self.num_bytes // PAGE_BYTES)

    @property
    def file_bytes(self) -> int:
        """Size of the array's file."""
        return file_bytes(self.num_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes in one row (all but the first dimension)."""
        return data_bytes(self.dtype, self.shape[1:])

    def to_json(self) -> dict[str, JsonValue]:
        """Return the entry in the manifest's form. Pure."""
        return {
            "file": self.file,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "num_bytes": self.num_bytes,
            "digest": self.digest,
            "pages_file": self.pages_file,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The commit record for a directory with arrays."""

    kind: str  # "dataset", "feature_store" or "embedding_table"
    arrays: Mapping[str, ArrayRecord]
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values that the kind interprets
    required_features: tuple[str, ...] = ()
    created_by: str = "gloader"
    format_version: int = FORMAT_VERSION
    byte_order: str = BYTE_ORDER
    ranges: RowRanges | None = None  # the stored rows of partly stored matrices; None if all rows are stored

    def held_rows(self, name: str) -> HeldRows | None:
        """Return an array's stored rows, or None for all rows."""
        return None if self.ranges is None or name not in self.ranges.tables else self.ranges.rows(name)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the manifest as a JSON object, without its own checksum. Pure."""
        ranges: dict[str, JsonValue] = {}
        if self.ranges is not None:
            ranges["ranges"] = ranges_to_json(self.ranges)
        return {
            "format": FORMAT_NAME,
            "format_version": self.format_version,
            "kind": self.kind,
            "byte_order": self.byte_order,
            "page_bytes": PAGE_BYTES,
            "data_offset": DATA_OFFSET,
            "required_features": list(self.required_features),
            "created_by": self.created_by,
            **ranges,
            "arrays": {name: record.to_json() for name, record in self.arrays.items()},
            "metadata": dict(self.metadata),
        }

    def to_bytes(self) -> bytes:
        """Return the manifest file's content. Pure.

        Raises
        ------
        FormatError
            The metadata is not JSON, or the record would not be accepted when read back.
        """
        try:
            data = seal_manifest(self.to_json())
        except MALFORMED as error:
            raise FormatError(f"the metadata of a {self.kind} must be JSON values: {error}") from error
        parse_manifest(data, self.kind)  # a record that a reader would refuse must not be written
        return data


def seal_manifest(body: Mapping[str, JsonValue]) -> bytes:
    """Return ``body`` as manifest bytes that end in the SHA-256 over everything before it. Pure."""
    text = json.dumps(body, indent=2, ensure_ascii=True, allow_nan=False)
    # The checksum is the last member, so that it covers every earlier byte and the file stays JSON.
    head = text.removesuffix("\n}").encode("ascii")
    return head + _trailer(head)


def parse_manifest(data: bytes, path: Path | str) -> Manifest:
    """Parse a manifest file's content. Pure; allocates no more than a small multiple of ``data``.

    Parameters
    ----------
    data : the file's bytes
    path : the file's path, for messages

    Raises
    ------
    ChecksumError
        The bytes differ from the written bytes: a changed bit, a truncation or an addition.
    FormatError
        The bytes are intact but do not describe a directory with arrays.
    VersionError
        The record needs a version, a byte order or a feature that this build does not support.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(f"{path}: a manifest has at most {MAX_MANIFEST_BYTES} bytes, not {len(data)}")
    head = data[:-_TRAILER_BYTES]
    if not head or data[-_TRAILER_BYTES:] != _trailer(head):
        raise ChecksumError(
            f"{path}: the manifest does not match its own checksum: it is damaged or was edited by hand; "
            + RESTORE
        )
    # An intact record may come from another program, so every field is still checked.
    body = _load_json(data, path)
    # Versions are checked first, because a later version may have other fields.
    _check_versions(body, path)
    fields = _Fields(body, str(path))
    arrays = fields.mapping("arrays")
    if len(arrays) > MAX_ARRAYS:
        raise FormatError(f"{path}: a manifest lists at most {MAX_ARRAYS} arrays, not {len(arrays)}")
    version = fields.count("format_version")
    required = tuple(body["required_features"])
    records = {name: _parse_record(name, record, path, version) for name, record in arrays.items()}
    # A build without support for folders refuses the record by its features, before it reads a name.
    if any(map(is_in_folder, records)) and FOLDERS_FEATURE not in required:
        raise FormatError(f"{path}: arrays in folders need the required feature {FOLDERS_FEATURE!r}")
    if any(map(is_of_links, records)) and LINKS_FEATURE not in required:
        raise FormatError(f"{path}: link tables need the required feature {LINKS_FEATURE!r}")
    if any(map(is_of_tasks, records)) and TASKS_FEATURE not in required:
        raise FormatError(f"{path}: task tables need the required feature {TASKS_FEATURE!r}")
    _check_files_distinct(records, path)
    if ("ranges" in body) != (RANGES_FEATURE in required):
        raise FormatError(f"{path}: 'ranges' and the required feature {RANGES_FEATURE!r} go together")
    return Manifest(
        kind=fields.text("kind"),
        arrays=records,
        metadata=fields.mapping("metadata"),
        required_features=required,
        created_by=fields.text("created_by"),
        format_version=version,
        ranges=parse_ranges(body["ranges"], _rows_in_parts(records), path) if "ranges" in body else None,
    )


def _rows_in_parts(records: Mapping[str, ArrayRecord]) -> dict[str, int]:
    """Return N for each array that may be partly stored. Pure."""
    return {
        name: record.shape[0]
        for name, record in records.items()
        if len(record.shape) == 2 and record.pages_file is not None
    }


class _Fields:
    """Typed access to an untrusted JSON object's members.

    Each method returns the member ``key``. It raises FormatError if the member is missing or has another type.

    Parameters
    ----------
    body : the parsed JSON value
    where : beginning of each message, such as "PATH: array NAME"
    """

    __slots__ = ("_body", "_where")

    def __init__(self, body: object, where: str) -> None:
        if not isinstance(body, dict):
            raise FormatError(f"{where} must be a JSON object, not {type(body).__name__}")
        self._body: dict[str, Any] = body
        self._where = where

    def _get(self, key: str) -> object:
        if key not in self._body:
            raise FormatError(f"{self._where} has no {key!r}")
        return self._body[key]

    def _refuse(self, key: str, expected: str) -> FormatError:
        """Return the error for the member ``key``, which is not ``expected``."""
        return FormatError(f"{self._where}: {key!r} must be {expected}, not {repr(self._body[key])[:100]}")

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self._refuse(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self._get(key) is None else self.text(key)

    def count(self, key: str) -> int:
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._refuse(key, "a whole number from 0")
        return value

    def counts(self, key: str) -> tuple[int, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._refuse(key, "a list of whole numbers from 0")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, Any]:
        value = self._get(key)
        if not isinstance(value, dict):
            raise self._refuse(key, "an object")
        return value

    def only(self, keys: frozenset[str]) -> None:
        """Raise FormatError if the object has members other than ``keys``."""
        unknown = sorted(self._body.keys() - keys)
        if unknown:
            raise FormatError(f"{self._where} has unknown members {shown(unknown)}")


_RECORD_KEYS = frozenset({"file", "dtype", "shape", "num_bytes", "digest", "pages_file"})


def _parse_record(name: str, body: object, path: Path | str, version: int) -> ArrayRecord:
    """Return the array ``name``'s entry from the JSON value ``body``, or raise FormatError. Pure."""
    where = f"{path}: array {name[:100]!r}"
    if not is_array_name(name):
        raise FormatError(f"{where}: an array's name has {ALLOWED}")
    fields = _Fields(body, where)
    fields.only(_RECORD_KEYS)
    dtype, shape = fields.text("dtype"), fields.counts("shape")
    try:
        num_bytes = data_bytes(dtype, shape)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    if not shape:
        raise FormatError(f"{where}: a stored array has at least one dimension")
    if fields.count("num_bytes") != num_bytes:
        raise FormatError(
            f"{where}: {dtype} of shape {shape} needs {num_bytes} bytes, but the record's 'num_bytes' is "
            f"{fields.count('num_bytes')}"
        )
    digest = fields.text("digest")
    if not _DIGEST.fullmatch(digest):
        raise FormatError(f"{where}: the digest must have 16 hexadecimal digits, not {digest[:40]!r}")
    file, pages = fields.text("file"), fields.text_or_none("pages_file")
    # The files' names follow from the array's name, so a record cannot name a file outside its folder, or
    # another array's file. In version 1 the file of page checksums may be missing.
    allowed = {f"{name}.pages"} if version > 1 else {f"{name}.pages", None}
    if file != f"{name}.npy" or pages not in allowed:
        raise FormatError(
            f"{where}: its files must be {name}.npy and {name}.pages in the same folder, "
            f"not {file[:100]!r} and {str(pages)[:100]!r}"
        )
    return ArrayRecord(
        name=name,
        file=file,
        dtype=dtype,
        shape=shape,
        num_bytes=num_bytes,
        digest=digest,
        pages_file=pages,
        version=version,
    )


def _trailer(head: bytes) -> bytes:
    """Return the last member of a manifest, the SHA-256 over ``head``, the bytes before it. Pure."""
    return b',\n  "checksum": "' + hashlib.sha256(head).hexdigest().encode("ascii") + b'"\n}\n'


def _load_json(data: bytes, path: Path | str) -> dict[str, Any]:
    """Return the manifest's JSON object, or raise FormatError if ``data`` is none. Pure."""
    try:
        body = json.loads(data.decode("ascii"), object_pairs_hook=_distinct, parse_constant=_refuse_constant)
    except MALFORMED as error:
        raise FormatError(f"{path}: the manifest is not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise FormatError(f"{path}: not a gloader manifest: its 'format' is not {FORMAT_NAME!r}")
    return body


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, or raise ValueError if a name occurs twice. Called by `json.loads`. Pure."""
    # Parsers disagree about two members with the same name.
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member occurs twice")
    return members


def _refuse_constant(text: str) -> None:
    """Raise ValueError for NaN and Infinity, which Python's parser accepts."""
    raise ValueError(f"{text} is not JSON")


def _check_versions(body: dict[str, Any], path: Path | str) -> None:
    """Raise VersionError if this build does not support the record's version, layout or features."""
    fields = _Fields(body, str(path))
    version = fields.count("format_version")
    if version not in READABLE_VERSIONS:
        raise VersionError(
            f"{path}: written in format version {shown(version)} by {fields.text('created_by')[:100]!r}, this build "
            f"reads {' and '.join(map(str, READABLE_VERSIONS))}; use a matching build, or write the data anew"
        )
    expected = {"byte_order": BYTE_ORDER, "page_bytes": PAGE_BYTES, "data_offset": DATA_OFFSET}
    for key, value in expected.items():
        if body.get(key) != value:
            raise VersionError(f"{path}: {key} is {shown(body.get(key))}, this build reads {value!r} only")
    required = body.get("required_features")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise FormatError(f"{path}: 'required_features' must be a list of texts")
    unknown = [name for name in required if name not in KNOWN_FEATURES]
    if unknown:
        raise VersionError(
            f"{path}: needs features {shown(unknown)} that this build (format version {FORMAT_VERSION}) does "
            "not know; use a newer build"
        )


def _check_files_distinct(records: Mapping[str, ArrayRecord], path: Path | str) -> None:
    """Raise FormatError if two arrays have a file in common, or an array's file has the record's name."""
    files = [record.file for record in records.values()]
    files += [record.pages_file for record in records.values() if record.pages_file]
    # Some file systems ignore case: names that differ only in case would be one file there.
    folded = {name.casefold() for name in files}
    if len(folded) != len(files) or folded & set(MANIFEST_NAMES):
        raise FormatError(f"{path}: two arrays share a file")
