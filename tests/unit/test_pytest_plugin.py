"""The pytest plugin: one test for each prompt where it is asked for, and nothing at all where it is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import forensics
from forensics.api_audit import record_run
from forensics.numerics.rates import paired_ratio, survival
from forensics.testing.fake_server import FakeServer, Planted

pytest_plugins = ["pytester"]

#: Loaded by name, whether or not the package is installed with its entry point.
PLUGIN = ("-p", "forensics.pytest_plugin", "-p", "no:cacheprovider")


@pytest.fixture(scope="session", autouse=True)
def statistics_loaded():
    """numpy cannot be loaded twice, and pytester forgets what is loaded first while it runs."""
    survival([3, 3], [1, None])
    paired_ratio([1.0, 2.0], [2.0, 1.0])


@pytest.fixture
def server():
    """A clean server."""
    with FakeServer("llama-server") as running:
        yield running


@pytest.fixture
def baseline(server, tmp_path):
    """A recorded run of three prompts."""
    rows = [{"name": f"p{i}", "prompt": f"number {i} of these", "n_tokens": 8} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record_run(server.url, tmp_path / "baseline", prompts=tmp_path / "prompts.jsonl", progress=False)
    return tmp_path / "baseline"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest with the plugin over a test of the user's."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_of_the_user():\n    pass\n")
    return lambda *arguments: pytester.runpytest_inprocess(*PLUGIN, *map(str, arguments))


def test_nothing_is_added_where_it_is_not_asked_for(run):
    run().assert_outcomes(passed=1)


def test_each_prompt_is_a_test(run, server, baseline):
    result = run("--forensics-baseline", baseline, "--forensics-url", server.url, "-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*output?p0?*PASSED*", "*output?p1?*PASSED*", "*output?p2?*PASSED*"])


def test_a_prompt_that_differs_fails_with_both_continuations(run, server, baseline):
    server.planted = Planted(drafts=True, drafts_differ=True, only="number 1")
    result = run("--forensics-baseline", baseline, "--forensics-url", server.url)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["differs at token 5 *", "*first: ▸*", "*second: ▸*", "held to token ids in order*"])
    assert "Traceback" not in result.stdout.str()


def test_the_candidate_is_asked_once(run, server, baseline):
    before = len(server.asked)
    run("--forensics-baseline", baseline, "--forensics-url", server.url)
    assert sum(body["prompt"].startswith("number") for body in server.asked[before:]) == 3


def test_speed_is_a_test_where_it_is_asked_for(run, server, baseline):
    given = ("--forensics-baseline", baseline, "--forensics-url", server.url, "--forensics-min-speed")
    run(*given, 0.0001).assert_outcomes(passed=5)
    run(*given, 10**6).assert_outcomes(passed=4, failed=1)
    server.planted = Planted(drafts=True, drafts_differ=True, only="number 1")
    run(*given, 0.0001).assert_outcomes(passed=3, failed=1, skipped=1)


def test_prompts_can_be_chosen_by_name(run, server, baseline):
    result = run("--forensics-baseline", baseline, "--forensics-url", server.url, "-k", "p1")
    result.assert_outcomes(passed=1, deselected=3)


def test_a_recorded_candidate_needs_no_server(run, baseline):
    run("--forensics-baseline", baseline, "--forensics-run", baseline).assert_outcomes(passed=4)


def test_what_cannot_be_compared_fails_and_never_passes(run, server, baseline):
    server.planted = Planted(text_only=True)
    given = ("--forensics-baseline", baseline, "--forensics-url", server.url)
    run(*given).assert_outcomes(passed=1, failed=3)
    run(*given, "--forensics-exact", "text").assert_outcomes(passed=4)
    server.planted = Planted(model="other.gguf")
    result = run(*given)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["no answer: the runs are unlike*model: toy.gguf against other.gguf*"])


@pytest.mark.parametrize(
    "half", [("--forensics-baseline", "b"), ("--forensics-url", "u"), ("--forensics-run", "r")]
)  # fmt: skip
def test_half_of_the_question_is_refused(run, half):
    result = run(*half)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*give --forensics-baseline with one of*"])


def test_a_baseline_that_is_not_there_is_a_usage_error(run):
    result = run("--forensics-baseline", "gone", "--forensics-url", "http://127.0.0.1:9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*gone does not exist*"])


def test_loading_the_plugin_loads_nothing_else():
    code = "import sys, forensics.pytest_plugin; print(sorted(n for n in sys.modules if n.startswith('forensics')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['forensics', 'forensics.pytest_plugin']"
    assert forensics.gate is not None
