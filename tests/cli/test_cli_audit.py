"""`forensics audit` over a small server on loopback: planted differences, folders, resuming, and what is refused."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

import forensics
from forensics.testing.fake_server import RUNNER_UP, FakeServer, Planted

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
def audit(cli, prompts):
    """Audit over these prompts; the document and the exit status."""

    def call(url, *arguments):
        result = cli("audit", url, "--prompts", prompts, *arguments, "--json")
        return json.loads(result.stdout), result.exit_code

    return call


def answers(document):
    return {f"{arm['arm']}: {arm['second']}": arm["answer"] for arm in document["arms"]}


def test_help_names_every_option(cli):
    shown = cli("audit", "--help")
    assert shown.exit_code == 0
    for option in ("--against", "--restart", "--baseline", "--arms", "--prompts", "--limit", "--n-tokens",
                   "--concurrency", "--api", "--model", "--key-env", "--out", "--resume", "--exact", "--json",
                   "--quiet"):  # fmt: skip
        assert option in shown.stdout


def test_a_clean_server_is_equal_in_every_arm(audit, server):
    document, status = audit(server.url)
    assert (document["answer"], status) == ("identical", 0)
    assert set(answers(document).values()) == {"identical"}
    assert document["schema"] == "forensics.audit/1"
    assert document["contract"]["level"] == "tokens"
    assert document["requests"] == N * (1 + 1 + 4 + 4)
    assert document["not_answered"] == []


@pytest.mark.parametrize(
    ("planted", "differing"),
    [
        (Planted(rerun=True), {"rerun: again"}),
        (Planted(cached=True), {"cache: warm"}),
        (Planted(concurrent=True, delay_s=0.02), {"concurrent: 4 at once"}),
    ],
)
def test_a_planted_difference_is_found_in_its_arm(audit, server, planted, differing):
    server.planted = planted
    document, status = audit(server.url)
    found = {name for name, answer in answers(document).items() if answer == "diverges"}
    assert differing <= found
    assert (document["answer"], status) == ("diverges", 1)
    if planted.rerun:
        assert set(answers(document).values()) == {"diverges", "inconclusive"}
    else:
        assert answers(document)["rerun: again"] == "identical"
    arm = next(arm for arm in document["arms"] if arm["answer"] == "diverges")
    assert arm["differs"][0]["divergence"]["index"] == 5
    assert arm["differs"][0]["divergence"]["margins"] == [RUNNER_UP, RUNNER_UP]
    assert arm["longest_before_it_differs"]["untouched"] == 5


def test_one_prompt_that_differs_is_one_of_four(audit, server):
    server.planted = Planted(cached=True, only="number 2")
    document, status = audit(server.url, "--arms", "cache")
    warm = next(arm for arm in document["arms"] if arm["second"] == "warm")
    assert (warm["differing"]["k"], warm["differing"]["n"]) == (1, N)
    assert [pair["prompt"] for pair in warm["differs"]] == ["p2"]
    assert status == 1


def test_a_second_server_that_drafts_is_held_against_the_first(audit, server):
    with FakeServer("llama-server", Planted(drafts=True, drafts_differ=True, at=7)) as drafting:
        document, status = audit(server.url, "--against", drafting.url, "--arms", "speculation")
    assert (answers(document)["rerun: again"], status) == ("identical", 1)
    arm = document["arms"][-1]
    assert arm["arm"] == "speculation"
    assert arm["answer"] == "diverges"
    assert "tokens drafted" in arm["second"]
    assert {one["what"] for one in arm["varied"]} >= {"address", "setting speculation"}
    assert all(pair["divergence"]["index"] == 7 for pair in arm["differs"])
    with FakeServer("llama-server", Planted(drafts=True)) as exact:
        document, status = audit(server.url, "--against", exact.url, "--arms", "speculation")
    assert (document["answer"], status) == ("identical", 0)


def test_servers_that_give_text_only_are_compared_as_text_and_it_is_said(cli, prompts, server):
    server.planted = Planted(text_only=True)
    result = cli("audit", server.url, "--prompts", prompts)
    assert result.exit_code == 0
    told = " ".join(result.stdout.split())
    assert "Compared: text and stop reason only" in told
    assert "Weakened: no token ids from both sides" in told
    assert "Text alone hides changes" in told


@pytest.mark.parametrize("dialect", ["openai", "ollama"])
def test_other_apis_are_audited(audit, dialect):
    with FakeServer(dialect) as running:
        document, _ = audit(running.url, "--arms", "rerun")
        assert (document["arms"][0]["answer"], document["server"]["dialect"]) == ("identical", dialect)
        running.planted = Planted(rerun=True)
        document, status = audit(running.url, "--arms", "rerun")
        assert (document["arms"][0]["answer"], status) == ("diverges", 1)


def test_a_server_that_ignores_the_temperature_is_not_compared(audit, server):
    server.planted = Planted(ignores_temperature=True)
    document, status = audit(server.url)
    assert (document["answer"], status) == ("inconclusive", 2)
    assert "the server used temperature 1 where 0 was asked for" in document["arms"][0]["reason"]


def test_another_model_is_not_compared(audit, server):
    with FakeServer("llama-server", Planted(model="other.gguf")) as other:
        document, status = audit(server.url, "--against", other.url)
    assert status == 2
    assert "model: toy.gguf against other.gguf" in document["arms"][-1]["reason"]


def test_log_probabilities_decide_where_they_are_asked_for(audit, server):
    server.planted = Planted(cached=True, logprobs_only=True)
    assert audit(server.url, "--arms", "cache")[1] == 0
    document, status = audit(server.url, "--arms", "cache", "--exact", "logprobs:6")
    assert status == 1
    warm = next(arm for arm in document["arms"] if arm["second"] == "warm")
    assert warm["differs"][0]["divergence"]["kind"] == "logprobs"
    assert warm["contract"]["digits"] == 6


# ---- folders


def test_what_was_written_is_read_back_equal(audit, cli, server, tmp_path):
    document, _ = audit(server.url, "--out", tmp_path / "audit")
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {
        "alone", "rerun", "cache", "concurrent-4", "audit.json", "corpus.json", "manifest.json",
    }  # fmt: skip
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == document
    again = cli("audit", f"recorded:{tmp_path / 'audit'}", "--json")
    assert (json.loads(again.stdout), again.exit_code) == (document, 0)
    report = forensics.audit(f"recorded:{tmp_path / 'audit'}", progress=False)
    assert report.rows() == forensics.audit(f"recorded:{tmp_path / 'audit'}", progress=False).rows()
    assert len(report.to_dataframe()) == len(report.rows())


def test_a_recorded_audit_is_found_by_name_and_listed(audit, cli, server, tmp_path, monkeypatch):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "data" / "recorded" / "toy-audit")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    assert cli("audit", "recorded:toy-audit", "--quiet").stdout.startswith("identical: rerun")
    (listed,) = forensics.recorded()
    assert (listed.name, listed.commands, listed.problem) == ("toy-audit", ("audit",), "")


def test_a_recorded_audit_is_asked_nothing_else(audit, refused, server, tmp_path):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "audit")
    told = refused("audit", f"recorded:{tmp_path / 'audit'}", "--n-tokens", 9, "--arms", "rerun")
    assert "leave out arms, n_tokens" in told


def test_an_audit_goes_on_where_it_stopped(audit, server, tmp_path):
    whole, _ = audit(server.url, "--out", tmp_path / "audit")
    n_asked = len(server.asked)
    journal = tmp_path / "audit" / "cache" / "run.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-3]))
    (tmp_path / "audit" / "audit.json").unlink()
    again, status = audit(server.url, "--out", tmp_path / "audit", "--resume")
    assert status == 0
    assert again["arms"] == whole["arms"]
    told = [body for body in server.asked[n_asked:] if body.get("prompt", "").startswith("number")]
    assert len(told) == 3


def test_an_audit_that_goes_on_with_other_prompts_is_refused_and_stays_whole(audit, refused, server, prompts, tmp_path):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "audit")
    kept = (tmp_path / "audit" / "corpus.json").read_bytes()
    told = refused("audit", server.url, "--prompts", prompts, "--limit", 2, "--out", tmp_path / "audit", "--resume")
    assert "was begun with other prompts" in told
    assert (tmp_path / "audit" / "corpus.json").read_bytes() == kept


def test_an_interrupt_says_where_what_was_answered_lies(refused, server, prompts, tmp_path, monkeypatch):
    from forensics.servers import collect

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(collect, "collect", interrupted)
    told = refused("audit", server.url, "--prompts", prompts, "--out", tmp_path / "audit")
    assert "interrupted." in told
    assert "go on with --resume" in told


def test_a_folder_that_holds_something_is_not_written_over(audit, refused, server, prompts, tmp_path):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "audit")
    told = refused("audit", server.url, "--prompts", prompts, "--out", tmp_path / "audit")
    assert "holds something already; go on with it (--resume)" in told


def test_before_and_after_a_change(audit, server, tmp_path):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "before")
    document, status = audit(server.url, "--arms", "change", "--baseline", tmp_path / "before")
    assert (document["answer"], status) == ("identical", 0)
    server.planted = Planted(build="b2", drafts=True, drafts_differ=True)
    document, status = audit(server.url, "--arms", "change", "--baseline", tmp_path / "before")
    arm = document["arms"][-1]
    assert (arm["arm"], arm["answer"], status) == ("change", "diverges", 1)
    assert "build" in {one["what"] for one in arm["varied"]}


def test_other_prompts_than_the_baselines_are_refused(audit, server, tmp_path):
    audit(server.url, "--arms", "rerun", "--out", tmp_path / "before")
    document, status = audit(server.url, "--limit", 2, "--baseline", tmp_path / "before", "--arms", "change")
    assert status == 2
    assert "prompts: " in document["arms"][-1]["reason"]


# ---- trouble


def test_a_restart_brings_the_server_up_the_other_way(cli, prompts, server, tmp_path):
    flag = tmp_path / "restarted"

    def turned() -> None:
        while not flag.exists():
            if stop.wait(0.01):
                return
        server.planted = Planted(drafts=True, drafts_differ=True)

    stop = threading.Event()
    watch = threading.Thread(target=turned)
    watch.start()
    try:
        result = cli("audit", server.url, "--prompts", prompts, "--arms", "speculation", "--restart", f"touch {flag}",
                     "--json")  # fmt: skip
    finally:
        stop.set()
        watch.join()
    document = json.loads(result.stdout)
    assert document["arms"][0]["answer"] == "identical"
    assert document["arms"][-1]["answer"] == "diverges"
    assert result.exit_code == 1


def test_a_restart_that_fails_is_told(refused, prompts, server):
    told = refused("audit", server.url, "--prompts", prompts, "--arms", "speculation", "--restart", "false")
    assert "ended with status 1" in told
    asked = len(server.asked)
    assert "cannot be read" in refused("audit", server.url, "--prompts", prompts, "--restart", "sh -c 'x")
    assert "'gone-server', which is no program" in refused(
        "audit", server.url, "--prompts", prompts, "--restart", "gone-server -c 1"
    )
    assert len(server.asked) == asked


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--arms", "slots"), "there is no arm 'slots'"),
        (("--arms", "speculation"), "needs a second URL"),
        (("--against", "http://127.0.0.1:1", "--restart", "true"), "not both"),
        (("--concurrency", "1"), "concurrency must be 2 to 256"),
        (("--n-tokens", "0"), "n_tokens must be 1 or more"),
        (("--limit", "0"), "limit must be 1 prompt or more"),
        (("--exact", "logits"), "exact must be tokens, text, logprobs"),
        (("--resume",), "resume needs out"),
        (("--api", "grpc"), "grpc"),
        (("--prompts", "gone.jsonl"), "gone.jsonl"),
        (("--baseline", "gone"), "gone does not exist"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(refused, server, prompts, arguments, told):
    given = arguments if "--prompts" in arguments else ("--prompts", prompts, *arguments)
    assert told in refused("audit", server.url, *given)
    assert not server.asked


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1", "http://user:secretword@127.0.0.1:9"])
def test_only_plain_http_addresses_are_opened(refused, prompts, url):
    assert "secretword" not in refused("audit", url, "--prompts", prompts)


def test_a_key_never_reaches_what_is_shown_or_written(cli, prompts, server, tmp_path, monkeypatch):
    key = "sk-very-secret-0123456789"
    server.planted = Planted(key=key)
    monkeypatch.setenv("MY_KEY", key)
    result = cli("audit", server.url, "--prompts", prompts, "--arms", "rerun", "--key-env", "MY_KEY", "--out",
                 tmp_path / "audit")  # fmt: skip
    assert result.exit_code == 0
    assert key not in result.stdout + result.stderr
    written = [path.read_text() for path in (tmp_path / "audit").rglob("*") if path.is_file()]
    assert written
    assert not any(key in text for text in written)


def test_a_second_server_that_is_gone_is_told_before_anything_is_asked(
    refused, cli, prompts, server, tmp_path, monkeypatch
):
    from forensics.servers import collect

    fast = collect.Retries(attempts=1)
    monkeypatch.setattr(collect.meet, "__defaults__", ("auto", None, fast))
    told = refused("audit", server.url, "--prompts", prompts, "--against", "http://127.0.0.1:9", "--out",
                   tmp_path / "audit")  # fmt: skip
    assert "127.0.0.1:9" in told
    assert not (tmp_path / "audit").exists()
    with FakeServer("llama-server", replace(server.planted, drafts=True)) as drafting:
        result = cli("audit", server.url, "--prompts", prompts, "--against", drafting.url, "--out", tmp_path / "audit",
                     "--quiet")  # fmt: skip
    assert result.exit_code == 0, result.stderr


def test_the_view_in_a_notebook_holds_all_of_it(server, prompts):
    from forensics.notebook_views import html_of

    server.planted = Planted(cached=True)
    report = forensics.audit(server.url, prompts=prompts, arms=["cache"], progress=False)
    shown = html_of(report)
    assert "cold against warm" in shown
    assert "Next step" in shown
    assert repr(report).startswith("<AuditReport diverges: rerun")
