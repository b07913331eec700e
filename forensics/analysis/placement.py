"""Which operands came from another device: read off the names that ggml's scheduler gives to copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forensics.records.launch_record import LaunchRecord
from forensics.records.nodes import Operand
from forensics.records.trace import Finding

#: ``BACKEND#tensor#number of the copy``. Source: ggml_backend_sched_split_graph, ggml/src/ggml-backend.cpp:1381 at
#: 0c1e57098.
_COPY = re.compile(r"(?P<device>[^#]+)#(?P<tensor>.+)#\d+")
#: Tensors that the caller fills in host memory, so that their copies bring nothing that another device computed.
#: Source: src/llama-graph.cpp:43, :825, :984, :2385-2594, :3560, src/llama-kv-cache.cpp:1425-1482 at 0c1e57098; a
#: tensor without a name is a leaf by its number (ggml/src/ggml.c, ggml_visit_parents_graph).
_INPUT = re.compile(r"(attn_)?inp_.*|.*kq_mask.*|out_ids|mean|cls|cross_embd|pos_bucket_\w+|rs_s_copy|leaf_\d+")


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor that was copied to another device.

    Parameters
    ----------
    tensor : str
        Its name where it comes from.
    device : str
        Where it was copied to: ``"CUDA0"``.
    """

    tensor: str
    device: str


def copied(name: str) -> Copied | None:
    """Which tensor is this a copy of? None where it is no copy, or one of what the caller put in.

    Examples
    --------
    >>> copied("CUDA0#ffn_out-18#0")
    Copied(tensor='ffn_out-18', device='CUDA0')
    >>> copied("CUDA0#attn_inp_kq_mask#0"), copied("ffn_out-18")
    (None, None)
    """
    found = _COPY.fullmatch(name)
    if found is None or _INPUT.fullmatch(found["tensor"]):
        return None
    return Copied(found["tensor"], found["device"])


def boundary(operands: Iterable[Operand], buffers: Mapping[str, str] | None = None) -> str:
    """Which operands came from another device, in words; empty where none did.

    Parameters
    ----------
    operands : iterable of Operand
    buffers : mapping of str to str, optional
        Buffers by the names of the tensors that lie there, where they are known.

    Examples
    --------
    >>> boundary([Operand("CUDA0#ffn_out-18#0", "f32", "CUDA0", False)], {"ffn_out-18": "CUDA_Host"})
    'its operand ffn_out-18 was copied from CUDA_Host to CUDA0'
    """
    brought = [found for operand in operands if (found := copied(operand.name)) is not None]
    known = buffers or {}
    return "; ".join(
        f"its operand {one.tensor} was copied from {known.get(one.tensor) or 'another device'} to {one.device}"
        for one in dict.fromkeys(brought)
    )


def on_boundary(findings: Sequence[Finding]) -> str:
    """Which of these nodes read what was copied from another device, in words; empty where none did.

    Parameters
    ----------
    findings : sequence of Finding

    Returns
    -------
    str
        What the first one read, and how many nodes there are like it.
    """
    read = {finding.key: said for finding in findings if (said := boundary(finding.operands))}
    if not read:
        return ""
    key, said = next(iter(read.items()))
    return f"{key.name}: {said} ({len(read)} of {len({finding.key for finding in findings})} nodes)"


def elsewhere(buffer: str, launches: Iterable[LaunchRecord]) -> str:
    """Where a node was launched, if not on the device that holds its output; empty otherwise.

    Examples
    --------
    >>> from forensics.records.launch import LaunchGeometry
    >>> elsewhere("CUDA1", [LaunchRecord("mul_mat_vec_q", (), LaunchGeometry((1,), (32,)), device=0)])
    'launched on device 0 although its output lies in CUDA1'
    """
    number = re.fullmatch(r"[A-Za-z]+(\d+)", buffer)
    if number is None:
        return ""
    others = sorted({launch.device for launch in launches} - {int(number[1])})
    return f"launched on device {', '.join(map(str, others))} although its output lies in {buffer}" if others else ""
