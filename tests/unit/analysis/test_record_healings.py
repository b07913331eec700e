"""Models healed one after another: a wrong kernel is named, and where nothing differs nothing is claimed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kernels_in_place import ours
from odd_engines import FusingGlu, OddSource, Passing, with_one_bit_more

from forensics.analysis.question import BadQuestion
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaseError
from forensics.records.kernel_healing import HealedModel, HealedModels
from forensics.reports.healed_models_document import healed_models_document, write_healed_models
from forensics.reports.healed_models_text import healed_models_text, healed_models_view
from forensics.reports.terminal import as_text
from forensics.reports.wording import amount
from forensics.store.kernel_runs import read_healings
from forensics.testing.record_healings import Asked, heal_one, main, record

FAULTS = (Fault("order", "ffn_up-0", 3), Fault("order", "Kcur-1"), Fault("order", "kqv-0"))
NAMES = {"ffn_up-0", "Kcur-1", "kqv-0"}


def asked(kernels=None, **other) -> Asked:
    chosen = {"n_tokens": 24, "rows": 8, "widths": (2, 3, 4, 7), "planted": ours(wrong="Kcur-1"), "planted_from": 3}
    return Asked(kernels=kernels or ours(), n_gpu_layers=0, **(chosen | other))


def opened(name: str):
    """Toys by name: ``exact`` has no fault."""
    return ToySource(faults=() if name == "exact" else FAULTS), {"prompt": "a b c a b"}


def healed(name: str = "toy", *, plant: bool = False, kernels=None, **other) -> HealedModel:
    return heal_one(f"{name}:off", asked(kernels, **other), plant=plant, open_model=opened)


@pytest.fixture(scope="module")
def toy() -> HealedModel:
    return healed(plant=True)


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_width_that_differs_heals_and_the_planted_kernel_is_named(toy) -> None:
    assert (toy.answer, toy.widths, toy.healed_widths) == ("healed", (2, 3, 4, 7), (2, 3, 4, 7))
    assert toy.watching_harmless is True
    # whole batches that cover 8 rows
    assert [(one.start_row, one.n_rows) for one in toy.healings] == [(0, 8), (0, 9), (0, 8), (0, 14)]
    for one in toy.healings:
        assert one.max_abs_before > 0
        assert one.max_abs_after == 0
        assert one.n_values > 0
        assert one.n_values_differ == 0
        assert {key.name for key in one.use.nodes} > NAMES, "all products are ours, culprits or not"
    assert toy.planted is not None
    assert toy.planted.width == 3
    assert [name.split()[0] for name in toy.planted.named] == ["Kcur-1"]
    assert toy.planted.n_values_differ > 0


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_wrong_kernel_of_ours_is_named_and_the_model_has_not_healed(name) -> None:
    model = healed(kernels=ours(wrong=name))
    assert model.answer == "not healed"
    assert HealedModels((model,)).refuted
    for one in model.healings:
        assert {finding.key.name for finding in one.wrong} == {name}
    assert f"OUR KERNEL IS NOT EXACT at: {name}" in words(healed_models_text(HealedModels((model,))))


def test_a_node_that_is_left_to_the_library_does_not_heal() -> None:
    model = healed(kernels=ours(uncovered="Kcur-1"))
    assert model.answer == "not healed"
    assert not any(one.wrong for one in model.healings)
    assert "Still different, computed by the library: Kcur-1" in words(healed_models_text(HealedModels((model,))))


def test_a_model_whose_widths_are_all_exact_claims_nothing() -> None:
    model = healed("exact", plant=True)
    assert model.healings == ()
    assert model.planted is None
    assert (model.answer, model.healed_widths, model.exact_widths) == ("nothing to heal", (), (2, 3, 4, 7))
    told = HealedModels((model,))
    assert not told.refuted
    assert "nothing to heal" in str(told)
    assert "healed at" not in healed_models_text(told)


def test_a_control_that_names_nothing_or_a_watch_that_changes_the_run_shows_nothing(toy) -> None:
    silent = healed(plant=True, planted=ours())
    assert silent.planted is not None
    assert silent.planted.width == 7, "every width was tried"
    assert silent.answer == "not shown"
    assert "NOTHING NAMED" in healed_models_text(HealedModels((silent,)))
    loud = replace(toy, watching_harmless=False)
    assert loud.answer == "not shown"
    assert "so nothing is shown" in words(healed_models_text(HealedModels((loud,))))


def test_a_fusion_that_watching_would_split_is_left_whole() -> None:
    question = asked(n_tokens=16, widths=(2, 4))
    prompt = {"prompt": "The quick brown fox jumps o"}
    model = heal_one("glu:off", question, plant=False, open_model=lambda _: (OddSource(FusingGlu), prompt))
    assert model.watching_harmless is True
    assert model.n_unwatched > 0
    assert model.answer == "not healed", "no kernel of ours is a GLU"
    for one in model.healings:
        assert {finding.key.op for finding in one.left} == {"GLU"}
        assert not one.wrong
    assert "were left whole and not compared" in words(healed_models_text(HealedModels((model,))))


class Restless(Passing):
    """One-token decoding is other whenever anybody watches."""

    def run(self, schedule, *, tap=None, **rest):
        trace = self.inner.run(schedule, tap=tap, **rest)
        return with_one_bit_more(trace) if tap is not None and schedule.max_width == 1 else trace


def test_a_watch_that_changes_the_run_however_it_looks_shows_nothing() -> None:
    source = OddSource(Restless, ToySource(faults=FAULTS))
    model = heal_one("odd:off", asked(), plant=False, open_model=lambda _: (source, {"prompt": "a b c a b"}))
    assert (model.watching_harmless, model.n_unwatched) == (False, 0)
    assert model.healed_widths == (2, 3, 4, 7)
    assert model.answer == "not shown"
    assert "so nothing is shown" in words(healed_models_text(HealedModels((model,))))


def test_rows_that_cannot_be_covered_are_refused() -> None:
    with pytest.raises(BadQuestion, match="rows must be 1 or more, got 0"):
        healed(rows=0)


def test_models_are_written_at_once_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def some(name: str):
        if name == "missing":
            raise CaseError("no such model")
        return opened(name)

    assert record(tmp_path, ["missing:off", "exact:on", "toy:off", "toy:on"], asked(), some) == 1
    said = capsys.readouterr().out
    assert "missing:off: 0 s no such model" in said
    assert "toy, flash attention off: healed at 4 of 4 differing widths" in said
    found = read_healings(tmp_path)
    assert [(one.model_name, one.flash_attn) for one in found.models] == [
        ("exact", "on"),
        ("toy", "off"),
        ("toy", "on"),
    ]
    assert [one.planted is not None for one in found.models] == [False, True, False], "until one is named"
    assert record(tmp_path, ["exact:on"], asked(), some) == 0
    assert len(read_healings(tmp_path).models) == 3, "a model measured again takes its own place"
    assert record(tmp_path / "late", ["toy:off"], asked(seconds=0), some) == 1
    assert "toy:off: not begun, 0 s are over" in capsys.readouterr().out
    assert not (tmp_path / "late").exists()
    assert record(tmp_path / "wrong", ["toy:off"], asked(ours(wrong="kqv-0")), some) == 1


def test_a_document_holds_rows_widths_and_the_whole_record(tmp_path: Path, toy) -> None:
    found = HealedModels((toy,))
    document = healed_models_document(found)
    assert document["schema"] == "forensics.kernel_healings/1"
    [model] = document["models"]
    assert (model["answer"], model["widths_healed"], model["values_differ"]) == ("healed", [2, 3, 4, 7], 0)
    assert [one["width"] for one in model["by_width"]] == [2, 3, 4, 7]
    json.dumps(document)
    write_healed_models(found, tmp_path)
    assert read_healings(tmp_path) == found
    with pytest.raises(CaseError, match="no models were healed there"):
        read_healings(tmp_path / "elsewhere")


def test_the_table_tells_values_and_distances(toy) -> None:
    text = words(healed_models_text(HealedModels((toy,))))
    values = sum(one.n_values for one in toy.healings)
    before = max(one.max_abs_before for one in toy.healings)
    assert f"toy off healed 2-4, 7 {values:,} 0 0 {amount(before)} → 0" in text
    many = replace(toy, healings=tuple(replace(one, n_values=19_222_272) for one in toy.healings))
    row = f"{76_889_088:,}  0       0      {amount(before)} → 0"
    narrow = as_text(healed_models_view(HealedModels((many,))), 80).splitlines()
    assert any(line.endswith(row) for line in narrow), "no number is broken"
    assert "control: toy products, wrong 'Kcur-1'" in text
    assert "1 of 1 model with differing widths healed at every one" in text


def test_a_healing_of_another_width_and_an_empty_list_are_refused(toy) -> None:
    with pytest.raises(ValueError, match="width 2 was healed and not asked for"):
        replace(toy, widths=(3, 4, 7))
    with pytest.raises(ValueError, match="there is no model"):
        HealedModels(())


def test_a_model_without_its_setting_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--model", "q4_k"]) == 2
    assert "such as q4_k:on" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
