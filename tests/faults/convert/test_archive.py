from __future__ import annotations

import re
import resource
import signal
import stat
import zipfile

import pytest

from gloader.convert.downloads import ArchiveLimits, extract_archive
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


def refuse(archive, folder, message=None, error=UnsafeArchiveError, **limits):
    """Check that nothing appears anywhere below ``folder`` but what was there."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=message or re.escape(archive.name)):
        extract_archive(archive, folder / "data", limits=ArchiveLimits(**limits))
    assert sorted(folder.rglob("*")) == before


def test_a_zip_is_unpacked(tmp_path):
    content = bytes(range(256)) * 5000
    entries = (("raw/", b"", stat.S_IFDIR), ("raw/./deep/edge.csv.gz", content, stat.S_IFREG))
    path = make_zip(tmp_path / "archive.zip", *entries)
    extract_archive(path, tmp_path / "out" / "data")
    assert (tmp_path / "out/data/raw/deep/edge.csv.gz").read_bytes() == content
    assert (tmp_path / "out/data/data/first").read_bytes() == b"1"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["data"]


@pytest.mark.reliability("H1")
@pytest.mark.parametrize("name", EVIL_NAMES)
def test_a_name_that_leads_outside_is_refused(tmp_path, name):
    refuse(make_zip(tmp_path / "a.zip", (name, b"x", stat.S_IFREG)), tmp_path)


@pytest.mark.reliability("H1")
@pytest.mark.parametrize("mode", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
@pytest.mark.parametrize("link", ["/etc/passwd", "../../etc/passwd", "first"])
def test_links_and_devices_are_refused(tmp_path, mode, link):
    refuse(make_zip(tmp_path / "a.zip", ("evil", link.encode(), mode)), tmp_path, "link or a device")


@pytest.mark.reliability("H1")
def test_a_file_behind_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = ("door", str(tmp_path / "elsewhere").encode(), stat.S_IFLNK)
    refuse(make_zip(tmp_path / "a.zip", link, ("door/x", b"x", stat.S_IFREG)), tmp_path)


@pytest.mark.reliability("H1")
@pytest.mark.filterwarnings("ignore:Duplicate name")  # of zipfile, which makes them here
@pytest.mark.parametrize("names", [("x", "x"), ("x", "./x"), ("x", "x/y"), ("x/y", "x"), (".",)])
def test_a_member_that_overwrites_another_is_refused(tmp_path, names):
    refuse(make_zip(tmp_path / "a.zip", *((name, b"x", stat.S_IFREG) for name in names)), tmp_path)


@pytest.mark.reliability("H2")
def test_a_bomb_is_refused_by_what_it_declares(tmp_path):
    bomb = make_zip(tmp_path / "a.zip", ("zeros", bytes(100 << 20), stat.S_IFREG))
    refuse(bomb, tmp_path, r"holds more than 67\.1 MB at member 'zeros'")
    refuse(make_zip(tmp_path / "b.zip", ("x", b"123456", stat.S_IFREG)), tmp_path, max_bytes=5)


@pytest.mark.reliability("H2")
def test_a_bomb_is_refused_by_what_it_holds(tmp_path):
    """It lies: it declares less than it deflates to."""
    path = make_zip(tmp_path / "a.zip", ("liar", bytes(10_000), stat.S_IFREG))
    content = path.read_bytes()
    lie = content.replace((10_000).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    assert lie != content
    path.write_bytes(lie)
    refuse(path, tmp_path, error=(SourceError, UnsafeArchiveError))


@pytest.mark.reliability("H2")
def test_too_many_members_are_refused(tmp_path):
    many = [(f"{i}", b"", stat.S_IFREG) for i in range(50)]
    refuse(make_zip(tmp_path / "a.zip", *many), tmp_path, "declares 51 members", max_members=20)


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
    refuse(tmp_path / "a.zip", tmp_path, r"a\.zip cannot be read as a zip archive", SourceError)
    refuse(tmp_path / "nothing.zip", tmp_path, "does not exist", SourceError)
    whole = make_zip(tmp_path / "b.zip", ("big", bytes(range(256)) * 1000, stat.S_IFREG)).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    refuse(tmp_path / "cut.zip", tmp_path, r"cut\.zip cannot be read", SourceError)
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
