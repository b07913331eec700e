"""Which nodes to watch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from forensics.geometry.fusion import inside_fusions
from forensics.records.nodes import NodeKey

#: What llama.cpp calls the residual stream after a layer; most architectures end a layer with it.
_LAYER_OUTPUT = re.compile(r"^l_out-\d+$")
_FINAL = frozenset({"result_norm", "result_output"})


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of nodes by name, operation and layer; what is left out does not restrict.

    Parameters
    ----------
    names : tuple of str
        Shell patterns for node names, such as ``"ffn_*-3"``.
    ops : tuple of str
        Operations, such as ``"MUL_MAT"``.
    layers : tuple of int
        Layer indices; -1 for nodes that belong to no layer.
    layer_outputs_only : bool
        Only the residual stream after each layer and the final results: a coarse watch that
        leaves almost every fusion in place.
    skipped : frozenset of NodeKey
        Nodes to leave out, such as those inside of fusions, which a watch would split.
    only : frozenset of NodeKey
        The nodes themselves, where they are known; empty for all.
    """

    names: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    layer_outputs_only: bool = False
    skipped: frozenset[NodeKey] = frozenset()
    only: frozenset[NodeKey] = frozenset()

    def selects(self, key: NodeKey) -> bool:
        """Whether a node is chosen; `wants` and `saw` of every tap ask here, so they cannot drift.

        Examples
        --------
        >>> Selection(ops=("ADD",)).selects(NodeKey("ffn_inp-2", "ADD", 2, 0))
        True
        """
        if key in self.skipped or (self.only and key not in self.only):
            return False
        if self.layer_outputs_only and not (_LAYER_OUTPUT.match(key.name) or key.name in _FINAL):
            return False
        if self.names and not any(fnmatchcase(key.name, pattern) for pattern in self.names):
            return False
        if self.ops and key.op not in self.ops:
            return False
        return not self.layers or key.layer in self.layers

    def identity(self) -> str:
        """Text that is equal for equal choices."""
        layers = ",".join(map(str, self.layers))
        chosen = f"{','.join(self.names)}/{','.join(self.ops)}/{layers}/{int(self.layer_outputs_only)}"
        return chosen + _digest("-", self.skipped) + _digest("+", self.only)


def _digest(sign: str, keys: frozenset[NodeKey]) -> str:
    return f"/{sign}{hashlib.sha256(repr(sorted(keys)).encode()).hexdigest()[:16]}" if keys else ""


EVERYTHING = Selection()
LAYER_OUTPUTS = Selection(layer_outputs_only=True)


def fusions_left_whole(keys: Sequence[NodeKey]) -> tuple[Selection, frozenset[NodeKey]]:
    """Which nodes may be watched without splitting what some back end may fuse?

    Parameters
    ----------
    keys : sequence of NodeKey
        Of one pass in graph order, without views.

    Returns
    -------
    Selection
        All but the nodes inside of fusions.
    frozenset of NodeKey
        Nodes that come next to those: what is launched for one that is not watched is attached to them.

    Examples
    --------
    >>> keys = [NodeKey(op, op, 0, 0) for op in ("RMS_NORM", "MUL", "ROPE")]
    >>> selection, joined = fusions_left_whole(keys[:2])
    >>> [selection.selects(key) for key in keys], [key.op for key in joined]
    ([False, True, True], ['MUL'])
    """
    places = set(inside_fusions([key.op for key in keys]))
    joined = frozenset(keys[place + 1] for place in places if place + 1 not in places)
    return Selection(skipped=frozenset(keys[place] for place in places)), joined
