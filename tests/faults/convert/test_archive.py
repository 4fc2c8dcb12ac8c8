from __future__ import annotations

import gzip
import io
import re
import resource
import signal
import stat
import tarfile
import zipfile

import pytest

from gloader.convert.archive import ArchiveLimits, extract_archive
from gloader.errors import SourceError, StoreExistsError, StoreWriteError, UnsafeArchiveError

EVIL_NAMES = [
    "../x",
    "../data_evil/x",  # a sibling whose name starts like the target's
    "a/../../x",
    "/tmp/absolute",  # noqa: S108
    "..",
    "a\\..\\..\\x",
    "C:/x",
]


def make_zip(path, *entries):
    """Write (name, content, mode) entries; a harmless member stands first, to be seen if anything is written."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in (("data/first", b"1", stat.S_IFREG), *entries):
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


def make_tar(path, *entries, mode="w:gz"):
    """Write (TarInfo, content) entries behind a harmless one."""
    with tarfile.open(path, mode) as archive:
        for info, content in ((tarfile.TarInfo("data/first"), b"1"), *entries):
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tar_entry(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b"x" if kind == tarfile.REGTYPE else b""


def refuse(archive, folder, message=None, error=UnsafeArchiveError, **limits):
    """Check that nothing appears anywhere below ``folder`` but what was there."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=message or re.escape(archive.name)):
        extract_archive(archive, folder / "data", limits=ArchiveLimits(**limits))
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_archives_are_unpacked(tmp_path, suffix):
    path = tmp_path / f"archive.{suffix}"
    content = bytes(range(256)) * 5000
    if suffix == "zip":
        make_zip(path, ("raw/", b"", stat.S_IFDIR), ("raw/./deep/edge.csv.gz", content, stat.S_IFREG))
    else:
        mode = {"tar": "w", "tar.gz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[suffix]
        entry = (tarfile.TarInfo("raw/deep/edge.csv.gz"), content)
        make_tar(path, tar_entry("raw", tarfile.DIRTYPE), entry, mode=mode)
    extract_archive(path, tmp_path / "out" / "data")
    assert (tmp_path / "out/data/raw/deep/edge.csv.gz").read_bytes() == content
    assert (tmp_path / "out/data/data/first").read_bytes() == b"1"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["data"]


@pytest.mark.reliability("H1")
@pytest.mark.parametrize("name", EVIL_NAMES)
def test_a_name_that_leads_outside_is_refused(tmp_path, name):
    refuse(make_zip(tmp_path / "a.zip", (name, b"x", stat.S_IFREG)), tmp_path)
    refuse(make_tar(tmp_path / "a.tar.gz", tar_entry(name)), tmp_path)


@pytest.mark.reliability("H1")
@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "../../etc/passwd"),
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "first"),
        (tarfile.LNKTYPE, "../../etc/passwd"),
        (tarfile.LNKTYPE, "data/first"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind, link):
    refuse(make_tar(tmp_path / "a.tar", tar_entry("data/evil", kind, link), mode="w"), tmp_path)


@pytest.mark.reliability("H1")
@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_in_a_zip_are_refused(tmp_path, mode):
    refuse(make_zip(tmp_path / "a.zip", ("evil", b"/etc/passwd", mode)), tmp_path, "link or a device")


@pytest.mark.reliability("H1")
def test_a_file_behind_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tar_entry("door", tarfile.SYMTYPE, str(tmp_path / "elsewhere"))
    refuse(make_tar(tmp_path / "a.tar", link, tar_entry("door/x"), mode="w"), tmp_path)


@pytest.mark.reliability("H1")
@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("x", "x/y"), ("x/y", "x"), (".",)])
def test_a_member_that_overwrites_another_is_refused(tmp_path, names):
    refuse(make_tar(tmp_path / "a.tar", *(tar_entry(name) for name in names), mode="w"), tmp_path)


@pytest.mark.reliability("H2")
def test_a_bomb_is_refused_by_what_it_declares(tmp_path):
    bomb = make_zip(tmp_path / "a.zip", ("zeros", bytes(100 << 20), stat.S_IFREG))
    refuse(bomb, tmp_path, r"holds more than 67\.1 MB at member 'zeros'")
    refuse(make_tar(tmp_path / "a.tar.gz", (tarfile.TarInfo("zeros"), bytes(100 << 20))), tmp_path)
    refuse(make_zip(tmp_path / "b.zip", ("x", b"123456", stat.S_IFREG)), tmp_path, max_bytes=5)


@pytest.mark.reliability("H2")
def test_a_bomb_is_refused_by_what_it_holds(tmp_path):
    """Both lie: the zip declares less than it deflates to, the tar hides its size in a header."""
    path = make_zip(tmp_path / "a.zip", ("liar", bytes(10_000), stat.S_IFREG))
    content = path.read_bytes()
    lie = content.replace((10_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lie != content
    path.write_bytes(lie)
    refuse(path, tmp_path, error=(SourceError, UnsafeArchiveError))

    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(1 << 20))
    refuse(tmp_path / "a.tar.gz", tmp_path, "header of|unpacks to more")


@pytest.mark.reliability("H2")
def test_too_many_members_are_refused(tmp_path):
    many = [(f"{i}", b"", stat.S_IFREG) for i in range(50)]
    refuse(make_zip(tmp_path / "a.zip", *many), tmp_path, "declares 51 members", max_members=20)
    entries = [tar_entry(str(i)) for i in range(50)]
    refuse(make_tar(tmp_path / "a.tar", *entries, mode="w"), tmp_path, "more than 20", max_members=20)


@pytest.mark.reliability("H2")
def test_a_million_members_are_refused_without_reading_their_directory(tmp_path):
    """The directory itself is missing: only its declared size can have been looked at."""
    end = b"PK\x06\x06" + (44).to_bytes(8, "little") + bytes(12) + (10**6).to_bytes(8, "little") * 2
    end += (46 * 10**6).to_bytes(8, "little") + bytes(8)
    locator = b"PK\x06\x07" + bytes(4) + (0).to_bytes(8, "little") + (1).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(end + locator + b"PK\x05\x06" + bytes(4) + b"\xff" * 12 + bytes(2))
    refuse(tmp_path / "a.zip", tmp_path, "declares 1000000 members")


def test_a_damaged_archive_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 not really")
    refuse(tmp_path / "a.zip", tmp_path, r"a\.zip cannot be read as a zip or tar", SourceError)
    refuse(tmp_path / "nothing.zip", tmp_path, "does not exist", SourceError)
    whole = make_tar(tmp_path / "a.tar.gz", (tarfile.TarInfo("big"), bytes(range(256)) * 1000)).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    refuse(tmp_path / "cut.tar.gz", tmp_path, r"cut\.tar\.gz cannot be read", SourceError)
    path = make_zip(tmp_path / "crc.zip", ("x", b"\x01\x02\x03" * 999, stat.S_IFREG))
    content = bytearray(path.read_bytes())
    content[content.index(b"x", 30) + 4] ^= 0xFF
    path.write_bytes(content)
    refuse(path, tmp_path, "cannot be read", SourceError)


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "data").mkdir()
    refuse(make_zip(tmp_path / "a.zip"), tmp_path, "exists; remove it", StoreExistsError)


def test_a_full_disk_is_told_from_a_damaged_archive(tmp_path):
    """A file size limit stands in for a full disk: both fail the write."""
    archive = make_zip(tmp_path / "a.zip", ("x", b"123" * 99999, stat.S_IFREG))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        refuse(archive, tmp_path, "cannot be written: File too large; nothing was unpacked", StoreWriteError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
