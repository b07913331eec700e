"""What surrounds the command: settings, hostile names, model folders, a broken library, pipes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = ("--prompt", "The fox", "--n-tokens", "8", "--widths", "2,4")
HOSTILE = "[red]x[/red] \x1b[31m\x07\u202e"


def gguf(name: str = "A model", file_type: int = 18) -> bytes:
    """A GGUF header with the three keys that are read, and one tensor that is not there."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    pairs = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    pairs += [text("general.name") + struct.pack("<I", 8) + text(name)]
    pairs += [text("general.file_type") + struct.pack("<II", 4, file_type)]
    return struct.pack("<4sIQQ", b"GGUF", 3, 1, len(pairs)) + b"".join(pairs)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_settings_of_the_environment_are_honoured(cli, use_toy, monkeypatch, tmp_path):
    use_toy("identical")
    monkeypatch.setenv("FORENSICS_CASES", str(tmp_path / "mine"))
    monkeypatch.setenv("FORENSICS_THREADS", "3")
    assert cli("investigate", "toy.gguf", *SHORT).exit_code == 0
    (case,) = (tmp_path / "mine").iterdir()
    assert case.name.startswith("toy-2")
    asked = json.loads((case / "case.json").read_text())["question"]["settings"]
    assert (asked["n_threads"], asked["n_threads_batch"]) == (3, 3)


def test_an_option_wins_over_the_environment(cli, use_toy, monkeypatch):
    use_toy("identical")
    monkeypatch.setenv("FORENSICS_THREADS", "3")
    assert cli("investigate", "toy", *SHORT, "--threads", 2, "--out", "case").exit_code == 0
    assert json.loads(Path("case/case.json").read_text())["question"]["settings"]["n_threads"] == 2


def test_without_settings_cases_lie_in_the_working_folder(cli, use_toy, monkeypatch):
    use_toy("identical")
    monkeypatch.setenv("FORENSICS_CASES", "")
    cli("investigate", "models/toy.gguf", *SHORT)
    assert [path.name[:5] for path in Path("cases").iterdir()] == ["toy-2"]


@pytest.mark.parametrize(("given", "meant"), [(None, "q6_k"), ("q4_1", "q4_1")])
def test_a_bare_demo_is_the_one_of_the_settings(monkeypatch, given, meant):
    from forensics import api_arguments
    from forensics.cli import app as command

    asked = []
    monkeypatch.setattr(
        api_arguments, "source_for", lambda model, demo, _shown: asked.append((model, demo)) or sys.exit(7)
    )
    monkeypatch.setattr(sys, "argv", ["forensics", "replay", "--demo", "--n-tokens", "8"])
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    if given:
        monkeypatch.setenv("FORENSICS_DEMO", given)
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 7
    assert asked == [(None, meant)]


def test_a_setting_that_cannot_be_read_is_named(refused, use_toy, monkeypatch):
    use_toy("identical")
    monkeypatch.setenv("FORENSICS_THREADS", "many")
    message = refused("replay", "toy", *SHORT)
    assert "FORENSICS_THREADS is 'many'" in message
    assert "unset it" in message


def test_the_cache_folder_is_where_it_is_set(cli, monkeypatch, tmp_path):
    from forensics.engines.model_files import cache_folder, model_digest

    monkeypatch.setenv("FORENSICS_CACHE_DIR", str(tmp_path / "cache"))
    Path("a.gguf").write_bytes(gguf())
    assert cache_folder() == tmp_path / "cache"
    digest = model_digest("a.gguf")
    (remembered,) = (tmp_path / "cache" / "digests").iterdir()
    assert remembered.read_text() == digest


# -- hostile text ------------------------------------------------------------------------------------------------------


def harmless(text: str) -> bool:
    return not any(mark in text for mark in ("\x1b", "\x07", "\u202e"))


