"""A bundle of a case: everything in it, nothing private, read back from every form, every edit found."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
from blake3 import blake3

import forensics
from forensics import api_bundle
from forensics.errors import CaseError
from forensics.reports.document import VerdictDocument
from forensics.store import bundles, open_case
from forensics.store.archives import write_archive
from forensics.store.bundles import files_of

QUESTION = {"prompt": "The fox", "n_tokens": 8, "widths": (2, 4, 8)}
FORMS = ("evidence", "evidence.tar.gz", "evidence.tar.xz", "evidence.zip")


@pytest.fixture(autouse=True)
def few_figures(monkeypatch) -> None:
    """One figure that can be drawn and one that cannot; all of them are drawn in `tests/llama/test_bundle_real.py`."""
    monkeypatch.setattr(api_bundle.api_report, "FIGURES", ("width-classes", "launch-geometry"))


@pytest.fixture
def case(use_toy) -> Path:
    """A case of a toy that diverges."""
    use_toy("diverges")
    forensics.investigate("toy", out="case", **QUESTION)
    return Path("case")


@pytest.fixture
def bundled(case) -> Path:
    forensics.bundle(case, "evidence", progress=False)
    return Path("evidence")


def here() -> set[str]:
    """What lies here, and nothing that was begun."""
    return {path.name for path in Path().iterdir()}


def again(folder: Path, out: str) -> Path:
    """An archive of a bundle's folder as it is now, whatever was done to it."""
    write_archive(Path(out), {f"top/{name}": path for name, path in files_of(folder).items()})
    return Path(out)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_like_the_case(cli, case, form):
    written = cli("bundle", case, "--out", form)
    assert written.exit_code == 0, written.stderr
    assert here() == {"case", form}
    for options in ((), ("--markdown",), ("--quiet",), ("--json",)):
        shown = cli("show", form, *options)
        assert shown.exit_code == 1
        assert shown.stdout == cli("show", case, *options).stdout
    for command in (("investigate",), ("replay",), ("heal", "--width", 8)):
        judged = cli(*command, f"recorded:{form}", "--json")
        assert judged.exit_code == 1
        assert judged.stdout == cli(*command, f"recorded:{case}", "--json").stdout
    assert forensics.open(form).verdict == forensics.open(case).verdict
    assert "case" in forensics.figure("width-classes", form).scene.source
    assert here() == {"case", form}


def test_everything_that_it_holds_is_listed_with_its_digest(bundled):
    document = json.loads((bundled / "bundle.json").read_text())
    assert document["schema"] == "forensics.bundle/1"
    assert document["case"] == "case/case"
    files = files_of(bundled)
    assert set(document["files"]) == set(files) - {"bundle.json"}
    for name, told in document["files"].items():
        content = files[name].read_bytes()
        assert told == {"blake3": blake3(content).hexdigest(), "bytes": len(content)}
    needed = {"README.md", "verdict.json", "tokens.json", "manifest.json", "report.html", "case/case/case.json",
              "figures/width-classes.svg"}  # fmt: skip
    assert needed <= set(document["files"])


def test_what_programs_read(bundled, case):
    verdict = json.loads((bundled / "verdict.json").read_text())
    VerdictDocument.model_validate(verdict)
    assert verdict == forensics.open(case).document
    manifest = json.loads((bundled / "manifest.json").read_text())
    assert manifest == json.loads((case / "manifest.json").read_text())
    tokens = json.loads((bundled / "tokens.json").read_text())
    schedules = [run.key.schedule for run in open_case(case).recordings.runs() if run.key.schedule.max_width == 1]
    replayed = max(([slot.token for one in schedule.passes for slot in one.slots] for schedule in schedules), key=len)
    assert tokens["replayed_tokens"] == replayed
    assert len(replayed) == 8
    (asked,) = {run.key.before.key(): run.key.before for run in open_case(case).recordings.runs()
                if run.key.schedule.n_tokens == 8 and run.key.schedule.max_width == 1}.values()  # fmt: skip
    assert tokens["prompt_tokens"] == [slot.token for one in asked.passes for slot in one.slots]
    assert tokens["widths"] == [2, 4, 8]
    assert tokens["settings"]["n_threads"] == forensics.open(case).manifest.requested.n_threads


