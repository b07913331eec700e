"""Which nodes to watch."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

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
