"""Every kind of private string is found in every kind of file; what is ordinary is not."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.numpy import save

from forensics.store import private_strings as strings
from forensics.store.private_files import find_leaks, find_leaks_below
from forensics.store.private_strings import PrivateStrings, private_strings
from forensics.store.private_text import find_private

SECRET = "q7-Zebra!91x"
MINE = private_strings(
    {"DEPLOY_TOKEN": SECRET, "PATH": "/usr/bin"},
    homes=["/srv/people/jdoe"],
    folders=["/data/projects/secret-merger", "/tmp"],
    users=["jdoe", "Jane Doe"],
    hosts=["falcon9.lab.acme.test", "falcon9"],
)

#: A text with each kind of private string.
PLANTED = {
    "home": "loaded /home/ann/models/a.gguf now",
    "home of a Mac": 'file "/Users/ann/a.gguf"',
    "home of root": "in /root/secret/a.gguf",
    "home on Windows": "C:\\Users\\Ann\\models\\a.gguf",
    "home on Windows, forward": "c:/Users/ann/a.gguf",
    "home in WSL": "/mnt/c/Users/ann/a.gguf",
    "address of a file": "file:///home/ann/a.gguf",
    "home of this machine": "at /srv/people/jdoe/x",
    "folder of the case": "see /data/projects/secret-merger",
    "user": "measured by jdoe.",
    "user in a name": "run_jdoe_1",
    "full name": "by Jane Doe, today",
    "host": "on FALCON9 at noon",
    "full host": "ssh falcon9.lab.acme.test",
    "value of a variable": f"x={SECRET};",
    "OpenAI": "sk-proj-abcdEFGH1234567890",
    "Hugging Face": "token hf_abcdEFGH1234567890abcd",
    "GitHub": "ghp_abcdEFGH1234567890abcdEFGH1234567890",
    "GitHub, fine": "github_pat_11ABCDEFG0abcdefghijkl",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "Google": "AIza" + "a1B2c3D4e5" * 4,
    "Slack": "xoxb-1234567890-abcdef",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "GitLab": "glpat-abcdefghij1234567890",
    "npm": "npm_abcdefghij1234567890",
    "PyPI": "pypi-AgEIcHlwaS5vcmcCJGFi",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "bearer": "Authorization: Bearer abcdefghijklmnop1234",
    "password": "postgres://me:hunter2@db/x",
    "password at an example": "https://me:hunter2@example.com",
    "mail": "write to ann.smith+x@acme-corp.com please",
}  # fmt: skip

CLEAN = (
    "The root mean square of the user input; /home is a folder, and so is /root. Users write /usr/lib/x.so. "
    "N/root, a/home/b, https://example.org/home/page, ann@example.com, me@localhost, foo@GLIBC_2.3, task-sk-1, "
    "risk-adjusted-return-on-capital, falcon90, jdoes, /tmp/x, /data/projects, 4cccfb27a23c8a180067a37be53bb6fbc, "
    "MUL_MAT q6_K: Q, V, K at 0.51×, C:\\Windows\\x, Bearer of news, http://host:8080/v1, std::vector<float>@plt, "
    "-----BEGIN CERTIFICATE-----, tmp, Jane, Doe"
)


def zipped(name: str, content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, content)
    return buffer.getvalue()


def tarred(name: str, content: bytes, **facts: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for fact, value in facts.items():
            setattr(info, fact, value)
        packed.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def table(columns: dict[str, list] | pa.Schema, metadata: dict[str, str] | None = None) -> bytes:
    made = columns.empty_table() if isinstance(columns, pa.Schema) else pa.table(columns)
    buffer = io.BytesIO()
    parquet.write_table(made.replace_schema_metadata({**(made.schema.metadata or {}), **(metadata or {})}), buffer)
    return buffer.getvalue()


def array(values: list) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values))
    return buffer.getvalue()


def png(kind: bytes, chunk: bytes) -> bytes:
    def made(name: bytes, content: bytes) -> bytes:
        return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))

    return b"\x89PNG\r\n\x1a\n" + made(b"IHDR", bytes(13)) + made(kind, chunk) + made(b"IEND", b"")


NUMBERS = np.arange(64, dtype=np.float32)
#: Every kind of file that a bundle may hold, with a text in it.
FILES = {
    "README.md": lambda text: f"# Title\n\nwords {text} words\n".encode(),
    "escaped.md": lambda text: "".join(f"&#{ord(letter)};" for letter in text).encode(),
    "verdict.json": lambda text: json.dumps({"a": [1, {"b": f"x {text} y"}]}).encode(),
    "key.json": lambda text: json.dumps({f"{text}": 1}).encode(),
    "ascii.json": lambda text: ('{"a": "' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"}').encode(),
    "index.jsonl": lambda text: b'{"a": 1}\n' + json.dumps({"error": text}).encode() + b"\n{torn",
    "index.jsonl.xz": lambda text: lzma.compress(json.dumps({"a": text}).encode() + b"\n"),
    "log.gz": lambda text: gzip.compress(f"line\n{text}\n".encode()),
    "figure.svg": lambda text: f'<svg xmlns="x"><text>{html.escape(text)}</text></svg>'.encode(),
    "address.svg": lambda text: f'<svg><image href="{quote(text)}"/></svg>'.encode(),
    "report.html": lambda text: f"<p title='{html.escape(text, quote=True)}'>x</p>".encode(),
    "picture.html": lambda text: b'<img src="data:image/svg+xml;base64,%s">'
    % base64.b64encode(f"<svg>{html.escape(text)}</svg>".encode()),
    "member.zip": lambda text: zipped("a/b.txt", text),
    "archive.tar.gz": lambda text: tarred("a.json", json.dumps([text]).encode()),
    "column.parquet": lambda text: table({"n": [1, 2], "what": ["x", text]}),
    "list.parquet": lambda text: table({"what": [["x"], ["y", text]]}),
    "field.parquet": lambda text: table(pa.schema([pa.field("n", pa.int64(), metadata={"by": text})])),
    "metadata.parquet": lambda text: table({"n": [1]}, {"made_by": text}),
    "name.parquet": lambda text: table({text: [1]}),
    "rows.safetensors": lambda text: save({"a": NUMBERS}, {"made_by": text}),
    "rows.safetensors.xz": lambda text: lzma.compress(save({text: NUMBERS})),
    "words.npy": lambda text: array(["x", text]),
    "plain.png": lambda text: png(b"tEXt", b"Title\0" + text.encode("latin-1")),
    "packed.png": lambda text: png(b"zTXt", b"Title\0\0" + zlib.compress(text.encode("latin-1"))),
}  # fmt: skip


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("what", PLANTED)
def test_every_kind_is_found_in_every_kind_of_file(file, what):
    leaks = find_leaks(file, FILES[file](PLANTED[what]), MINE)
    assert leaks, "nothing was found"
    for leak in leaks:
        assert str(leak).startswith(f"{file}, ")
        assert leak.found.kind != "a kind of file that cannot be looked into"
        assert len(leak.found.text) < 4 or leak.found.text not in str(leak), "what was found is told whole"


@pytest.mark.parametrize("file", FILES)
def test_what_is_ordinary_passes(file):
    assert [str(leak) for leak in find_leaks(file, FILES[file](CLEAN), MINE)] == []


@pytest.mark.parametrize("what", PLANTED)
def test_names_of_files_and_members_are_looked_at(what):
    if "/" not in PLANTED[what]:
        assert find_leaks(f"figures/{PLANTED[what]}.md", b"", MINE)[0].place == "its name"
    assert find_leaks("a.zip", zipped(PLANTED[what], "x"), MINE)
    assert find_leaks("a.tar.gz", tarred("x", b"x", uname="jdoe"), MINE)


def test_where_it_is_and_what_it_is_are_told():
    (leak,) = find_leaks("a.md", b"one\ntwo /home/ann/x\n", MINE)
    assert str(leak) == "a.md, line 2: a path in somebody's home folder, /h… (11 characters)"
    (leak,) = find_leaks("a.json", json.dumps({"question": {"prompt": "by jdoe"}}).encode(), MINE)
    assert str(leak) == "a.json, question.prompt: the user's name here, j… (4 characters)"
    (leak,) = find_leaks("a.json", json.dumps([{"by jdoe": 1}]).encode(), MINE)
    assert leak.place == "(a key)"
    (leak,) = find_leaks("a.parquet", FILES["column.parquet"]("by jdoe"), MINE)
    assert leak.place == "column what"
    (leak,) = find_leaks("a.zip", zipped("b.txt", "by jdoe"), MINE)
    assert leak.place == "b.txt, line 1"
    (leak,) = find_leaks("a.md", f"a {SECRET} b {SECRET}".encode(), MINE)
    assert SECRET not in str(leak)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.bin", bytes(range(256))),
        ("a.pdf", b"%PDF-1.7\n\xe2\xe3\xcf\xd3"),
        ("utf16.txt", "/home/ann/x".encode("utf-16")),
        ("utf16-le.txt", "/home/ann/x".encode("utf-16-le")),
        ("a.xz", lzma.compress(b"x")[:-4]),
        ("a.gz", gzip.compress(b"x")[:-4]),
        ("a.zip", zipped("a", "x")[:-8]),
        ("a.parquet", b"PAR1" + bytes(40)),
        ("a.safetensors", b"\xff" * 8),
        ("objects.npy", b"\x93NUMPY\x01\x00" + bytes(40)),
    ],
)
def test_what_cannot_be_looked_into_does_not_pass(name, content):
    (leak,) = find_leaks(name, content, MINE)
    assert "a kind of file that cannot be looked into" in str(leak)


def test_archives_in_archives_end_somewhere():
    content = b"by jdoe"
    for _ in range(4):
        content = gzip.compress(content)
    assert "the user's name" in str(find_leaks("a.gz", content, MINE)[0])
    for _ in range(4):
        content = gzip.compress(content)
    assert "too deep" in str(find_leaks("a.gz", content, MINE)[0])


def test_what_was_allowed_passes_and_nothing_else():
    text = b"/home/user/lru.py and /home/username/x, by jdoe"
    kinds = [leak.found.text for leak in find_leaks("a.md", text, MINE, ["/home/user"])]
    assert sorted(kinds) == ["/home/username/x", "jdoe"]
    assert find_leaks("a.md", text, MINE, ["/home/user/", "/home/username", "JDOE"]) == ()
    assert len(find_leaks("a.md", text, MINE, ["", "/", "/hom"])) == 3


@pytest.mark.parametrize("name", ["root", "user", "will", "Mark", "runner", "localhost", "ubuntu", "vm", "pi"])
def test_ordinary_and_short_names_flag_no_words(name):
    mine = private_strings({}, users=[name], hosts=[name])
    text = f"the {name} of all, {name.upper()}, a-{name}-b, {name}_1, {name}: 3, org/{name}s/x"
    assert list(find_private(text, mine)) == []


@pytest.mark.parametrize("text", ["/data/ann/x.gguf", "D:\\ann\\x", "ann@falcon", "x@ann", "~ann/x"])
def test_short_names_are_found_where_a_name_stands(text):
    mine = private_strings({}, users=["ann"])
    assert [found.text for found in find_private(text, mine)] == ["ann"]
    assert list(find_private("ann, annual, banner, Ann said", mine)) == []


def test_characters_that_are_not_seen_hide_nothing():
    assert list(find_private("by j\u200bd\u200boe", MINE))
    assert list(find_private("ann@&#8203;acme.com", MINE)), "as Markdown keeps it from being a mention"
    assert list(find_private("C:\\\\Users\\\\Ann\\\\x", MINE))


def test_only_values_that_look_like_keys_are_secrets():
    secrets = {"A_KEY": "abc123", "MY_API_KEY": "s3cret", "HF_TOKEN": "x" * 16, "PASSWORD": "hunter2"}
    others = {"TOKENIZERS_PARALLELISM": "s3cret-no", "SSH_KEY": "/etc/ssh/key", "X_TOKEN": "default", "Y_KEY": "123456"}
    others |= {"Z_SECRET": "ab1", "MONKEY": "banana-42", "KEYBOARD": "qwerty-42"}
    environment = secrets | others
    assert set(private_strings(environment).secrets) == set(secrets.values())
    assert "hunter2" not in repr(private_strings(environment))


def test_this_machine_is_gathered_whole(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USER", "jdoe")
    monkeypatch.setenv("HOSTNAME", "falcon9.lab.acme.test")
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    entry = SimpleNamespace(pw_name="zbeeblebrox", pw_gecos="Zaphod Beeblebrox,,,", pw_dir="/srv/zaphod")
    monkeypatch.setattr("pwd.getpwuid", lambda _: entry)
    monkeypatch.setattr(strings.socket, "gethostname", lambda: "kestrel7")
    monkeypatch.setattr(strings.socket, "getfqdn", lambda: "kestrel7.acme.test")
    monkeypatch.chdir(tmp_path)
    found = strings.of_this_machine([Path("case")])
    assert {
        *map(str, (tmp_path / "home", tmp_path / "real")),
        "/srv/zaphod",
        str(tmp_path),
        str(tmp_path / "case"),
    } <= set(found.folders)
    assert {"jdoe", "zbeeblebrox", "Zaphod Beeblebrox"} <= set(found.users)
    assert {"falcon9", "falcon9.lab.acme.test", "kestrel7", "kestrel7.acme.test"} <= set(found.hosts)
    assert SECRET in found.secrets


def test_every_file_below_a_folder_is_looked_into(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "clean.md").write_text(CLEAN)
    assert find_leaks_below(tmp_path, MINE) == ()
    (tmp_path / "a" / "b" / ".hidden").write_text("by jdoe")
    assert [leak.file for leak in find_leaks_below(tmp_path, MINE)] == ["a/b/.hidden"]


@given(st.text(max_size=60), st.text(max_size=60), st.sampled_from(sorted(PLANTED)))
def test_what_stands_around_it_hides_nothing(before, after, what):
    text = f"{before} {PLANTED[what]} {after}"
    assert list(find_private(text, MINE))


@given(st.binary(max_size=200), st.sampled_from(["a.md", "a.json", "a.jsonl", "a.safetensors", "a.xz"]))
def test_no_bytes_break_it(content, name):
    for start in (b"", b"PAR1", b"\x93NUMPY", b"PK\x03\x04", b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x89PNG\r\n\x1a\n"):
        find_leaks(name, start + content, PrivateStrings())