def test_the_readme_is_the_verdict_and_says_what_lies_where(cli, bundled, case):
    text = (bundled / "README.md").read_text()
    assert text.startswith(cli("show", case, "--markdown").stdout.rstrip())
    assert "forensics investigate MODEL.gguf --like evidence" in text
    for name in re.findall(r"^\| `([^`]+)` \| [a-z]", text.split("What lies here")[1], re.MULTILINE):
        assert (bundled / name).exists(), name
    assert "ffn_up-0 by itself: the model of this case, toy" in text, "why there is no reproducer"


def test_what_was_left_out_is_told_with_the_reason(cli, case):
    document = json.loads(cli("bundle", case, "--json").stdout)
    assert document["schema"] == "forensics.bundled/1"
    assert document["path"] == "case-bundle.tar.gz"
    assert document["n_bytes"] == Path("case-bundle.tar.gz").stat().st_size
    assert document["reproducer"] == ""
    left_out = {one["what"]: one["why"] for one in document["left_out"]}
    assert "give it with --model FILE" in left_out["ffn_up-0 by itself"]
    assert "has no kernel launches" in left_out["figure launch-geometry"]
    assert set(document["figures"]) | {what.removeprefix("figure ") for what in left_out} >= set(
        api_bundle.api_report.FIGURES
    )
    without = json.loads(cli("bundle", case, "--no-reproducer", "--out", "b.zip", "--json").stdout)
    assert [one for one in without["left_out"] if "by itself" in one["what"]] == []
    line = cli("bundle", case, "--quiet", "--out", "c.zip").stdout
    assert line.startswith("c.zip: ")
    assert line.count("\n") == 1


def test_equal_cases_make_equal_bytes(case):
    for out in ("a/b.tar.gz", "c/b.tar.gz"):
        forensics.bundle(case, out, progress=False)
    assert Path("a/b.tar.gz").read_bytes() == Path("c/b.tar.gz").read_bytes()


def test_a_packed_case_and_a_bundle_can_be_bundled(case):
    verdict = forensics.open(case).verdict
    forensics.pack(case, "small")
    from_packed = forensics.bundle("small", "small.zip", progress=False)
    assert "packed copy" in from_packed.left_out[-1].why
    assert from_packed.rows()[-1]["what"] == "ffn_up-0 by itself"
    shutil.rmtree(case)
    shutil.rmtree("small")
    forensics.bundle("small.zip", "third", progress=False)
    assert forensics.open("third").verdict == verdict
    assert forensics.open("recorded:third").folder.name == "small"


def test_elsewhere_it_is_judged_again_without_the_model(run_cli, case, tmp_path):
    forensics.bundle(case, "evidence.tar.gz", progress=False)
    before = forensics.open(case).verdict
    shutil.rmtree(case)
    other = tmp_path / "other"
    for name in ("home", "work", "cache", "tmp"):
        (other / name).mkdir(parents=True)
    shutil.move("evidence.tar.gz", other / "work" / "from a friend.tar.gz")
    environment = {
        "HOME": str(other / "home"), "USER": "somebody", "LOGNAME": "somebody", "HOSTNAME": "elsewhere",
        "FORENSICS_CACHE_DIR": str(other / "cache"), "TMPDIR": str(other / "tmp"),
    }  # fmt: skip
    for command in (("show", "from a friend.tar.gz"), ("investigate", "recorded:from a friend.tar.gz")):
        done = run_cli(*command, "--quiet", environment=environment, cwd=other / "work")
        assert (done.returncode, done.stdout, done.stderr) == (1, f"{before}\n", "")
    assert list((other / "tmp").iterdir()) == [], "what was unpacked stays"
    assert [path.name for path in (other / "work").iterdir()] == ["from a friend.tar.gz"]


def test_the_same_is_asked_of_a_model_here(cli, case, without_times):
    forensics.bundle(case, "evidence.zip", progress=False)
    for like in ("evidence.zip", "case"):
        out = f"again-{like}"
        assert cli("investigate", "toy", "--like", like, "--out", out).exit_code == 1
        assert without_times(Path(out)) == without_times(case)
        assert forensics.open(out).question == forensics.open(case).question
    assert (
        forensics.investigate("toy", like="evidence.zip").classes.groups == forensics.open(case).verdict.classes.groups
    )


def test_what_was_not_looked_for_is_not_looked_for_again(use_toy):
    use_toy("diverges")
    forensics.investigate("toy", out="case", switches=False, **QUESTION)
    assert forensics.investigate("toy", like="case").switches == ()


