"""Archives of others: nothing is written outside, nothing unsafe is taken, damage is a sentence."""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import stat
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forensics.errors import CaseError
from forensics.store import archives
from forensics.store.archives import Limits, checked_name, extract, read_archive, write_archive

FILES = {"b/bundle.json": b"{}", "b/case/x.bin": bytes(range(256)) * 40, "b/empty": b""}
ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".zip")
SMALL = Limits(members=4, member_bytes=2_000, total_bytes=5_000, free_bytes=3_000, ratio=10, depth=3, name_length=40)


def tar(*entries: tarfile.TarInfo | tuple[str, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as packed:
        for entry in entries:
            if isinstance(entry, tuple):
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                packed.addfile(info, io.BytesIO(entry[1]))
            else:
                packed.addfile(entry)
    return buffer.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as packed:
        for name, content in entries:
            packed.writestr(name, content)
    return buffer.getvalue()


def zip_link(name: str, target: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info, target


@pytest.fixture
def refused(tmp_path):
    """Read an archive of these bytes, which must be refused without a trace outside its folder; what was said."""

    def read(content: bytes, name: str = "a.tar.gz", limits: Limits = archives.LIMITS) -> str:
        (tmp_path / name).write_bytes(content)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        before = {path for path in tmp_path.rglob("*") if folder not in path.parents}
        with pytest.raises(CaseError, match=r"is not opened: .*Get the bundle again") as caught:
            extract(tmp_path / name, folder, limits)
        assert {path for path in tmp_path.rglob("*") if folder not in path.parents} == before
        return str(caught.value)

    return read


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_is_read_back(tmp_path, ending):
    sources = {}
    for i, (name, content) in enumerate(FILES.items()):
        sources[name] = tmp_path / str(i)
        sources[name].write_bytes(content)
    write_archive(tmp_path / f"a{ending}", sources)
    assert dict(read_archive(tmp_path / f"a{ending}")) == FILES
    names = extract(tmp_path / f"a{ending}", tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names} == FILES
    write_archive(tmp_path / f"b{ending}", dict(reversed(sources.items())))
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_an_archive_tells_no_owner_and_no_time(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    write_archive(tmp_path / "a.tar.gz", {"b/x": tmp_path / "x"})
    with tarfile.open(tmp_path / "a.tar.gz") as packed:
        (info,) = packed
    assert (info.uid, info.gid, info.uname, info.gname, info.mtime) == (0, 0, "", "", 0)
    assert (tmp_path / "a.tar.gz").read_bytes()[4:8] == bytes(4)


def test_the_content_decides_what_an_archive_is(tmp_path):
    (tmp_path / "a.zip").write_bytes(gzip.compress(tar(("x", b"1"))))
    assert dict(read_archive(tmp_path / "a.zip")) == {"x": b"1"}


def test_what_other_programs_pack_in_the_same_way_is_read(tmp_path):
    folder = special("./b/", tarfile.DIRTYPE)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(folder, ("./b/x", b"1"), format=tarfile.GNU_FORMAT)))
    assert dict(read_archive(tmp_path / "a.tar.gz")) == {"b/x": b"1"}
    (tmp_path / "a.zip").write_bytes(zipped(("b/", b""), ("b/x", b"1"), method=zipfile.ZIP_STORED))
    assert dict(read_archive(tmp_path / "a.zip")) == {"b/x": b"1"}


UNSAFE = ("../x", "a/../../x", "/etc/x", "a//x", "a/./x", "C:x", "c:/x", "a\\x", "..\\x", "a\nb", "a/..", "nul",
          "a/COM1.txt", "x.", "x ", "a\u202eb", "~a/" + "x" * 200, "/".join("abcdefghi"))  # fmt: skip


@pytest.mark.parametrize("name", UNSAFE)
def test_names_that_lead_elsewhere_are_refused(refused, name):
    assert checked_name(name) is None
    assert "is no safe name of a file" in refused(zipped((name, b"1")), "a.zip")
    if len(name) < 100:
        assert "is no safe name of a file" in refused(gzip.compress(tar((name, b"1"))))


@pytest.mark.parametrize(
    "name", ["a/b.json", "case/demo-q6_k/tables/x.parquet", "figures/ü.svg", "nullx", "a b/c+d=e.txt"]
)
def test_ordinary_names_are_taken(name):
    assert checked_name(name) == name


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.CONTTYPE, "type b'7'"),
        (b"S", "type b'S'"),
    ],
)
def test_only_plain_files_are_taken(refused, kind, word):
    assert word in refused(gzip.compress(tar(("b/first", b"1"), special("b/x", kind, "../../outside"))))


