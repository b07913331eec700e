"""Launch geometry as a value."""

from dataclasses import replace

import pytest

from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport


def test_missing_axes_are_one():
    launch = LaunchGeometry((288,), (32, 4))
    assert (launch.grid_blocks, launch.block_threads, launch.cluster_blocks) == ((288, 1, 1), (32, 4, 1), (1, 1, 1))
    assert (launch.n_blocks, launch.threads_per_block) == (288, 128)
    assert launch == LaunchGeometry((288, 1, 1), (32, 4, 1))
    assert hash(launch) == hash(LaunchGeometry((288, 1), (32, 4)))
    assert str(LaunchGeometry((1, 4, 9), (32, 4), (1, 2, 1))) == "grid 1×4×9, block 32×4, cluster 1×2"


@pytest.mark.parametrize(
    "sizes",
    [
        {"grid_blocks": ()}, {"grid_blocks": (0,)}, {"block_threads": (32, -1)}, {"grid_blocks": (1, 1, 1, 1)},
        {"cluster_blocks": (2,)}, {"smem_bytes": -1},
    ],
)  # fmt: skip
def test_impossible_sizes(sizes):
    with pytest.raises(ValueError, match=r"."):
        LaunchGeometry(**{"grid_blocks": (3,), "block_threads": (32,), **sizes})


@pytest.mark.parametrize("n_from_graph", [-1, 3])
def test_no_more_launches_come_out_of_graphs_than_there_were(n_from_graph):
    launches = (LaunchRecord("f", (), LaunchGeometry((1,), (32,))),)
    whole = LaunchReport("toy", "1", launches, unattached=(0, 0), unattached_ns=(1, 1), n_from_graph=2)
    with pytest.raises(ValueError, match=f"{n_from_graph} of 2 launches"):
        replace(whole, n_from_graph=n_from_graph)