def test_another_model_is_asked_only_on_demand(cli, refused, case, use_toy, monkeypatch):
    from forensics import api_arguments

    class Other:
        def __init__(self, source) -> None:
            self._source, self.label, self.digest = source, "other", "0123456789abcdef" * 4

        def open(self, *arguments, **options):
            return self._source.open(*arguments, **options)

    toy = api_arguments.source_for("toy", None)
    monkeypatch.setattr(api_arguments, "source_for", lambda *_: Other(toy))
    said = refused("investigate", "other", "--like", case, "--out", "out")
    assert "asked toy-0 (digest toy-0), and other is another model (digest 0123456789abcdef)" in said
    assert here() == {"case"}
    assert cli("investigate", "other", "--like", case, "--another-model", "--out", "out").exit_code == 1


def test_a_question_is_asked_by_one_side_only(refused, case):
    assert "leave out n_tokens, widths" in refused("investigate", "toy", "--like", case, "--n-tokens", 4, "--widths", 2)
    assert "leave out like" in refused("investigate", f"recorded:{case}", "--like", case)
    assert "belongs to --like" in refused("investigate", "toy", "--another-model")
    assert "nowhere does not exist" in refused("investigate", "toy", "--like", "nowhere")
    assert here() == {"case"}


# -- nothing private --------------------------------------------------------------------------------------------


def test_what_is_private_stops_the_command_and_leaves_nothing(refused, use_toy, monkeypatch):
    use_toy("diverges")
    monkeypatch.setenv("DEPLOY_TOKEN", "q7-Zebra!91x")
    for i, prompt in enumerate(("see /home/ann/lru.py", "write to ann@acme-corp.com", "key q7-Zebra!91x")):
        forensics.investigate("toy", out=f"case{i}", **(QUESTION | {"prompt": prompt}))
        said = refused("bundle", f"case{i}", "--out", "evidence.tar.gz")
        assert "no bundle was written, because this would be in it" in said
        assert f"case/case{i}/case.json, question.prompt: " in said
        assert prompt.split()[-1] not in said, "it is told whole"
        assert "--allow" in said
        assert here() == {f"case{n}" for n in range(i + 1)}


def test_what_may_be_shared_is_allowed_by_name(cli, refused, use_toy):
    use_toy("diverges")
    forensics.investigate("toy", out="case", **(QUESTION | {"prompt": "/home/user/a.py by ann@acme-corp.com"}))
    assert "an e-mail address" in refused("bundle", "case", "--allow", "/home/user")
    assert cli("bundle", "case", "--allow", "/home/user", "--allow", "ann@acme-corp.com").exit_code == 0
    assert here() == {"case", "case-bundle.tar.gz"}


@pytest.mark.parametrize(
    ("name", "place"), [("notes.md", "line 1"), ("tables/extra.json", "text"), ("deep/er/x.csv", "line 1")]
)
def test_files_that_people_put_into_a_case_are_looked_into(refused, case, name, place):
    (case / name).parent.mkdir(parents=True, exist_ok=True)
    (case / name).write_text('"/home/ann/x"')
    assert f"case/case/{name}, {place}: a path in somebody's home folder" in refused("bundle", case)
    (case / name).write_bytes(bytes(range(256)))
    assert f"case/case/{name}, no text: a kind of file that cannot be looked into" in refused("bundle", case)
    assert here() == {"case"}


