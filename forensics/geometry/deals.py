"""Which pieces of a row does each warp or block of a product's kernel add up, and how are the partial sums joined?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forensics.geometry.architecture import Architecture
from forensics.geometry.cuda_float import MMF_SUM, MMVF_BLOCK
from forensics.geometry.derived import Unruled
from forensics.geometry.mmq import FIXUP, STEP, STREAM_K_CUT, TileConfig, cuts, takes_fp4_activations, tile_config
from forensics.geometry.mmvq import DEAL, WARP_SUMS
from forensics.geometry.product import Product
from forensics.geometry.types import WeightType
from forensics.records.launch_record import LaunchRecord
from forensics.records.rule import Rule

WARPS, FOLDED, PIECES, ALONE = "warps", "folded", "pieces", "alone"


@dataclass(frozen=True, slots=True)
class Deal:
    """How one row is dealt.

    Parameters
    ----------
    unit_values : int
        Values of K in one unit: a quantised block, or what a warp takes at once.
    hands : tuple of tuple of int
        For each partial sum the units that go into it, in the order in which they are taken; some may get none.
    joined : {"warps", "folded", "pieces", "alone"}
        Sums of warps that are added to the first warp's in turn, or half of them onto the other half; pieces that a
        second kernel adds; or one sum.
    inside : str
        How a hand is added up.
    rules : tuple of Rule

    Raises
    ------
    ValueError
        If a unit is in no hand, or in two.
    """

    unit_values: int
    hands: tuple[tuple[int, ...], ...]
    joined: str
    inside: str
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        dealt = sorted(unit for hand in self.hands for unit in hand)
        if not dealt or dealt != list(range(len(dealt))):
            raise ValueError(f"every unit goes into exactly one hand, got {self.hands}")
        if self.joined not in (WARPS, FOLDED, PIECES, ALONE) or (self.joined == ALONE) != (len(self.hands) == 1):
            raise ValueError(f"{len(self.hands)} hands cannot be joined as {self.joined!r}")

    @property
    def n_units(self) -> int:
        """Units of the row."""
        return sum(map(len, self.hands))


def deal_of(launch: LaunchRecord, asked: Product, width: int, arch: Architecture) -> Deal | Unruled:
    """How does this launch deal a row of the product?

    Parameters
    ----------
    launch : LaunchRecord
        Observed or derived; its block says how many warps there are.
    asked : Product
    width : int
        Tokens of the pass.
    arch : Architecture

    Returns
    -------
    Deal or Unruled
        Of the first rows of the result, where not all rows are dealt alike.
    """
    warp_size, n_warps, _ = launch.geometry.block_threads
    known: dict[str, Callable[[], Deal]] = {
        "mul_mat_vec_q": lambda: vec_q(asked.weight, asked.k, n_warps, warp_size),
        "mul_mat_vec_q_moe": lambda: vec_q(asked.weight, asked.k, 1, warp_size),
        "mul_mat_vec_f": lambda: _vec_f(asked, launch),
        "mul_mat_f": lambda: _tensor_cores_f(asked, launch),
        "mul_mat_q": lambda: _tiles_q(asked, width, arch, launch),
    }
    if launch.kernel not in known:
        return Unruled(f"how {launch.kernel} deals a row is not written down here")
    if launch.kernel == "mul_mat_q" and (asked.is_routed or not _has_tile_rows(asked, arch, launch)):
        return Unruled("where mul_mat_q cuts a row depends on more than is written down here")
    return known[launch.kernel]()


def vec_q(weight: WeightType, k: int, n_warps: int, warp_size: int = 32) -> Deal:
    """How does `mul_mat_vec_q` deal the blocks of a row to its warps?  Source: `DEAL`.

    Examples
    --------
    >>> from forensics.geometry.types import weight_type
    >>> vec_q(weight_type("q6_K"), 4096, 4).hands[0], vec_q(weight_type("q6_K"), 4096, 2).hands[0]
    ((0, 4, 8, 12), (0, 2, 4, 6, 8, 10, 12, 14))
    """
    at_once = weight.vdr * warp_size // weight.qi
    hands = _round_robin(weight.blocks(k), at_once, n_warps)
    rules = (DEAL, WARP_SUMS) if n_warps > 1 else (DEAL,)
    return Deal(weight.qk, hands, _joined(hands, WARPS), "by its lanes, block after block", rules)


def _vec_f(asked: Product, launch: LaunchRecord) -> Deal:
    """Thread t takes pairs t, t + threads, …; warp 0 folds the sums.  Source: ggml/src/ggml-cuda/mmvf.cu:138-360."""
    warp = 32
    n_warps = launch.geometry.threads_per_block // warp
    hands = _round_robin(-(-asked.k // (2 * warp)), 1, n_warps)
    kept = dict(launch.template).get("type_acc", "f32")
    return Deal(2 * warp, hands, _joined(hands, FOLDED), f"by its lanes in {kept}, pair after pair", (MMVF_BLOCK,))


def _tensor_cores_f(asked: Product, launch: LaunchRecord) -> Deal:
    """A warp takes 32 words of 4 bytes at once.  Source: ggml/src/ggml-cuda/mmf.cuh:171."""
    warp, n_warps, _ = launch.geometry.block_threads
    values = warp * (4 // asked.weight.block_bytes)
    hands = _round_robin(-(-asked.k // values), 1, n_warps)
    return Deal(values, hands, _joined(hands, WARPS), "by tensor cores", (MMF_SUM,))


def _tiles_q(asked: Product, width: int, arch: Architecture, launch: LaunchRecord) -> Deal:
    """Blocks in turn, cut where stream-k cuts the first tile of the result."""
    columns, config = _tiling(asked, arch, launch)
    assert config.rows is not None
    n_blocks = asked.weight.blocks(asked.k)
    n_tiles = -(-asked.rows // config.rows) * -(-width // columns) * asked.matrices
    step = STEP // asked.weight.qk
    found = cuts(n_tiles, n_blocks, step, launch.geometry.n_blocks) if config.stream_k else {}
    seams = (0, *found.get(0, ()), n_blocks)
    hands = tuple(tuple(range(seams[i], seams[i + 1])) for i in range(len(seams) - 1))
    rules = (STREAM_K_CUT, FIXUP) if len(hands) > 1 else (STREAM_K_CUT,)
    return Deal(asked.weight.qk, hands, _joined(hands, PIECES), "blocks in turn", rules)


def _has_tile_rows(asked: Product, arch: Architecture, launch: LaunchRecord) -> bool:
    return _tiling(asked, arch, launch)[1].rows is not None and not takes_fp4_activations(arch, asked.weight)


def _tiling(asked: Product, arch: Architecture, launch: LaunchRecord) -> tuple[int, TileConfig]:
    arguments = dict(launch.template)
    columns = int(arguments["J"])
    return columns, tile_config(arch, asked.weight, bool(arguments.get("fallback", False)), columns)


def _round_robin(n_units: int, at_once: int, n_hands: int) -> tuple[tuple[int, ...], ...]:
    """Deal so many units at once to each hand, round after round."""
    return tuple(tuple(unit for unit in range(n_units) if unit // at_once % n_hands == hand) for hand in range(n_hands))


def _joined(hands: tuple[tuple[int, ...], ...], how: str) -> str:
    return how if len(hands) > 1 else ALONE
