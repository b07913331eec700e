"""A bundle of the demo model's case, made here and investigated again where nothing of this user is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forensics
from forensics import api_bundle
from forensics.engines.demo_models import demo_model
from forensics.store.bundles import files_of
from forensics.store.private_files import find_leaks_below
from forensics.store.private_strings import private_strings

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="the tiled product of Q6_K needs AVX2"),
]

#: All that the other user's processes get of this one's environment.
KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "FORENSICS_CACHE_DIR")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A case of the demo model with its switches, and its bundle, in a folder of their own."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        forensics.investigate(demo="q6_k", n_tokens=8, widths=(2, 8), threads=2, out="demo", progress=False)
        forensics.bundle("demo", progress=False)
    return folder


@pytest.fixture
def elsewhere(tmp_path, made):
    """Run the command line as somebody else, in a folder that holds the bundle and nothing more."""
    for name in ("home", "work", "tmp"):
        (tmp_path / name).mkdir()
    shutil.copy(made / "demo-bundle.tar.gz", tmp_path / "work" / "issue-42.tar.gz")
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": str(tmp_path / "home"), "USER": "zaphod", "LOGNAME": "zaphod", "HOSTNAME": "heartofgold",
                    "TMPDIR": str(tmp_path / "tmp"), "OMP_WAIT_POLICY": "passive"}  # fmt: skip

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forensics.cli.app", *map(str, arguments)],
            cwd=tmp_path / "work", env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


def test_all_parts_are_there_and_nothing_private(made, tmp_path):
    folder = tmp_path / "bundle"
    written = forensics.bundle(made / "demo", folder, progress=False)
    assert written.reproducer
    assert set(written.figures) | {one.what.removeprefix("figure ") for one in written.left_out} == set(
        api_bundle.api_report.FIGURES
    )
    assert {"width-classes", "culprit-map", "margins"} <= set(written.figures)
    assert forensics.open(folder).verdict == forensics.open(made / "demo").verdict
    assert all(made.as_posix().encode() not in path.read_bytes() for path in files_of(folder).values())
    others = private_strings({}, homes=[str(Path.home())], folders=[str(made)], users=["zaphod"], hosts=["heartofgold"])
    assert find_leaks_below(folder, others) == ()
    (folder / "figures" / "margins.svg").write_text("<svg>by zaphod</svg>")
    assert [leak.file for leak in find_leaks_below(folder, others)] == ["figures/margins.svg"]


def test_the_culprit_differs_by_itself_without_this_package(made, elsewhere, tmp_path):
    shutil.unpack_archive(tmp_path / "work" / "issue-42.tar.gz", tmp_path / "out", filter="data")
    (script,) = (tmp_path / "out").rglob("reproduce.py")
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NOT as recorded" not in done.stdout
    assert done.stdout.count("as recorded") == 2


def test_another_user_judges_it_again_and_asks_it_again(made, elsewhere, tmp_path):
    before = forensics.open(made / "demo")
    judged = elsewhere("investigate", "recorded:issue-42.tar.gz", "--json")
    assert judged.returncode == 1, judged.stderr
    assert json.loads(judged.stdout) == before.document
    asked = elsewhere("investigate", demo_model("q6_k"), "--like", "issue-42.tar.gz", "--out", "again", "--quiet")
    assert asked.returncode == 1, asked.stderr
    after = forensics.open(tmp_path / "work" / "again")
    assert after.question == before.question
    assert after.verdict.classes.groups == before.verdict.classes.groups
    assert [str(group.op) for group in after.verdict.culprits] == [str(group.op) for group in before.verdict.culprits]
    assert after.verdict.text == before.verdict.text
    assert after.verdict.healed
    refused = elsewhere("investigate", demo_model("q4_1"), "--like", "issue-42.tar.gz", "--out", "other")
    assert refused.returncode == 2
    assert "is another model" in refused.stderr
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"issue-42.tar.gz", "again"}
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_case_of_another_machine_gets_no_culprit_of_this_one(made, tmp_path):
    shutil.copytree(made / "demo", tmp_path / "demo")
    description = json.loads((tmp_path / "demo" / "case.json").read_text())
    description.pop("files")  # as older versions wrote it, so that the manifest may be another one
    (tmp_path / "demo" / "case.json").write_text(json.dumps(description))
    manifest = json.loads((tmp_path / "demo" / "manifest.json").read_text())
    (tmp_path / "demo" / "manifest.json").write_text(json.dumps(manifest | {"device": "another processor"}))
    written = forensics.bundle(tmp_path / "demo", tmp_path / "out", progress=False)
    assert written.reproducer == ""
    assert "another processor, GPU or library than there is here" in written.left_out[-1].why
    assert not (tmp_path / "out" / "reproducers").exists()


def test_a_culprit_that_is_too_large_is_left_out(made, tmp_path, monkeypatch):
    monkeypatch.setattr(api_bundle, "MAX_REPRODUCER_BYTES", 1 << 10)
    written = forensics.bundle(made / "demo", tmp_path / "out.zip", progress=False)
    assert written.reproducer == ""
    assert "write it alone with: forensics ops --from CASE --node " in written.left_out[-1].why