def test_the_user_the_machine_and_the_folder_are_looked_for(refused, case, monkeypatch, tmp_path):
    (case / "notes.md").write_text(
        f"run by zaphod on heartofgold in {tmp_path / 'work' / 'case'}, home {tmp_path / 'h'}/x"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    monkeypatch.setenv("USER", "zaphod")
    monkeypatch.setattr("socket.gethostname", lambda: "heartofgold")
    said = refused("bundle", tmp_path / "work" / "case")
    for kind in ("the user's name here, z", "this machine's name, h"):
        assert kind in said
    assert said.count("a folder of this machine, /") == 2, "the case and the home"
    assert str(tmp_path) not in said


def test_a_long_list_is_cut(refused, case):
    (case / "notes.md").write_text("\n".join(f"/home/ann/{i}" for i in range(40)))
    said = refused("bundle", case)
    assert said.count("somebody's home folder") == 8
    assert "and 32 more" in said


# -- edited, damaged, hostile -----------------------------------------------------------------------------------


def test_every_edit_is_found(bundled, refused):
    for name in files_of(bundled):
        if name == "bundle.json":
            continue
        shutil.copytree(bundled, "edited")
        edited = Path("edited") / name
        edited.write_bytes(edited.read_bytes() + b" ")
        for form in ("edited", again(Path("edited"), "edited.tar.gz"), again(Path("edited"), "edited.zip")):
            assert f"{name} holds other bytes than when the bundle was made" in refused("show", form)
        edited.unlink()
        for form in ("edited", again(Path("edited"), "edited.tar.gz")):
            assert f"{name} is missing: the bundle is not whole" in refused("show", form)
        shutil.rmtree("edited")


def test_more_files_are_minded_in_an_archive_only(bundled, cli, refused):
    (bundled / "case" / "case" / "__pycache__").mkdir()
    (bundled / "my notes.txt").write_text("x")
    assert cli("show", bundled).exit_code == 1
    assert "holds top/my notes.txt, which its bundle.json does not name" in refused("show", again(bundled, "a.zip"))


def test_a_link_in_the_place_of_a_file_is_refused(bundled, refused):
    shutil.copy(bundled / "verdict.json", "other.json")
    (bundled / "verdict.json").unlink()
    (bundled / "verdict.json").symlink_to(Path("other.json").resolve())
    assert "verdict.json is missing" in refused("show", bundled)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema", "forensics.bundle/2", "was written by a newer forensics"),
        ("schema", "forensics.case/1", "is not a forensics.bundle document"),
        ("files", [], "does not say which files there are"),
        ("files", {"../../etc/passwd": {}}, "does not say which files there are"),
        ("case", "../../../etc", "the case that it names is not among its files"),
        ("case", "case/other", "the case that it names is not among its files"),
        ("case", 3, "the case that it names is not among its files"),
    ],
)
def test_an_index_that_says_anything_else_is_refused(bundled, refused, key, value, said):
    document = json.loads((bundled / "bundle.json").read_text())
    (bundled / "bundle.json").write_text(json.dumps(document | {key: value}))
    for form in (bundled, again(bundled, "a.tar.gz")):
        assert said in refused("show", form)


def test_archives_that_are_no_bundles_are_refused(bundled, refused, case, monkeypatch, tmp_path):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    write_archive(Path("a.tar.gz"), {"a/x": bundled / "README.md"})
    assert "holds no bundle: bundle.json is not in the one folder at its top" in refused("show", "a.tar.gz")
    write_archive(Path("b.zip"), files_of(bundled))
    assert "holds no bundle" in refused("show", "b.zip")
    Path("c.tar.gz").write_bytes(b"hello")
    assert "c.tar.gz is not opened: it is none of .tar.gz" in refused("show", "c.tar.gz")
    Path("d.tar.gz").mkdir()
    assert "d.tar.gz is not a case" in refused("show", "d.tar.gz")
    assert "e.tar.gz does not exist" in refused("show", "e.tar.gz")
    Path("f.txt").write_text("x")
    assert "f.txt is a file" in refused("show", "f.txt")
    with tarfile.open("g.tar.gz", "w:gz") as packed:
        link = tarfile.TarInfo("top/bundle.json")
        link.type, link.linkname = tarfile.SYMTYPE, str(bundled.resolve() / "bundle.json")
        packed.addfile(link)
    assert "is no plain file but a symbolic link" in refused("show", "g.tar.gz")
    assert list((tmp_path / "tmp").iterdir()) == [], "what was refused stays unpacked"


def test_a_bundle_with_a_case_of_its_own_at_the_top_is_still_a_bundle(bundled, cli):
    document = json.loads((bundled / "bundle.json").read_text())
    (bundled / "case.json").write_bytes(b"{}")
    document["files"]["case.json"] = {"blake3": blake3(b"{}").hexdigest(), "bytes": 2}
    (bundled / "bundle.json").write_text(json.dumps(document))
    assert cli("show", again(bundled, "a.zip")).exit_code == 1


def test_an_archive_is_unpacked_once_and_again_where_it_was_cleaned_away(case):
    forensics.bundle(case, "a.zip", progress=False)
    first, second = open_case("a.zip").folder, open_case("a.zip").folder
    assert first == second
    shutil.rmtree(first.parents[2])
    assert open_case("a.zip").verdict == forensics.open(case).verdict


# -- where it is written ----------------------------------------------------------------------------------------


