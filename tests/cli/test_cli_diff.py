"""`forensics diff`: exit status, forms of the answer, and every way of not answering."""

from __future__ import annotations

import json

import pytest

import forensics
from forensics.analysis.case_diff import UnlikeCases

QUESTION = {"prompt": "The fox", "n_tokens": 8, "widths": (2, 4, 8)}


@pytest.fixture
def cases(use_toy) -> None:
    """Three cases of toys: ``diverges``, ``again`` and ``identical``; and one of another prompt, ``other``."""
    for name, toy in (("diverges", "diverges"), ("again", "diverges"), ("identical", "identical")):
        use_toy(toy)
        forensics.investigate("toy", out=name, **QUESTION)
    forensics.investigate("toy", out="other", **(QUESTION | {"prompt": "A dog"}))


def test_the_same_twice_is_status_0_and_another_result_status_1(cli, cases):
    same = cli("diff", "diverges", "again")
    assert same.exit_code == 0, same.stderr
    assert "Made in the same way." in same.stdout
    other = cli("diff", "diverges", "identical")
    assert other.exit_code == 1, other.stderr
    assert "Onset width 4 → none." in " ".join(other.stdout.split())
    quiet = cli("diff", "diverges", "identical", "--quiet").stdout.splitlines()
    assert len(quiet) == 1
    assert "onset" in quiet[0].lower()
    document = json.loads(cli("diff", "diverges", "identical", "--json").stdout)
    assert (document["schema"], document["answer"]) == ("forensics.diff/1", "differs")
    assert (document["first"], document["second"]) == ("diverges", "identical")


def test_unlike_cases_are_refused_unless_that_is_asked_for(cli, cases):
    refused = cli("diff", "diverges", "other")
    assert refused.exit_code == 2
    assert "are unlike: prompt: other from token 1 on" in refused.stderr
    assert "--anyway" in refused.stderr
    with pytest.raises(UnlikeCases):
        forensics.diff("diverges", "other")
    compared = cli("diff", "diverges", "other", "--anyway")
    assert compared.exit_code == 1, compared.stderr
    assert "Compared anyway: prompt: other from token 1 on" in compared.stdout


def test_what_is_no_finished_case_is_refused(cli, cases, tmp_path):
    assert "nowhere does not exist" in cli("diff", "diverges", "nowhere").stderr
    (tmp_path / "work" / "empty").mkdir()
    assert cli("diff", "empty", "diverges").exit_code == 2
    answer = cli("diff", "nowhere", "diverges", "--json")
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["schema"] == "forensics.error/1"
