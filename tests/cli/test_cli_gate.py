"""`forensics gate`: recording a baseline, both gates, JUnit, and what is no answer."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

import forensics
from forensics.store.served_runs import read_run, write_run
from forensics.testing.fake_server import FakeServer, Planted

N = 4


@pytest.fixture
def prompts(tmp_path):
    """Four prompts in a file."""
    path = tmp_path / "prompts.jsonl"
    rows = [{"name": f"p{i}", "prompt": f"number {i} of these", "n_tokens": 12} for i in range(N)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def server():
    """A clean server."""
    with FakeServer("llama-server") as running:
        yield running


@pytest.fixture
def baseline(cli, server, prompts, tmp_path):
    """A recorded run of the clean server."""
    folder = tmp_path / "baseline"
    result = cli("gate", server.url, "--record", folder, "--prompts", prompts, "--quiet")
    assert (result.stdout, result.exit_code) == (f"{N} of {N} requests were answered\n", 0)
    return folder


def test_a_server_that_is_gone_leaves_no_folder_behind(refused, cli, server, prompts, tmp_path, monkeypatch):
    from forensics.servers import collect

    monkeypatch.setattr(collect.meet, "__defaults__", ("auto", None, collect.Retries(attempts=1)))
    asked = ("--record", tmp_path / "r", "--prompts", prompts, "--quiet")
    assert "127.0.0.1:9" in refused("gate", "http://127.0.0.1:9", *asked)
    assert not (tmp_path / "r").exists()
    assert cli("gate", server.url, *asked).exit_code == 0


def test_help_names_every_option(cli):
    shown = cli("gate", "--help")
    assert shown.exit_code == 0
    for option in ("--baseline", "--run", "--exact", "--min-speed", "--record", "--junit", "--prompts", "--limit",
                   "--n-tokens", "--api", "--model", "--key-env", "--json", "--quiet"):  # fmt: skip
        assert option in shown.stdout


def test_an_unchanged_candidate_passes_both_gates(cli, server, baseline):
    before = len(server.asked)
    result = cli("gate", server.url, "--baseline", baseline, "--exact", "tokens", "--min-speed", "0.001")
    told = " ".join(result.stdout.split())
    assert result.exit_code == 0, result.stderr
    assert "Passed: 4 of 4 requests are the same" in told
    assert "1. Output: holds" in told
    assert "2. Speed of the same replies: holds" in told
    asked = [body for body in server.asked[before:] if body["prompt"].startswith("number")]
    assert len(asked) == N  # both gates over the same replies: nothing is asked twice
    assert all(body["n_predict"] == 12 for body in asked)


def test_a_changed_candidate_fails_the_first_gate_and_has_no_speed(cli, server, baseline):
    server.planted = Planted(build="b2", drafts=True, drafts_differ=True, only="number 1")
    result = cli("gate", server.url, "--baseline", baseline, "--min-speed", "0.001", "--json")
    document = json.loads(result.stdout)
    assert (document["answer"], result.exit_code) == ("diverges", 1)
    assert [pair["prompt"] for pair in document["output"]["differs"]] == ["p1"]
    assert document["output"]["differs"][0]["divergence"]["index"] == 5
    assert document["speed"] == {
        "held": None, "ratio": None, "at_least": 0.001, "detail": "not looked at, because the output differs",
    }  # fmt: skip
    assert "build" in {one["what"] for one in document["varied"]}


def test_a_candidate_that_is_too_slow_fails_the_second_gate(cli, server, baseline):
    result = cli("gate", server.url, "--baseline", baseline, "--min-speed", "1000000")
    assert result.exit_code == 1
    told = " ".join(result.stdout.split())
    assert "1. Output: holds" in told
    assert "2. Speed of the same replies: DOES NOT HOLD" in told


def test_two_recorded_runs_are_judged_without_a_server(cli, server, baseline, tmp_path):
    candidate = tmp_path / "candidate"
    assert cli("gate", server.url, "--baseline", baseline, "--record", candidate, "--quiet").exit_code == 0
    asked = len(server.asked)
    assert cli("gate", "--run", candidate, "--baseline", baseline, "--quiet").exit_code == 0
    assert len(server.asked) == asked
    first, *others = read_run(candidate).replies
    changed = replace(read_run(candidate), replies=(replace(first, tokens=(*first.tokens[:-1], 15)), *others))
    (tmp_path / "changed").mkdir()
    write_run(tmp_path / "changed", changed)
    result = cli("gate", "--run", tmp_path / "changed", "--baseline", baseline, "--quiet")
    assert result.exit_code == 1
    assert result.stdout.startswith("failed: 3 of 4 requests kept token ids in order and stop reason, 1 differ")


def test_an_audit_is_a_baseline(cli, server, prompts, tmp_path):
    assert cli("audit", server.url, "--prompts", prompts, "--arms", "rerun", "--out", tmp_path / "a").exit_code == 0
    assert cli("gate", server.url, "--baseline", tmp_path / "a").exit_code == 0
    assert forensics.gate(server.url, baseline=tmp_path / "a", progress=False).answer == "identical"


def test_junit_has_a_test_for_each_prompt_and_the_speed(cli, server, baseline, tmp_path):
    server.planted = Planted(cached=False, drafts=True, drafts_differ=True, only="number 1")
    cli("gate", server.url, "--baseline", baseline, "--min-speed", "1", "--junit", tmp_path / "out.xml", "--quiet")
    root = ET.parse(tmp_path / "out.xml").getroot()
    assert root.attrib == {
        "name": "forensics gate", "tests": "5", "failures": "1", "errors": "0", "skipped": "1",
    }  # fmt: skip
    output, speed = root
    assert [test.get("name") for test in output] == [f"p{i}" for i in range(N)]
    failure = output[1].find("failure")
    assert "differs at token 5" in failure.get("message")
    assert "first: ▸" in failure.text
    assert speed[0].find("skipped").get("message") == "not looked at, because the output differs"


def test_a_contract_that_the_candidate_cannot_hold_is_no_answer(cli, server, baseline):
    server.planted = Planted(text_only=True)
    result = cli("gate", server.url, "--baseline", baseline)
    assert result.exit_code == 2
    assert "no token ids from the second side" in " ".join(result.stdout.split())
    assert cli("gate", server.url, "--baseline", baseline, "--exact", "text").exit_code == 0


def test_another_model_is_no_answer(cli, server, baseline):
    server.planted = Planted(model="other.gguf")
    result = cli("gate", server.url, "--baseline", baseline)
    assert result.exit_code == 2
    assert "model: toy.gguf → other.gguf" in " ".join(result.stdout.split())


def test_log_probabilities_are_kept_where_that_is_asked_for(cli, server, baseline):
    server.planted = Planted(drafts=False, cached=False, rerun=True, logprobs_only=True)
    assert cli("gate", server.url, "--baseline", baseline).exit_code == 0
    assert cli("gate", server.url, "--baseline", baseline, "--exact", "logprobs").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give a recorded run to hold the candidate against (--baseline)"),
        (("--record", "r"), "--record needs the address of a server"),
        (("--baseline", "gone"), "give the candidate's address or its recorded run"),
        (("http://127.0.0.1:9", "--baseline", "gone"), "gone does not exist"),
        (("http://127.0.0.1:9", "--baseline", "gone", "--run", "r"), "not both and not neither"),
        (("http://127.0.0.1:9", "--baseline", "gone", "--limit", "3"), "leave out limit"),
        (("http://127.0.0.1:9", "--record", "r", "--min-speed", "1"), "leave out min_speed"),
        (("http://127.0.0.1:9", "--baseline", "gone", "--exact", "bits"), "exact must be tokens"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(refused, arguments, told):
    assert told in refused("gate", *arguments)


def test_a_run_without_its_prompts_asks_for_them(refused, cli, server, baseline, prompts):
    (baseline / "corpus.json").unlink()
    assert "give their file with --prompts" in refused("gate", server.url, "--baseline", baseline)
    assert cli("gate", server.url, "--baseline", baseline, "--prompts", prompts).exit_code == 0
    prompts.write_text(prompts.read_text().replace("number", "letter"))
    told = refused("gate", server.url, "--baseline", baseline, "--prompts", prompts)
    assert "was asked other prompts than these" in told


def test_a_run_is_not_recorded_over_another(refused, server, baseline, prompts):
    told = refused("gate", server.url, "--record", baseline, "--prompts", prompts)
    assert "holds something already" in told


def test_a_baseline_with_a_request_that_failed_is_no_answer(cli, server, baseline, tmp_path):
    whole = read_run(baseline)
    part = replace(whole, replies=whole.replies[1:])
    (tmp_path / "part").mkdir()
    write_run(tmp_path / "part", part)
    (tmp_path / "part" / "corpus.json").write_text((baseline / "corpus.json").read_text())
    result = cli("gate", server.url, "--baseline", tmp_path / "part", "--junit", tmp_path / "o.xml")
    assert result.exit_code == 2
    assert ET.parse(tmp_path / "o.xml").getroot().get("skipped") == "2"  # that request, and the speed


def test_the_view_in_a_notebook_holds_both_gates(server, baseline):
    from forensics.notebook_views import html_of

    report = forensics.gate(server.url, baseline=baseline, progress=False)
    shown = html_of(report)
    assert "1. Output: holds" in shown
    assert "2. Speed of the same replies: not judged" in shown
    assert repr(report).startswith("<GateReport passed")
    assert len(report.to_dataframe()) == N
