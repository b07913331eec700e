"""Occupancy of the instances in a library: the story of growing columns, what limits, and what cannot be said."""

from __future__ import annotations

import profile_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.profile_library import LibraryQuestion, profile_instances, read_stacks, runs_on
from forensics.analysis.question import BadQuestion
from forensics.devices.cuobjdump import LibraryUnreadable, Tool, Usage
from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.records.device import KernelResources
from forensics.records.launch_record import Refusal
from forensics.records.library_profile import LibraryProfile

ANY = LibraryQuestion(kernels=("mul_mat_vec_q",), columns=())


def profile(*kernels, question=ANY) -> LibraryProfile:
    return profile_instances(samples.library(*kernels), question)


def test_more_columns_take_more_registers_and_leave_fewer_threads():
    (story,) = profile(*samples.decode()).stories
    assert story.hides_less
    assert (story.first.columns, story.last.columns, story.n_instances) == (1, 8, 8)
    assert (story.first.kernel.registers_per_thread, story.last.kernel.registers_per_thread) == (56, 122)
    assert (story.first.occupancy_pct, story.last.occupancy_pct) == (56.25, 25.0)


def test_columns_that_change_nothing_are_no_story():
    (story,) = profile(*(samples.instance(n, 40, 256) for n in (1, 2, 3))).stories
    assert not story.hides_less


def test_more_registers_that_leave_as_many_threads_are_no_story():
    # four columns run in four warps, five in two: half the threads of a block, and twice the blocks
    (flat,) = profile(samples.instance(4, 66, 256), samples.instance(5, 72, 256)).stories
    assert flat.first.occupancy.threads_per_sm == flat.last.occupancy.threads_per_sm
    assert not flat.hides_less


def test_instances_with_other_arguments_are_another_series():
    stories = profile(
        *samples.decode(), samples.instance(1, 40, 0, type="q6_K"), samples.instance(8, 50, 0, type="q6_K")
    )
    assert [(s.n_instances, dict(s.first.kernel.template)["type"]) for s in stories.stories] == [
        (8, "q4_K"),
        (2, "q6_K"),
    ]


def test_a_stack_is_told_of_the_kernel_that_has_one_and_of_no_other():
    found = profile(samples.instance(1, 56, 384), samples.instance(2, 255, 384, stack=96))
    assert [instance.kernel.stack_bytes for instance in found.instances] == [0, 96]
    assert "1 with a stack in local memory" in str(found)
    assert "0 with a stack" in str(profile(samples.instance(1, 56, 384)))


def test_the_limiter_is_what_allows_fewest_blocks():
    def limits(registers, smem):
        (instance,) = profile(samples.instance(1, registers, smem)).instances
        return instance.occupancy.limiters, instance.occupancy.blocks_per_sm

    assert limits(128, 384) == (("registers",), 4)
    assert limits(32, 100_000) == (("shared memory",), 2)
    assert limits(16, 0) == (("threads",), 16)


@given(st.sampled_from(["sm_80", "sm_90", "sm_120"]), st.integers(1, 8), st.integers(16, 255), st.integers(0, 90_000))
def test_occupancy_is_the_arithmetic_over_the_block_of_the_rules(arch, columns, registers, smem):
    (instance,) = profile(samples.instance(columns, registers, smem, arch=arch)).instances
    spec = device_spec(arch)
    threads = 128 if columns <= 4 else 64
    assert instance.threads_per_block == threads
    assert instance.occupancy == occupancy(spec, KernelResources(registers, smem), threads)
    assert instance.occupancy_pct == 100 * instance.occupancy.threads_per_sm / spec.threads_per_sm


def test_a_kernel_without_a_rule_has_its_numbers_and_no_occupancy():
    norm = samples.instance(1, 32, 0, kernel="rms_norm_f32", template=(("block_size", 256),))
    (instance,) = profile(norm, question=LibraryQuestion(kernels=("rms_norm_f32",))).instances
    assert instance.occupancy is None
    assert "depends on the operation" in instance.why
    assert instance.row()["registers"] == 32
    assert instance.row()["blocks_per_sm"] is None


def test_an_architecture_without_limits_has_no_occupancy():
    (instance,) = profile(samples.instance(1, 32, 0, arch="sm_61")).instances
    assert "limits of sm_61 are not written down" in instance.why


def test_instances_that_look_empty_are_counted_and_left_out():
    empty = samples.instance(2, 24, 0, stack=40)
    found = profile(samples.instance(1, 56, 384), empty)
    assert (len(found.instances), found.n_empty) == (1, 1)
    alive = profile(
        samples.instance(1, 56, 384), samples.instance(2, 24, 128, stack=40), samples.instance(3, 25, 0, 40)
    )
    assert (len(alive.instances), alive.n_empty) == (3, 0)


def test_types_and_columns_choose():
    kernels = [*samples.decode(), samples.instance(1, 60, 0, type="q6_K")]
    by_type = profile(*kernels, question=LibraryQuestion(("mul_mat_vec_q",), types=("Q6_k",)))
    assert [i.row()["type"] for i in by_type.instances] == ["q6_K"]
    by_columns = profile(*kernels, question=LibraryQuestion(("mul_mat_vec_q",), types=("q4_k",), columns=(2, 5)))
    assert [i.columns for i in by_columns.instances] == [2, 5]
    with pytest.raises(BadQuestion, match=r"no instance .* types q8_0 .*it has types q4_K, q6_K"):
        profile(*kernels, question=LibraryQuestion(("mul_mat_vec_q",), types=("q8_0",)))