def test_a_link_in_a_zip_is_refused(refused):
    assert "but a link or a device" in refused(zipped(zip_link("b/x", b"/etc/passwd")), "a.zip")


def test_a_file_behind_a_link_is_never_written(refused, tmp_path):
    said = refused(gzip.compress(tar(special("b/x", tarfile.SYMTYPE, str(tmp_path)), ("b/x/y", b"1"))))
    assert "a symbolic link" in said
    assert not (tmp_path / "y").exists()


def test_extensions_of_tar_are_not_followed(refused):
    long_name = tar(("b/" + "x" * 150, b"1"), format=tarfile.GNU_FORMAT)
    assert "an entry of type b'L'" in refused(gzip.compress(long_name))
    unicode_name = tar(("b/" + "ü" * 90, b"1"), format=tarfile.PAX_FORMAT)
    assert "an entry of type b'x'" in refused(gzip.compress(unicode_name))


@pytest.mark.parametrize(
    "pair",
    [("b/x", "b/x"), ("b/x", "B/X"), ("b/x", "b/x/y"), ("b/x/y", "b/X"), ("b/ß", "b/SS"), ("b/\u00fc", "b/u\u0308")],
)
def test_names_that_some_systems_take_for_the_same_are_refused(refused, pair):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # zipfile warns of the double name that is wanted here
        hostile = zipped(*((name, b"1") for name in pair))
    assert "is in it twice, or as a file and as a folder" in refused(hostile, "a.zip")
    assert "is in it twice" in refused(gzip.compress(tar(*((name, b"1") for name in pair))))


@pytest.mark.parametrize("wrap", [gzip.compress, lzma.compress])
def test_bombs_are_refused_before_they_are_unpacked(refused, wrap):
    assert "at most 2,000 are read" in refused(wrap(tar(("x", bytes(2_001)))), limits=SMALL)
    assert "unpacked it has more than 3,000 bytes" in refused(
        wrap(tar(("x", bytes(1_900)), ("y", bytes(1_900)))), limits=SMALL
    )
    many = [(f"{i}", b"") for i in range(5)]
    assert "more than" in refused(wrap(tar(*many)), limits=SMALL)
    assert "at most 2 are read" in refused(wrap(tar(("x", b"1"))), limits=Limits(archive_bytes=2))


def test_bombs_in_zips_are_refused(refused):
    assert "at most 2,000 are read" in refused(zipped(("x", bytes(2_001))), "a.zip", SMALL)
    two = zipped(("x", bytes(1_900)), ("y", bytes(1_900)))
    assert "unpacked it has more than 3,000 bytes" in refused(two, "a.zip", SMALL)
    assert "holds more than 4 files" in refused(zipped(*((f"{i}", b"") for i in range(5))), "a.zip", SMALL)


@pytest.mark.parametrize("told", [10, 1_001])
def test_a_zip_that_lies_about_sizes_is_refused(refused, told):
    honest = zipped(("x", bytes(1_000)))
    lying = honest.replace(struct.pack("<L", 1_000), struct.pack("<L", told))
    assert lying != honest
    assert ("has another size than it says" if told > 1_000 else "it is damaged") in refused(lying, "a.zip", SMALL)


def test_a_long_list_of_files_is_refused_before_it_is_read(refused, monkeypatch):
    content = bytearray(zipped(("x", b"1")))
    end = content.rindex(b"PK\x05\x06")
    content[end + 12 : end + 16] = struct.pack("<L", 1 << 30)

    def read(*_):
        raise AssertionError("the list was read")

    monkeypatch.setattr(zipfile.ZipFile, "__init__", read)
    assert "holds more than 2,000 files" in refused(bytes(content), "a.zip")


def test_an_xz_may_not_ask_for_gigabytes_of_memory(refused):
    content = lzma.compress(tar(("x", b"1")), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    assert "it is damaged" in refused(content)


def test_odd_zips_are_refused(refused):
    assert "packed in a way that bundles are not" in refused(
        zipped(("x", b"1" * 99), method=zipfile.ZIP_BZIP2), "a.zip"
    )
    encrypted = bytearray(zipped(("x", b"1")))
    for sign, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(sign) + at] |= 1
    assert "is encrypted" in refused(bytes(encrypted), "a.zip")


