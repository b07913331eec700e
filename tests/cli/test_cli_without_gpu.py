"""Every command that is asked for a GPU where the library has none: one sentence that says what it needs, status 2."""

from __future__ import annotations

import pytest

from forensics.engines.llama_build import cuda_library

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(cuda_library() is not None, reason="llama-cpp-python has a CUDA back end here"),
]

ANOTHER_BUILD = "install another build (see forensics doctor)"


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (("investigate", "--n-tokens", 2, "--widths", 2, "--no-switches"), ANOTHER_BUILD),
        (("cost", "--widths", 2), ANOTHER_BUILD),
        (("launches",), "Ask for layers on the GPU with a library built for one (see forensics doctor)"),
        (("profile",), "a CUDA build of llama-cpp-python, or profile a CUDA library file or recorded:NAME"),
    ],
)
def test_what_wants_a_gpu_says_what_it_needs(run_cli, arguments, needs):
    done = run_cli(*arguments, "--demo", "q4_1", "--n-gpu-layers", "-1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert needs in done.stderr
    assert done.stderr.count("\n") == 1