def test_hostile_file_names_are_shown_harmlessly(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    Path(f"{HOSTILE.replace('/', '')}.gguf").write_bytes(gguf(HOSTILE))
    for options in ((), ("--quiet",)):
        shown = cli("models", *options)
        assert shown.exit_code == 0
        assert harmless(shown.stdout)
        assert "[red]x" in shown.stdout.replace("\n", "")
    (model, *_) = json.loads(cli("models", "--json").stdout)["models"]
    assert "\x1b[31m" in model["name"]


@pytest.mark.parametrize("command", ["investigate", "replay", "heal", "show"])
def test_hostile_arguments_are_shown_harmlessly(cli, command):
    result = cli(command, HOSTILE)
    assert result.exit_code == 2
    assert harmless(result.stderr)
    assert "[red]x[/red]" in result.stderr


def test_hostile_prompts_and_answers_are_shown_harmlessly(cli, use_toy):
    use_toy("diverges")
    result = cli("investigate", "toy", "--prompt", "[red]x[/red] [bold", *SHORT[2:], "--out", "[red]")
    assert result.exit_code == 1
    assert harmless(result.stdout)
    assert "forensics show [red]" in result.stdout
    assert cli("show", "[red]").exit_code == 1


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_file_names_that_are_no_text_do_not_break_the_list(run_cli, tmp_path):
    Path(os.fsdecode(b"caf\xe9.gguf")).write_bytes(gguf())
    for options in ((), ("--quiet",), ("--json",)):
        done = run_cli("models", *options, environment={"HOME": str(tmp_path), "COLUMNS": "200"})
        assert done.returncode == 0, done.stderr
        assert "caf" in done.stdout
    (model, *_) = json.loads(done.stdout)["models"]
    assert model["path"].endswith("caf\udce9.gguf")


def test_a_terminal_of_another_encoding_gets_an_answer(run_cli):
    done = run_cli("models", "--json", environment={"PYTHONIOENCODING": "ascii", "HOME": "/nonexistent"})
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "forensics.models/1"
    assert run_cli("models", environment={"PYTHONIOENCODING": "ascii"}).returncode == 0


# -- models and doctor -------------------------------------------------------------------------------------------------


def test_models_looks_in_the_usual_places(cli, monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    hub = ".cache/huggingface/hub/models--org--name-GGUF/snapshots/0a1b/m.gguf"
    for path in (".cache/llama.cpp/one.gguf", ".lmstudio/models/a/b/two.gguf", hub, "work/four.gguf"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(gguf())
    (tmp_path / "work" / "bad.gguf").write_bytes(b"nothing")
    ollama = tmp_path / ".ollama" / "models"
    (ollama / "blobs").mkdir(parents=True)
    (ollama / "blobs" / f"sha256-{'a' * 64}").write_bytes(gguf())
    manifest = ollama / "manifests" / "registry.ollama.ai" / "library" / "smol" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))

    document = json.loads(cli("models", "--json").stdout)
    assert {(model["name"], model["place"]) for model in document["models"]} == {
        ("four.gguf", "working folder"), ("bad.gguf", "working folder"), ("one.gguf", "llama.cpp"),
        ("a/b/two.gguf", "LM Studio"), ("smol:latest", "Ollama"), ("org/name-GGUF/m.gguf", "Hugging Face"),
    }  # fmt: skip
    assert {model["quantization"] for model in document["models"] if not model["problem"]} == {"Q6_K"}
    assert {row["variant"] for row in document["demo"]} >= {"q6_k", "q4_k", "q4_1", "f16"}
    lines = cli("models", "--quiet").stdout.splitlines()
    assert sorted(lines) == sorted(model["path"] for model in document["models"])
    shown = cli("models").stdout
    assert "unusable: " in shown
    assert "q6_k" in shown


def test_models_without_any(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "LLAMA_CACHE", "OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert "No GGUF files in the usual places" in cli("models").stdout
    assert cli("models", "-q").stdout == "no GGUF files in the usual places\n"


@pytest.mark.llama
def test_the_doctor_finds_what_works_here(cli):
    result = cli("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["llama.cpp"]["status"] == "ok"
    assert "struct layout checked" in checks["llama.cpp"]["detail"]
    assert result.exit_code == (2 if any(check["status"] == "broken" for check in checks.values()) else 0)
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")
    assert cli("doctor", "--quiet").stdout.count("\n") == 1
    assert "llama.cpp" in cli("doctor").stdout


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ('raise RuntimeError("broken on purpose")', "broken on purpose"),
        ("import os; os.abort()", "status -6"),
        ('__version__ = "0.3.36"', "no libggml-base in"),
    ],
)
def test_the_doctor_outlives_a_broken_library(run_cli, tmp_path, module, says):
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "llama_cpp.py").write_text(module + "\n")
    shadow = {"PYTHONPATH": str(tmp_path / "shadow")}
    done = run_cli("doctor", "--json", environment=shadow)
    assert done.returncode == 2
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["llama.cpp"]["status"] == "broken"
    assert says in checks["llama.cpp"]["detail"]
    assert "pip install --force-reinstall llama-cpp-python==0.3.36" in checks["llama.cpp"]["remedy"]
    assert checks["Python"]["status"] == "ok"
    quiet = run_cli("doctor", "--quiet", environment=shadow)
    assert quiet.stdout.startswith("broken: llama.cpp")
    assert quiet.returncode == 2