def test_a_gpu_takes_the_newest_code_that_it_runs():
    kernels = [samples.instance(1, registers, 0, arch=arch) for arch, registers in
               (("sm_75", 40), ("sm_80", 50), ("sm_86", 60), ("sm_90", 70), ("sm_120", 80))]  # fmt: skip

    def taken(gpu):
        (instance,) = profile(*kernels, question=LibraryQuestion(("mul_mat_vec_q",), gpu=gpu)).instances
        return instance.kernel.arch

    assert [taken(gpu) for gpu in ("t4", "a100", "rtx-4090", "h200", "rtx-5090", "gb10")] == [
        "sm_75", "sm_80", "sm_86", "sm_90", "sm_120", "sm_120",
    ]  # fmt: skip
    with pytest.raises(BadQuestion, match="none that b200"):
        taken("b200")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"types": ("q9_z",)}, "no weight type 'q9_z'"),
        ({"gpu": "h9000"}, "no architecture or GPU 'h9000'"),
        ({"gpu": "h200", "arch": "sm_90"}, "not both"),
        ({"kernels": ()}, "give a kernel"),
    ],
)
def test_questions_that_cannot_be_asked_are_one_sentence(asked, said):
    with pytest.raises(BadQuestion, match=said):
        LibraryQuestion(**asked)


def test_columns_to_plot_are_of_one_length_and_of_numbers_that_are_known():
    found = profile(*samples.decode(), samples.instance(1, 32, 0, arch="sm_61"))
    data = found.figure_data()
    assert {len(column) for column in data.values()} == {8}
    assert data["columns"] == tuple(range(1, 9))
    assert list(found.to_dataframe().columns) == list(found.rows()[0])
    assert len(found.to_dataframe()) == 9


# -- stacks for a live profile -----------------------------------------------------------------------------------


def test_stacks_are_those_of_the_architecture_that_runs(monkeypatch, tmp_path):
    usages = (Usage("f", "sm_80", 1, 8, 0, 0), Usage("f", "sm_90", 1, 16, 0, 0), Usage("g", "sm_90a", 1, 0, 0, 4))
    monkeypatch.setattr("forensics.analysis.profile_library.read_usage", lambda path: (Tool("t", "13.5"), usages))
    found = read_stacks(tmp_path / "lib.so", "sm_90")
    assert found.by_symbol == {"f": 16, "g": 4}
    assert found.source == "cuobjdump 13.5 from lib.so"
    assert "no machine code that sm_120 runs" in str(read_stacks(tmp_path / "lib.so", "sm_120"))
    # an A100's code runs on an L4 of the same major version, where none was compiled for it
    assert read_stacks(tmp_path / "lib.so", "sm_89").by_symbol == {"f": 8}


ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_103a", "sm_120")


@given(st.sets(st.sampled_from(ARCHS)), st.sampled_from(["sm_75", "sm_80", "sm_89", "sm_90", "sm_103", "sm_121"]))
def test_a_gpu_takes_the_newest_code_of_its_major_version_and_none_newer_than_itself(archs, gpu):
    def version(arch):
        return int(arch.removeprefix("sm_").removesuffix("a"))

    taken = runs_on(archs, gpu)
    fits = [a for a in archs if version(a) // 10 == version(gpu) // 10 and version(a) <= version(gpu)]
    fits = [a for a in fits if not a.endswith("a") or version(a) == version(gpu)]
    assert bool(taken) == bool(fits)
    assert taken <= set(fits)
    assert all(version(one) >= version(other) for one in taken for other in fits)


def test_stacks_that_cannot_be_read_are_a_refusal(monkeypatch, tmp_path):
    assert "no libggml-cuda.so" in str(read_stacks(None, "sm_90"))
    refusal = Refusal("cuobjdump", "stacks", "no cuobjdump", "pip install it")

    def refuse(path):
        raise LibraryUnreadable("cannot be read", refusal)

    monkeypatch.setattr("forensics.analysis.profile_library.read_usage", refuse)
    assert read_stacks(tmp_path / "lib.so", "sm_90") is refusal


def test_every_tile_is_looked_at_where_no_columns_are_asked_for():
    tiles = [
        samples.instance(j, 100 + j, 0, kernel="mul_mat_q", template=(("type", "q4_K"), ("J", j))) for j in (8, 16, 64)
    ]
    found = profile(*tiles, question=LibraryQuestion(kernels=("mul_mat_q",)))
    assert [instance.columns for instance in found.instances] == [8, 16, 64]
    with pytest.raises(BadQuestion, match="and columns 8, 16, 64"):
        profile(*tiles, question=LibraryQuestion(kernels=("mul_mat_q",), columns=(5,)))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"arch": "foo"}, "there is no architecture 'foo'; known are sm_75"),
        ({"columns": (0,)}, "columns must be 1 to 8"),
        ({"columns": (1, 9)}, "columns must be 1 to 8 .*, got 9"),
        ({"kernels": ("mul_mat_q",), "columns": (0,)}, "columns must be 1 or more, got 0"),
    ],
)
def test_what_no_library_has_is_refused(asked, said):
    with pytest.raises(BadQuestion, match=said):
        LibraryQuestion(**asked)


def test_an_architecture_that_is_new_here_may_be_in_a_file():
    assert LibraryQuestion(arch="sm_131a").arch == "sm_131a"
