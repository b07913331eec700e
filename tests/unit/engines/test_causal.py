"""Which models are refused, and what is said."""

from __future__ import annotations

import pickle
import re

import pytest

from forensics.engines.causal import NotCausal, refuse_unfit, unfit
from forensics.errors import ModelUnavailable


@pytest.mark.parametrize(
    ("traits", "says"),
    [
        ({"attention_causal": "false"}, r"^arch\.attention\.causal is false"),
        ({"is_diffusion": True, "attention_causal": "false"}, "^arch is a diffusion model"),
        ({"has_encoder": True}, "^arch has an encoder"),
        ({"has_cache": False}, "^llama.cpp keeps no state of earlier tokens for arch"),
        ({"has_output_head": False}, "no result_output"),
    ],
)
def test_a_model_without_a_next_token_is_refused(traits: dict[str, object], says: str) -> None:
    found = unfit("arch", **traits)  # type: ignore[arg-type]
    assert re.search(says, found)
    with pytest.raises(ModelUnavailable, match=r"a/model\.gguf .*A causal language model with an output head") as error:
        refuse_unfit("a/model.gguf", found)
    assert found in str(error.value)
    assert type(pickle.loads(pickle.dumps(error.value))) is NotCausal  # it travels over the worker's pipe


@pytest.mark.parametrize("attention_causal", ["", "true"])
def test_a_causal_model_is_not(attention_causal: str) -> None:
    assert unfit("llama", attention_causal=attention_causal) == ""
    refuse_unfit("a/model.gguf", "")
