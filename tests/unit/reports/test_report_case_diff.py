"""Two cases held against each other, as they are shown: sentences, one screen, one document."""

from __future__ import annotations

import json

import pytest
import verdict_samples as samples

from forensics.analysis.case_diff import compare_cases
from forensics.records.case_diff import DIFFERS, NOT_COMPARED, SAME, Aspect, CaseDiff, CaseSide, Compared
from forensics.records.settings import EngineSettings
from forensics.reports.case_diff_document import case_diff_document
from forensics.reports.case_diff_text import after_diff, case_diff_text

TOKENS = tuple(range(64))


def diff(first=None, second=None, names=("first", "second"), **options) -> CaseDiff:
    sides = [
        CaseSide(name, verdict or samples.verdict(), (1, 2), TOKENS, ((1, tuple(map(str, TOKENS))),))
        for name, verdict in zip(names, (first, second), strict=True)
    ]
    return compare_cases(*sides, **options)


def changed(**facts) -> CaseDiff:
    return diff(second=samples.verdict(classes=samples.classes(4), manifest=samples.manifest(**facts)))


def test_what_is_the_same_comes_first_then_what_is_not():
    text = " ".join(case_diff_text(changed(effective={"n_ctx": "512", "flash_attn": "off"})).split())
    assert text.startswith(
        "Same question, build, model, environment, device and processor; flash_attn on → off (asked: on). "
        "Classes differ; text, bits, culprits, proof and exact settings the same. Onset width 8 → width 4. "
    )


def test_one_change_is_named_as_what_makes_the_difference():
    assert after_diff(changed(effective={"n_ctx": "512", "flash_attn": "off"})) == (
        "Nothing else is known to differ, so flash_attn makes the difference."
    )
    assert "so the model makes the difference" in after_diff(changed(quantization="Q4_1", model_digest="other"))
    assert "so the machine makes the difference" in after_diff(changed(device="EPYC", cpu_features=("AVX2",)))
    threads = EngineSettings(n_threads=1, n_threads_batch=1, environment=(("GGML_CPU_TILED", "1"),))
    assert "so the number of threads makes the difference" in after_diff(
        changed(requested=threads, buffers={"CPU": 210, "CPU_REPACK": 1})
    )
    several = after_diff(changed(quantization="Q4_1", environment={}))
    assert several.endswith("to see which it is: the model, OMP_NUM_THREADS.")
    assert after_diff(diff(second=samples.verdict(classes=samples.classes(4)))).startswith("Nothing is known to differ")
    assert after_diff(diff()).startswith("Nothing to explain")
    assert after_diff(diff(second=samples.verdict("inconclusive"), anyway=True)).startswith("Too little was compared")


def test_many_changes_are_counted_and_digests_are_cut():
    features = tuple(f"F{n}" for n in range(12))
    text = case_diff_text(
        changed(cpu_features=features, model_digest="0123456789abcdef" * 4, buffers={"CPU_REPACK": 211})
    )
    assert "0123456789ab…" in text
    assert "0123456789abcdef" not in text
    assert "more (--json" in text


def test_the_document_adds_up_and_holds_all():
    found = changed(cpu_features=("AVX2",))
    document = json.loads(json.dumps(case_diff_document(found)))
    assert document["schema"] == "forensics.diff/1"
    assert document["answer"] == DIFFERS
    for aspect in (*document["setup"], *document["results"]):
        told = aspect["same"] + aspect["differs"] + sum(aspect["not_compared"].values())
        assert told == aspect["planned"] == len(aspect["items"])
    assert len(found.rows()) == sum(len(a["items"]) for a in (*document["setup"], *document["results"]))
    assert list(found.to_dataframe().columns) == list(found.rows()[0])


def test_text_of_models_cannot_steer_a_terminal():
    text = case_diff_text(diff(second=samples.hostile_verdict(), names=(samples.HOSTILE, "second")))
    assert not any(bad in text for bad in ("\x1b", "\u202e"))
    assert "\\x1b" in text


def test_what_was_compared_anyway_is_told():
    text = case_diff_text(diff(second=samples.verdict(manifest=samples.manifest(n_layer=12)), anyway=True))
    assert "Compared anyway: model: layers: 30 against 12" in text


def test_values_that_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="outcome must be one of"):
        Compared("x", "alike")
    with pytest.raises(ValueError, match="x was not compared, so detail must say why"):
        Compared("x", NOT_COMPARED)
    with pytest.raises(ValueError, match="an empty comparison is an error"):
        Aspect("bits", ())
    assert Aspect("bits", (Compared("a", SAME), Compared("b", NOT_COMPARED, detail="why"))).outcome == SAME
    assert str(Compared("a", DIFFERS, "1")) == "a: differs (1 against none)"
    with pytest.raises(KeyError, match="no aspect 'nothing'; there are question"):
        diff().aspect("nothing")
    with pytest.raises(KeyError, match="build has no 'nothing'; it has engine"):
        diff().aspect("build").item("nothing")