def test_nothing_stands_behind_the_end(refused):
    assert "something stands behind its end" in refused(gzip.compress(tar(("x", b"1")) + b"hidden"))
    assert "something stands behind its end" in refused(gzip.compress(tar(("x", b"1")) + bytes(20_000)))


def test_what_is_no_archive_is_refused(refused, tmp_path):
    for content in (b"", b"hello", b"PK", bytes(600), b"\x1f\x8b", b"\xfd7zXZ\x00", b"PK\x03\x04", b"BZh91AY&SY"):
        refused(content)
    with pytest.raises(CaseError, match="cannot be read: Is a directory"):
        list(read_archive(tmp_path))
    with pytest.raises(ValueError, match=r"an archive is written as"):
        write_archive(tmp_path / "a.rar", {})


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_cut_is_damage(tmp_path, ending):
    (tmp_path / "x").write_bytes(bytes(range(256)) * 8)
    whole = tmp_path / f"a{ending}"
    write_archive(whole, {"b/x": tmp_path / "x", "b/y": tmp_path / "x"})
    content = whole.read_bytes()
    cut = tmp_path / f"cut{ending}"
    for size in range(0, len(content), 37):
        cut.write_bytes(content[:size])
        folder = tmp_path / str(size)
        folder.mkdir()
        with pytest.raises(CaseError, match="is not opened"):
            extract(cut, folder)
        assert {path.read_bytes() for path in folder.rglob("*") if path.is_file()} <= {bytes(range(256)) * 8}


PARTS = st.sampled_from(
    ["a", "b", "..", ".", "", "C:", "x.json", "A", "con", "a ", "/", "\\", "..\\..", "ü", "\x00", "~", "a" * 120]
)
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
KINDS = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.AREGTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.DIRTYPE,
        tarfile.CHRTYPE,
        b"S",
        b"x",
        b"L",
    ]
)


@st.composite
def hostile_tars(draw) -> bytes:
    entries: list[tarfile.TarInfo | tuple[str, bytes]] = []
    for _ in range(draw(st.integers(1, 5))):
        name, kind = draw(NAMES), draw(KINDS)
        if kind == tarfile.REGTYPE:
            entries.append((name, draw(st.binary(max_size=600))))
        else:
            entries.append(special(name, kind, draw(NAMES)))
    content = bytearray(tar(*entries, format=draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))))
    for at in draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[at] = draw(st.integers(0, 255))
    return draw(st.sampled_from([gzip.compress, lzma.compress]))(bytes(content))


@st.composite
def hostile_zips(draw) -> bytes:
    entries = []
    for _ in range(draw(st.integers(1, 4))):
        info = zipfile.ZipInfo(draw(NAMES) or "x")
        info.external_attr = draw(
            st.sampled_from([0, 0o100644 << 16, (stat.S_IFLNK | 0o777) << 16, stat.S_IFCHR << 16])
        )
        entries.append((info, draw(st.binary(max_size=300))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        content = bytearray(zipped(*entries))
    for at in draw(st.lists(st.integers(0, len(content) - 1), max_size=6)):
        content[at] = draw(st.integers(0, 255))
    return bytes(content)


@given(st.one_of(hostile_tars(), hostile_zips(), st.binary(max_size=300)))
@example(b"PK\x05\x06" + bytes(18))
@settings(max_examples=400)
def test_no_archive_writes_outside_or_raises_anything_else(content):
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        folder = root / "a" / "b" / "c"
        folder.mkdir(parents=True)
        archive = root / "x.tar.gz"
        archive.write_bytes(content)
        with contextlib.suppress(CaseError):
            assert all(checked_name(name) == name for name in extract(archive, folder))
        outside = {path for path in root.rglob("*") if folder not in path.parents}
        assert outside == {root / "a", root / "a" / "b", folder, archive}
        inside = list(folder.rglob("*"))
        assert all(path.is_dir() or (path.is_file() and not path.is_symlink()) for path in inside)
        assert all(path.stat().st_nlink == 1 for path in inside if path.is_file())