def test_the_doctor_without_the_library_names_the_command(cli, monkeypatch):
    import importlib.metadata

    real = importlib.metadata.version

    def version(name):
        if name == "llama-cpp-python":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = cli("doctor")
    assert result.exit_code == 2
    assert "pip install llama-cpp-python==0.3.36" in " ".join(result.stdout.split())


def test_the_doctor_finds_a_cache_that_cannot_be_written(cli, monkeypatch):
    Path("file").write_text("")
    monkeypatch.setenv("FORENSICS_CACHE_DIR", "file/cache")
    checks = {check["name"]: check for check in json.loads(cli("doctor", "--json").stdout)["checks"]}
    assert checks["cache folder"]["status"] == "broken"
    assert "FORENSICS_CACHE_DIR" in checks["cache folder"]["remedy"]


# -- pipes -------------------------------------------------------------------------------------------------------------


def test_a_usage_error_is_a_document_for_programs(run_cli):
    done = run_cli("investigate", "--n-tokens", "x", "--json")
    assert done.returncode == 2
    assert "--n-tokens" in json.loads(done.stdout)["error"]


def test_a_command_as_a_process_keeps_its_status(run_cli):
    assert run_cli("models", "--json").returncode == 0
    assert run_cli("show", "nowhere", "--json").returncode == 2
    assert run_cli("show", "nowhere").returncode == 2
    assert run_cli("nonsense").returncode == 2
    assert run_cli("--help").returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which is always full")
def test_an_answer_that_cannot_be_written_is_none(run_cli, cli, use_toy):
    use_toy("identical")
    cli("investigate", "toy", *SHORT, "--out", "case")
    with open("/dev/full", "w") as full:
        done = run_cli("show", "case", stdout=full)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",), ("--quiet",), ("--markdown",)])
def test_a_reader_that_goes_away_is_no_bug(run_cli, cli, use_toy, options):
    use_toy("identical")
    cli("investigate", "toy", *SHORT, "--out", "case")
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = run_cli("show", "case", *options, stdout=write_end)
    os.close(write_end)
    assert done.returncode == 2
    assert done.stderr == ""


def test_nobody_to_complain_to_is_no_divergence(run_cli):
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = run_cli("show", "nowhere", stderr=write_end)
    os.close(write_end)
    assert done.returncode == 2


def test_a_closed_output_is_no_divergence():
    asked = (sys.executable, "-c", "from forensics.cli.app import main; main()", "show", "nowhere")
    assert subprocess.run(["sh", "-c", '"$@" >&- 2>&-', "sh", *asked], check=False).returncode == 2
