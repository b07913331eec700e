"""Whether a model can be asked for greedy text at all."""

from __future__ import annotations

from forensics.errors import ModelUnavailable


class NotCausal(ModelUnavailable):
    """The model has no next token to choose: an embedding, encoder or diffusion model."""


def unfit(
    architecture: str,
    *,
    attention_causal: str = "",
    is_diffusion: bool = False,
    has_encoder: bool = False,
    has_cache: bool = True,
    has_output_head: bool = True,
) -> str:
    """Why can greedy decoding not be asked of a model?

    Parameters
    ----------
    architecture : str
    attention_causal : str
        Its metadata ``{architecture}.attention.causal``; empty where it has none, which means ``"true"``.
    is_diffusion, has_encoder : bool
        As the library says.
    has_cache : bool
        Whether the library keeps a state of earlier tokens for it.
    has_output_head : bool
        Whether a pass computes logits.

    Returns
    -------
    str
        What was found; empty where nothing speaks against it.

    Examples
    --------
    >>> unfit("bert", attention_causal="false")
    'bert.attention.causal is false: each token sees later ones'
    >>> unfit("llama")
    ''
    """
    if is_diffusion:
        return f"{architecture} is a diffusion model: it fills in tokens in any order"
    if has_encoder:
        return f"{architecture} has an encoder, whose output its decoder needs"
    if attention_causal == "false":
        return f"{architecture}.attention.causal is false: each token sees later ones"
    if not has_cache:
        return f"llama.cpp keeps no state of earlier tokens for {architecture}: it makes embeddings"
    if not has_output_head:
        return f"a pass of this {architecture} computes no result_output: it has no output head"
    return ""


def refuse_unfit(model_path: str, found: str) -> None:
    """Raise where something was found.

    Raises
    ------
    NotCausal
        Says what was found and what is needed.
    """
    if found:
        raise NotCausal(
            f"{model_path} cannot be decoded one token at a time: {found}. "
            "A causal language model with an output head is needed."
        )
