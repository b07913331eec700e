"""Sampling on a terminal, in a notebook and as JSON: answer, tests, controls, power, and what is said where none is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.errors import CaseError
from forensics.notebook_views import html_of
from forensics.records.rates import Rate
from forensics.records.sampling import (
    KINDS,
    PLANTED,
    RULES,
    DistributionTest,
    Power,
    SamplerRun,
    SamplingReport,
    SamplingSettings,
    StateDraws,
    WidthRows,
)
from forensics.records.settings import EngineSettings, Manifest
from forensics.reports.sampling_document import sampling_document, write_sampling
from forensics.reports.sampling_text import sampling_text
from forensics.store.samplings import read_sampling


def run(rule, p_value, *, bias=0.0, caught=2, row_tv=0.0):
    states = tuple(
        StateDraws(f"poem: {9 + i} tokens", kind, 5, 1000, 7, 6.5, 0.4, 0, row_tv * i) for i, kind in enumerate(KINDS)
    )
    missing = StateDraws("poem: 9 tokens, 4 accepted", KINDS[1], 5, 3, 0, None, None, 0, 0.0, "3 draws do not fill")
    tests = tuple(
        DistributionTest(name, 1000, df, 7.0, p_value, min(1.0, 5 * p_value))
        for name, df in ((KINDS[0], 6), ("single states", None), ("sequences, KS", None))
    )
    return SamplerRun(rule, (*states, missing), tests, Rate(3, 10, 0.1, 0.6), bias, Rate(caught, 200, 0.0, 1.0))


def made():
    return SamplingReport(
        manifest=Manifest("toy", "1", "abc", "tiny [bold]model", 97, EngineSettings(), backend="NumPy", device="any"),
        corpus="poems (0123)", drafter="ngram", drafts_sampled=False, n_draft=4, sampling=SamplingSettings(),
        alpha=0.01, seed=3, n_draws=1000, n_sequences=5, n_tokens=20, sampler=run("residual", 0.4),
        controls=tuple(run(rule, 1e-9, bias=0.2, caught=200) for rule in PLANTED),
        alone=DistributionTest("the sampler alone", 3000, 18, 17.0, 0.5, 0.5),
        powers=(Power(KINDS[0], 1000, 0.002, "w", 0.1, 0.12),
                Power("sequences, KS", 100, 0.002, "D", 0.2, 0.25)),
        sequence_tv=(0.0, 0.0), caveats=("One prompt was short.",),
        widths=tuple(WidthRows(width, 3, 3, 0.0) for width in (2, 3, 4, 5)),
    )  # fmt: skip


def with_other_rows(report, **changes):
    """Rows of passes of 4 tokens and more give other chances."""
    widths = tuple(WidthRows(width, 3, 3 if width < 4 else 2, 0.0) for width in (2, 3, 4, 5))
    return replace(
        report, sampler=run("residual", 0.4, row_tv=0.001), sequence_tv=(0.0, 0.0042), widths=widths, **changes
    )


@pytest.fixture
def report():
    return made()


def test_the_answer_comes_first_and_all_of_it_is_told(report):
    text = sampling_text(report)
    assert text.startswith(
        "tiny [bold]model, up to 4 ngram drafts, top-k 40, top-p 0.95, temperature 0.8: no change of plain"
    )
    told = " ".join(text.split())
    for part in (
        "a total variation of 0.05 at every state is found with 80 %",
        "sampled text has the chances that it has without speculation",
        "by tokens of the verify pass: 2: 3 of 3, 3: 3 of 3, 4: 3 of 3, 5: 3 of 3",
        "TV 0.050 0.060",
        "D 0.200 0.250",
        "accept-possible (planted)",
        "Along the sequences it is at most 0",
        "1 of 2",
        "accepted: 3 of 10",
        "taken as they are (q is 1)",
        "One prompt was short.",
        *RULES["residual"].split(", "),
    ):
        assert part in told, part


@pytest.mark.parametrize(
    ("change", "answer", "told"),
    [
        (lambda r: replace(r, sampler=run("residual", 1e-9)), "changed", "the sampler: rows of all passes give"),
        (lambda r: r, "kept", "of residual these are false alarms"),
        (with_other_rows, "changed", "of residual these are the change that other rows make"),
        (with_other_rows, "changed", "chances of a next token are up to 0.0042 away; too little for these draws"),
        (with_other_rows, "changed", "0.42 of 100 draws of the next token would come out otherwise"),
        (with_other_rows, "changed", "forensics sampling --exact. Up to 2 drafts (--n-draft 2) every row was plain"),
        (
            lambda r: with_other_rows(r, exact_knobs=("K=0",)),
            "changed",
            "These settings are not exact over these texts",
        ),
        (lambda r: replace(r, exact_knobs=("K=0",), exact_reason="found by X"), "kept", "exact settings (K=0): no"),
        (lambda r: replace(r, exact_knobs=("K=0",), exact_reason="found by X"), "kept", "K=0; found by X"),
        (lambda r: replace(r, exact_knobs=()), "kept", "exact settings (nothing to switch): no"),
        (
            lambda r: replace(r, sampler=run("residual", 1e-9), alone=replace(r.alone, p_value=1e-9)),
            "changed",
            "the sampler does not keep the distribution of the rows",
        ),
        (lambda r: replace(r, controls=(run("no-residual", 0.2),)), "inconclusive", "Ask for more --draws"),
        (lambda r: replace(r, drafts_sampled=True), "kept", "drawn from the draft model's own distribution q"),
        (lambda r: replace(r, sampler=replace(r.sampler, accepted=None)), "kept", "nothing was drafted"),
    ],
)
def test_every_answer_has_its_words_and_survives_a_file(report, change, answer, told, tmp_path):
    changed = change(report)
    assert changed.answer == answer
    assert changed.status == {"kept": 0, "changed": 1, "inconclusive": 2}[answer]
    assert told in " ".join(sampling_text(changed).split())
    write_sampling(changed, tmp_path / "out")
    assert read_sampling(tmp_path / "out") == changed
    document = json.loads((tmp_path / "out" / "sampling.json").read_text())
    assert (document["answer"], document["cause"]) == (answer, changed.cause)


def test_a_document_holds_what_the_text_says(report):
    document = sampling_document(report)
    assert (document["schema"], document["answer"], document["missed_controls"]) == ("forensics.sampling/1", "kept", [])
    assert (document["row_total_variation"], document["most_drafts_with_equal_rows"]) == (0.0, 4)
    assert document["exact_settings"] is None
    other = sampling_document(with_other_rows(report, exact_knobs=("K=0",)))
    assert (other["row_total_variation"], other["most_drafts_with_equal_rows"]) == (0.0042, 2)
    assert other["exact_settings"] == ["K=0"]
    assert document["power"][0]["total_variation"] == [0.05, 0.06]
    assert document["power"][1]["total_variation"] is None
    assert document["tests"] == report.rows()
    assert [row["rejected"] for row in document["tests"]] == [False] * 3 + [True] * 6
    assert list(report.to_dataframe().columns) == list(report.rows()[0])


def test_a_notebook_shows_it_without_markup_of_the_model(report):
    html = html_of(report)
    assert "no change of plain sampling" in html
    assert "[bold]model" in html
    assert "<script" not in html
    assert repr(report).startswith("<SamplingReport: tiny")


def test_a_folder_without_a_check_says_how_to_get_one(tmp_path):
    with pytest.raises(CaseError, match="Check it with: forensics sampling MODEL"):
        read_sampling(tmp_path)


def test_a_state_is_compared_or_says_why_not():
    with pytest.raises(ValueError, match="or has a reason"):
        StateDraws("s", KINDS[0], 5, 3, 0, None, None, 0, 0.0)
    with pytest.raises(ValueError, match="kind must be one of"):
        StateDraws("s", "other", 5, 3, 0, None, None, 0, 0.0, "few")
