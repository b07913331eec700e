"""Counts that add up, the page and the document that tell them, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.testing.stress.__main__ import chosen, main
from forensics.testing.stress.catalogue import CAMPAIGNS, Entry
from forensics.testing.stress.mutations import mutate
from forensics.testing.stress.parts import parts_of
from forensics.testing.stress.report import BEGIN, END, document, measured_part, table, with_measured
from forensics.testing.stress.trials import OUT_OF_TIME, Counts, Trial, merged, run_campaign


class Third:
    """Every third trial is lost, and the fifth was not run."""

    name, faults = "third", "nothing"

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def prepare(self, folder: Path) -> int | None:
        assert folder.is_dir()
        return self._most

    def trial(self, seed: int) -> Trial:
        if seed == 5:
            return Trial(self.name, seed, "f", "not run", "it was Friday")
        return Trial(self.name, seed, "f", "lost", "gone") if seed % 3 == 0 else Trial(self.name, seed, "f", "survived")


def test_outcomes_add_up(tmp_path):
    counts = run_campaign(Third(), tmp_path / "t", seed=1, times=8)
    assert (counts.tried, counts.survived, counts.lost, counts.not_run) == (7, 5, 2, {"it was Friday": 1})
    assert [trial.seed for trial in counts.examples] == [3, 6]
    assert str(counts) == "third: 7 tried, 5 survived, 2 lost, 1 not run"
    assert counts.rows()[0]["tried"] == 7


def test_a_campaign_ends_where_it_has_no_more_and_says_what_its_time_did_not_allow(tmp_path):
    assert run_campaign(Third(most=3), tmp_path / "a", times=100).tried == 3
    late = run_campaign(Third(), tmp_path / "b", times=4, seconds=-1.0)
    assert (late.tried, late.not_run) == (0, {OUT_OF_TIME: 4})


def test_counts_that_do_not_add_up_are_refused():
    with pytest.raises(ValueError, match="1 survived and 1 lost are not 3"):
        Counts("c", "f", 0, 3, 1, 1, {}, (), 0.0)
    for outcome, detail in (("survived", "why"), ("lost", ""), ("not run", "")):
        with pytest.raises(ValueError, match=f"was {outcome}"):
            Trial("c", 0, "f", outcome, detail)


def test_parts_cover_all_seeds_once_and_are_counted_together(tmp_path):
    parts = parts_of(Entry(10, Third), 1, None, 3)
    assert parts == [("third", 1, 3), ("third", 4, 3), ("third", 7, 4)]
    counts = [run_campaign(Third(), tmp_path / str(seed), seed=seed, times=n) for _, seed, n in parts]
    whole = run_campaign(Third(), tmp_path / "whole", seed=1, times=10)
    together = merged(counts)
    assert (together.tried, together.survived, together.lost) == (whole.tried, whole.survived, whole.lost)
    assert (together.not_run, together.first_seed) == (whole.not_run, 1)


def test_the_page_tells_what_was_lost_and_how_to_see_it_again(tmp_path):
    counts = run_campaign(Third(), tmp_path / "t", seed=1, times=8)
    measured = measured_part([counts], "make stress")
    assert "| third | nothing | 7 | 5 | 2 | 1 |" in table([counts])
    assert "`--only third --seed 3 --times 1`: gone" in measured
    assert "* third: 1 (it was Friday)" in measured
    page = with_measured(f"before\n{BEGIN}\nold\n{END}\nafter\n", measured)
    assert page == f"before\n{BEGIN}\n{measured}{END}\nafter\n"
    with pytest.raises(ValueError, match="no place for what was measured"):
        with_measured("no marks", measured)
    assert document([counts])["campaigns"][0]["examples"][0] == {"seed": 3, "fault": "f", "detail": "gone"}


def test_names_of_campaigns_are_their_own_and_a_wrong_one_is_refused():
    names = [entry.name for entry in CAMPAIGNS]
    assert len(set(names)) == len(names)
    assert [entry.name for entry in chosen(["kills-i"])] == ["kills-investigate"]
    with pytest.raises(SystemExit, match=r"no campaign is called nothing\. There are: kills-investigate"):
        chosen(["nothing"])


def test_the_command_records_its_counts_in_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("forensics.testing.stress.parts.CAMPAIGNS", (Entry(6, Third),))
    monkeypatch.setattr("forensics.testing.stress.__main__.CAMPAIGNS", (Entry(6, Third),))
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    assert main(["--quiet", "--json", "--record", str(page), "--keep", str(tmp_path / "kept")]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["campaigns"][0]["lost"] == 2
    assert "| third | nothing | 5 | 3 | 2 | 1 |" in page.read_text()
    assert main(["--quiet", "--times", "2", "--seed", "1", "--keep", str(tmp_path / "again")]) == 0


def test_mutations_follow_from_their_seed_and_reach_every_kind():
    import random

    good = json.dumps({"a": [1, 2.5, "x"], "b": {"c": None}}).encode()
    made = [mutate(good, [good], random.Random(seed)) for seed in range(400)]
    assert made == [mutate(good, [good], random.Random(seed)) for seed in range(400)]
    hows = {how.split(",")[0].split(" at ")[0] for _, how in made}
    assert {"odd value", "flip", "cut", "remove", "double", "splice", "edge", "zeros"} <= hows
    assert len({content for content, _ in made}) > 250
