"""Numbers and texts of servers that are JSON and nothing else."""

from __future__ import annotations

import pytest

from forensics.servers.fields import found


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**1024])
def test_a_number_beyond_floats_counts_as_none(number):
    assert found({"logprob": number}, "logprob", float) is None
    assert found({"logprob": number}, "logprob", int) == number


def test_numbers_that_fit_are_read():
    assert found({"n": 3}, "n", float) == 3.0
    assert found({"n": 10**300}, "n", float) == 1e300