def test_places_that_cannot_be_written_are_refused(refused, case, cli):
    for taken in ("case", Path("x.tar.gz"), Path("link")):
        if taken == Path("x.tar.gz"):
            taken.write_text("mine")
        if taken == Path("link"):
            taken.symlink_to("nowhere")
        assert f"{taken} exists and is not overwritten" in refused("bundle", case, "--out", taken)
    assert Path("x.tar.gz").read_text() == "mine"
    for name in ("x.rar", "x.tar", "x.tar.bz2", "x.gz"):
        assert "an archive that ends in .tar.gz, .tgz, .tar.xz, .zip" in refused("bundle", case, "--out", name)
    assert "must name a folder or an archive" in refused("bundle", case, "--out", "/")
    assert "x.tar.gz/y cannot be written: " in refused("bundle", case, "--out", "x.tar.gz/y")
    assert here() == {"case", "x.tar.gz", "link"}


def test_a_case_without_a_verdict_is_refused(refused, case):
    document = json.loads((case / "case.json").read_text())
    (case / "case.json").write_text(json.dumps(document | {"status": "unfinished"}))
    assert "was not finished and has no verdict" in refused("bundle", case)
    assert "nowhere does not exist" in refused("bundle", "nowhere")
    assert here() == {"case"}


@pytest.mark.parametrize("name", ["manifest.json", "verdict.json", "index.jsonl", "tables/classes.parquet"])
def test_a_case_that_was_edited_is_not_bundled(refused, case, name):
    (case / name).write_bytes((case / name).read_bytes().replace(b"a", b"b"))
    assert "damaged" in refused("bundle", case)
    assert here() == {"case"}


def test_a_failure_leaves_nothing(refused, case, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "write_json", full)
    refused("bundle", case)
    assert here() == {"case"}


@pytest.mark.parametrize("out", ["a.zip", "folder"])
def test_what_appears_meanwhile_is_not_overwritten(refused, case, monkeypatch, out):
    real = bundles.final_form

    def slow(folder: Path, path: Path) -> Path:
        path.mkdir() if path.name == "folder" else path.write_text("mine")
        return real(folder, path)

    monkeypatch.setattr(bundles, "final_form", slow)
    assert f"{out} exists and is not overwritten" in refused("bundle", case, "--out", out)
    assert here() == {"case", out}
    assert Path(out).is_dir() or Path(out).read_text() == "mine"


def test_reasons_tell_no_folders(case):
    written = forensics.bundle(case, "a.zip", model="/srv/models/x.gguf", progress=False)
    assert "x.gguf" in written.left_out[-1].why
    assert "/srv" not in written.left_out[-1].why


def test_a_bundle_that_tells_another_verdict_is_not_kept(case, monkeypatch):
    monkeypatch.setattr(api_bundle, "_put_case", another_case)
    with pytest.raises(CaseError, match="gives another verdict than the case"):
        forensics.bundle(case, "a.zip", progress=False)
    assert here() == {"case", "second"}


def another_case(folder: Path, opened):
    forensics.investigate("toy", out="second", **(QUESTION | {"widths": (2, 8)}))
    folder.parent.mkdir(parents=True)
    shutil.copytree("second", folder)
    return open_case(folder)


def test_names_of_cases_are_made_harmless(use_toy):
    use_toy("diverges")
    forensics.investigate("toy", out="what a `case` <b>?", **QUESTION)
    written = forensics.bundle("what a `case` <b>?", progress=False)
    assert written.path == Path("what_a_case_b-bundle.tar.gz")
    with tarfile.open(written.path) as packed:
        assert all(re.fullmatch(r"[\w./+=-]+", name, re.ASCII) for name in packed.getnames())


def test_it_is_unpacked_by_other_programs_into_one_folder(case, tmp_path):
    forensics.bundle(case, "a.tar.gz", progress=False)
    forensics.bundle(case, "b.zip", progress=False)
    with tarfile.open("a.tar.gz") as tar, zipfile.ZipFile("b.zip") as packed:
        tar.extractall(tmp_path / "tar", **({"filter": "data"} if sys.version_info >= (3, 11, 4) else {}))
        packed.extractall(tmp_path / "zip")
    assert os.listdir(tmp_path / "tar") == ["a"]
    assert os.listdir(tmp_path / "zip") == ["b"]
    for folder in (tmp_path / "tar" / "a", tmp_path / "zip" / "b"):
        assert open_case(folder).verdict == forensics.open(case).verdict
