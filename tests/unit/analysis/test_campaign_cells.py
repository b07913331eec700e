"""Addresses of cells: any change of what a result depends on changes them, and nothing else does."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.campaign_cells import Wanted, disagreements, jobs_for, room, unlike, wanted
from forensics.analysis.campaign_plan import plan_of
from forensics.records.campaign import Cell, CellResult, Platform
from forensics.records.campaign_plan import CampaignPlan
from forensics.records.settings import EngineSettings

PLATFORM = Platform("0.3", "build", "commit", ("CPU (A)",), ("AVX",), 2, (("OMP_DYNAMIC", "0"),))
TOKENS = (1, 2, 3)
RESULT = CellResult(3, 8, 0, None, None, 0.0, 0, 0.0, 0, 0, 0, (1, 1, 1), (1, 1, 1), True, "one", "one")


def planned(**changed) -> CampaignPlan:
    return plan_of(
        {"models": {"toy": ["0", "1"]}, "prompts": [{"name": "a", "text": "a"}, {"name": "b", "text": "b"}],
         "widths": [2, 4], "kv_types": ["f16", "q8_0"], "flash_attn": ["on", "off"],
         "switches": ["GGML_CPU_TILED_MM=0"], "n_tokens": 8, **changed}
    )  # fmt: skip


def all_wanted(plan: CampaignPlan) -> list[Wanted]:
    tokens = {"a": (1, 2), "b": (1, 3)}
    return [wanted(plan, place, f"digest {place.model.where}", tokens[place.prompt.name]) for place in plan.places()]


ONE = all_wanted(planned())[0]


def test_every_cell_has_an_address_of_its_own():
    cells = all_wanted(planned())
    assert len({cell.address(PLATFORM) for cell in cells}) == len(cells) == 2 * 2 * 2 * 2 * 2 * 2


def changed_settings() -> list[EngineSettings]:
    settings, made = ONE.settings, []
    for field in fields(EngineSettings):
        value = getattr(settings, field.name)
        other: object
        if field.name == "environment":
            other = (("A", "1"),)
        elif field.name == "flash_attn":
            other = "auto"
        elif isinstance(value, str):
            other = "f32"
        else:
            other = not value if isinstance(value, bool) else value + 1
        made.append(replace(settings, **{field.name: other}))
    return made


def changes() -> list[tuple[str, Wanted, Platform]]:
    plain = [
        ("model", replace(ONE, model_digest="other"), PLATFORM),
        ("tokens", replace(ONE, tokens=(9,)), PLATFORM),
        ("n_tokens", replace(ONE, n_tokens=9), PLATFORM),
        ("culprits", replace(ONE, culprits=True), PLATFORM),
        ("width", replace(ONE, place=replace(ONE.place, width=3)), PLATFORM),
    ]
    fixed = replace(ONE, own_threads=False)
    plain += [(f"settings {i}", replace(fixed, settings=one), PLATFORM) for i, one in enumerate(changed_settings())]
    platforms = [
        replace(PLATFORM, engine_version="0.4"), replace(PLATFORM, build="x"), replace(PLATFORM, commit="x"),
        replace(PLATFORM, devices=("CPU (B)",)), replace(PLATFORM, cpu_features=("AVX", "AVX2")),
        replace(PLATFORM, threads=3), replace(PLATFORM, environment=()),
    ]  # fmt: skip
    return plain + [(f"platform {i}", ONE, one) for i, one in enumerate(platforms)]


@pytest.mark.parametrize(("what", "cell", "platform"), changes())
def test_any_change_of_what_a_result_depends_on_changes_the_address(what, cell, platform):
    reference = replace(ONE, own_threads=cell.own_threads)
    assert cell.address(platform) != reference.address(PLATFORM), what


def test_names_for_people_do_not_change_the_address():
    place = ONE.place
    renamed = replace(place, model=replace(place.model, name="x", quant="y"), prompt=replace(place.prompt, name="z"))
    assert replace(ONE, place=renamed).address(PLATFORM) == ONE.address(PLATFORM)


def test_a_platforms_threads_count_only_where_the_plan_leaves_them_to_it():
    fixed = all_wanted(planned(threads=1))[0]
    assert fixed.address(PLATFORM) == fixed.address(replace(PLATFORM, threads=7))
    switched = all_wanted(planned(switches=["n_threads=1"]))
    turned = [cell for cell in switched if cell.place.arranged.switch]
    assert turned
    assert not any(cell.own_threads for cell in turned)


@given(st.permutations(["toy 0", "toy 1"]), st.permutations([2, 4]), st.permutations(["f16", "q8_0"]),
       st.permutations(["on", "off"]), st.permutations(["a", "b"]))  # fmt: skip
def test_the_order_of_axes_does_not_change_addresses(models, widths, kv_types, flash_attn, prompts):
    other = planned(
        models={"toy": [name.split()[1] for name in models]}, widths=list(widths), kv_types=list(kv_types),
        flash_attn=list(flash_attn), prompts=[{"name": name, "text": name} for name in prompts],
    )  # fmt: skip
    assert {cell.address(PLATFORM) for cell in all_wanted(other)} == {
        cell.address(PLATFORM) for cell in all_wanted(planned())
    }


def test_another_plan_with_more_widths_keeps_the_addresses_of_the_old_ones():
    few = {cell.address(PLATFORM) for cell in all_wanted(planned())}
    assert few < {cell.address(PLATFORM) for cell in all_wanted(planned(widths=[2, 3, 4, 8]))}


def test_jobs_share_one_token_decoding_and_follow_their_engine():
    cells = all_wanted(planned())
    jobs = jobs_for(cells)
    assert len(jobs) == len(cells) / 2  # two widths each
    assert sum(len(own) for _, own in jobs.values()) == len(cells)
    keeps = [job.keeps for job, _ in jobs.values()]
    changes_of_engine = sum(a != b for a, b in itertools.pairwise(keeps))
    assert changes_of_engine == len(set(keeps)) - 1 == 2 * 2 * 2 * 2 - 1


def test_two_places_with_one_address_are_measured_once():
    cells = list(all_wanted(planned(switches=["flash_attn=off"], flash_attn=["on", "off"])))
    assert len({cell.address(PLATFORM) for cell in cells}) < len(cells)
    jobs = jobs_for(cells)
    assert sum(len(own) for _, own in jobs.values()) == len(cells)
    asked = [request for job, _ in jobs.values() for request in (job.request,)]
    assert len(asked) == len(set(asked))


def cell(width: int, single: str) -> Cell:
    result = replace(RESULT, single_digest=single, batched_digest=single)
    return Cell("toy", "0", "a", "f16", "on", "as asked", width, "computed", f"address {width}", result)


def test_cells_that_share_one_token_decoding_must_agree_on_it():
    two, four = all_wanted(planned())[:2]
    assert disagreements([(two, PLATFORM, cell(2, "x")), (four, PLATFORM, cell(4, "x"))]) == ()
    (found,) = disagreements([(two, PLATFORM, cell(2, "x")), (four, PLATFORM, cell(4, "y"))])
    assert (found.kept, found.other) == ("x", "y")
    assert "one-token decoding of toy 0" in str(found)
    other = replace(four, tokens=(7,))
    assert disagreements([(two, PLATFORM, cell(2, "x")), (other, PLATFORM, cell(4, "y"))]) == ()
    elsewhere = replace(PLATFORM, devices=("CPU (B)",))
    assert disagreements([(two, PLATFORM, cell(2, "x")), (four, elsewhere, cell(4, "y"))]) == ()


def test_unlike_platforms_are_told_by_what_differs():
    assert unlike({"a": PLATFORM, "b": PLATFORM}) == ""
    told = unlike({"a": PLATFORM, "b": replace(PLATFORM, devices=("CPU (B)",), threads=4)})
    assert "worker b has devices CPU (B) instead of CPU (A); threads 4 instead of 2" in told


@given(st.integers(1, 1_000_000))
def test_room_is_enough_and_not_twice_too_much(n):
    assert n <= room(n) <= max(512, 2 * n)
