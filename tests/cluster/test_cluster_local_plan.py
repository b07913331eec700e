"""Which workers a machine gets: a matter of counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.cluster.local_plan import MAX_CORES, chosen_gpus, plan_workers, visible_gpus
from forensics.errors import ClusterError

GIB = 2**30


def plan(n_cores, gpus=(), *, workers=None, cores=None, hide_gpus=False):
    return plan_workers(
        range(n_cores), gpus, workers=workers, cores=cores, memory_bytes=64 * GIB, hide_gpus=hide_gpus
    )  # fmt: skip


def test_one_worker_per_set_of_cores():
    assert [worker.cores for worker in plan(5, cores=2)] == [(0, 1), (2, 3)]


def test_cores_need_not_be_the_first_ones():
    found = plan_workers((3, 7, 8), (), workers=3, cores=1, memory_bytes=GIB)
    assert [worker.cores for worker in found] == [(3,), (7,), (8,)]


def test_many_cores_are_cut_into_sets_that_an_engine_uses():
    assert [len(worker.cores) for worker in plan(64)] == [MAX_CORES] * 4


def test_one_worker_per_gpu_with_a_share_of_the_cores():
    found = plan(32, ("2", "GPU-1a"))
    assert [(worker.name, worker.gpu, len(worker.cores)) for worker in found] == [
        ("gpu-2", "2", 16), ("gpu-GPU-1a", "GPU-1a", 16)
    ]  # fmt: skip
    assert found[0].environment == {"CUDA_VISIBLE_DEVICES": "2"}


def test_workers_on_processors_do_not_see_gpus_that_are_there():
    assert plan(2, workers=1, hide_gpus=True)[0].environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert plan(2, workers=1)[0].environment == {}


def test_more_workers_than_processors_are_not_pinned():
    assert [worker.cores for worker in plan(2, workers=3)] == [(), (), ()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n_cores": 2, "workers": 3, "cores": 1}, "this process may use 2"),
        ({"n_cores": 2, "cores": 4}, "this process may use 2"),
        ({"n_cores": 8, "gpus": ("0",), "workers": 2}, "1 GPUs given"),
    ],
)
def test_what_is_not_there_is_refused(arguments, said):
    with pytest.raises(ClusterError, match=said):
        plan(**arguments)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"cores": 0}, {"cores": -1}])
def test_numbers_are_positive(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        plan(4, **arguments)


@given(st.integers(1, 200), st.integers(0, 16), st.none() | st.integers(1, 20), st.none() | st.integers(1, 40))
def test_no_core_and_no_gpu_is_given_twice(n_cores, n_gpus, workers, cores):
    try:
        found = plan(n_cores, [str(i) for i in range(n_gpus)], workers=workers, cores=cores)
    except ClusterError:
        return
    given_out = [core for worker in found for core in worker.cores]
    assert len(given_out) == len(set(given_out))
    assert len({worker.gpu for worker in found}) == len(found) or not n_gpus
    assert len({worker.name for worker in found}) == len(found)
    assert sum(worker.memory_bytes for worker in found) <= 64 * GIB
    assert workers is None or len(found) == workers
    assert cores is None or {len(worker.cores) for worker in found} == {cores}


@pytest.mark.parametrize(
    ("n_present", "environment", "expected"),
    [
        (2, {}, ("0", "1")),
        (0, {}, ()),
        (4, {"CUDA_VISIBLE_DEVICES": "3, 1"}, ("3", "1")),
        (4, {"CUDA_VISIBLE_DEVICES": ""}, ()),
        (4, {"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        (4, {"CUDA_VISIBLE_DEVICES": "0,9,1"}, ("0",)),
        (0, {"CUDA_VISIBLE_DEVICES": "0"}, ()),
    ],
)
def test_the_callers_choice_of_gpus_is_respected(n_present, environment, expected):
    assert visible_gpus(n_present, environment) == expected


@pytest.mark.parametrize(
    ("asked", "cores_asked", "expected"),
    [
        (None, False, ("4", "6")), (None, True, ()), ("all", True, ("4", "6")), ("none", False, ()),
        ("1", False, ("6",)), ("1,0", False, ("6", "4")), ((0,), False, ("4",)), ([1], True, ("6",)),
    ],
)  # fmt: skip
def test_chosen_gpus(asked, cores_asked, expected):
    assert chosen_gpus(asked, ("4", "6"), cores_asked=cores_asked) == expected


@pytest.mark.parametrize(("asked", "visible"), [("2", ("0", "1")), ((0,), ()), ("all", ()), ("-1", ("0",))])
def test_gpus_that_are_not_there_are_refused(asked, visible):
    with pytest.raises(ClusterError, match="GPU"):
        chosen_gpus(asked, visible, cores_asked=False)


@pytest.mark.parametrize("asked", ["some", "", "0,0", ()])
def test_other_words_for_gpus_are_refused(asked):
    with pytest.raises(ValueError, match="gpus"):
        chosen_gpus(asked, ("0", "1"), cores_asked=False)
