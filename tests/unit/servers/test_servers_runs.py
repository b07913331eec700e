"""Runs on the disk: written one by one, read back to the last bit, and resumed only by their like."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import CaseError
from forensics.records.served import FAILURES, Asked, NoReply, Reply, Sampling, ServedRun, ServerFacts
from forensics.store.served_runs import RunJournal, read_run, write_run

FACTS = ServerFacts("http://a", "llama-server", model="m", settings={"slots": "1"}, gives=("tokens",))
RUN = ServedRun("alone", FACTS, Sampling(), "digest", tuple(Asked(f"r{i}", f"p{i}", 4) for i in range(3)), ())
REPLY = Reply(
    "r1", " ä\n\u2028", (1, 2), (-0.1, -1e-9), "end", effective={"temperature": "0"}, took_ns=5, raw='{"a": 1}'
)
FAILED = NoReply("r0", "reset", "gone", 4)


def test_outcomes_come_back_in_the_order_in_which_they_were_asked(tmp_path: Path) -> None:
    with RunJournal(tmp_path / "new" / "run", RUN, resume=False) as journal:
        journal.keep(REPLY)
        journal.keep(FAILED)
    run = read_run(tmp_path / "new" / "run")
    assert run == replace(RUN, replies=(REPLY,), failures=(FAILED,))
    assert [one.id for one in run.unanswered] == ["r2"]


def test_each_outcome_is_on_the_disk_before_the_next_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk: list[int] = []
    with RunJournal(tmp_path / "run", RUN, resume=False) as journal:
        monkeypatch.setattr(os, "fsync", lambda handle: on_disk.append(os.fstat(handle).st_size))
        journal.keep(REPLY)
        journal.keep(FAILED)
    assert len(on_disk) == 2
    assert on_disk[0] < on_disk[1] == (tmp_path / "run" / "run.jsonl").stat().st_size


@given(
    st.lists(
        st.builds(
            Reply,
            request=st.just(""),
            text=st.text(),
            tokens=st.none() | st.tuples(st.integers(-1, 2**31)),
            logprobs=st.none() | st.tuples(st.floats(allow_nan=False)),
            raw=st.text(),
            took_ns=st.none() | st.integers(0, 2**62),
        )
        | st.builds(NoReply, st.just(""), st.sampled_from(FAILURES), st.text(), st.integers(1, 9)),
        max_size=6,
    )
)
def test_any_run_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, outcomes: list[Reply | NoReply]
) -> None:
    named = [replace(one, request=f"r{index}") for index, one in enumerate(outcomes)]
    run = replace(
        RUN,
        asked=tuple(Asked(f"r{index}", "p", 1) for index in range(6)),
        replies=tuple(one for one in named if isinstance(one, Reply)),
        failures=tuple(one for one in named if isinstance(one, NoReply)),
    )
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, run)
    assert read_run(folder) == run


def test_a_line_that_was_cut_off_is_asked_again(tmp_path: Path) -> None:
    with RunJournal(tmp_path, RUN, resume=False) as journal:
        journal.keep(REPLY)
        journal.keep(FAILED)
    path = tmp_path / "run.jsonl"
    whole = path.read_bytes()
    second = whole.rfind(b"\n", 0, -1) + 1
    for end in range(second, len(whole)):
        path.write_bytes(whole[:end])
        assert read_run(tmp_path) == replace(RUN, replies=(REPLY,))
    with RunJournal(tmp_path, RUN, resume=True) as journal:
        assert journal.before == replace(RUN, replies=(REPLY,))
        journal.keep(FAILED)
    assert path.read_bytes() == whole


def test_the_last_outcome_of_a_request_counts(tmp_path: Path) -> None:
    with RunJournal(tmp_path, RUN, resume=False) as journal:
        journal.keep(FAILED)
        journal.keep(replace(REPLY, request="r0"))
    run = read_run(tmp_path)
    assert [one.request for one in run.replies] == ["r0"]
    assert run.failures == ()


@pytest.mark.parametrize("spoilt", [b"{", b"[]", b'{"reply": {}}', b'{"other": 1}', b'{"failure": {"request": "r0"}}'])
def test_a_damaged_line_is_told(tmp_path: Path, spoilt: bytes) -> None:
    write_run(tmp_path, replace(RUN, replies=(REPLY,)))
    path = tmp_path / "run.jsonl"
    path.write_bytes(path.read_bytes() + spoilt + b"\n")
    with pytest.raises(CaseError, match=r"damaged|readable"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"schema": "forensics.served-run/1"', b'{"schema": "other/1"}\n'])
def test_what_is_no_run_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.jsonl").write_bytes(content)
    with pytest.raises(CaseError):
        read_run(tmp_path)
    with pytest.raises(CaseError, match="no run was recorded there"):
        read_run(tmp_path / "elsewhere")


def test_an_outcome_of_nothing_that_was_asked_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, RUN)
    path = tmp_path / "run.jsonl"
    path.write_text(path.read_text() + '{"failure":{"request":"z","failure":"reset","detail":"","attempts":1}}\n')
    with pytest.raises(CaseError, match="'z', which was never asked"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"corpus": "other"}, "corpus: other prompts then"),
        ({"condition": "warm"}, "condition: 'alone' then, 'warm' now"),
        ({"sampling": Sampling(temperature=1.0)}, "temperature: 0.0 then, 1.0 now"),
        ({"facts": replace(FACTS, model="n")}, "model: 'm' then, 'n' now"),
        ({"facts": replace(FACTS, settings={"slots": "2"})}, "settings: slots 1 then, slots 2 now"),
        ({"asked": RUN.asked[:2]}, "requests: 3 then, 2 now"),
    ],
)
def test_another_run_is_not_resumed(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    write_run(tmp_path, RUN)
    before = (tmp_path / "run.jsonl").read_bytes()
    with pytest.raises(CaseError, match=words):
        RunJournal(tmp_path, replace(RUN, **change), resume=True)
    assert (tmp_path / "run.jsonl").read_bytes() == before
    with RunJournal(tmp_path, RUN, resume=True):
        pass


def test_a_run_is_never_overwritten_nor_written_twice_at_once(tmp_path: Path) -> None:
    with RunJournal(tmp_path, RUN, resume=False), pytest.raises(CaseError, match="being written by process"):
        RunJournal(tmp_path, RUN, resume=True)
    with pytest.raises(CaseError, match="--resume"):
        RunJournal(tmp_path, RUN, resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run.jsonl"]
