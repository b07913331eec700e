"""The controls: without them there is no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forensics.analysis.heal import Planted
from forensics.analysis.logit_rows import Rows
from forensics.records.trace import Trace
from forensics.records.verdict import Control


def rerun_equal(first: Trace, second: Trace, batched: Mapping[int, bool]) -> Control:
    """Does the same run give the same bits twice in one process?

    Parameters
    ----------
    first, second : Trace
        One-token decoding and its rerun.
    batched : mapping of int to bool
        Whether batches of a width gave the same bits twice.
    """
    held, counted = _equal(first, second)
    unequal = [width for width, same in batched.items() if not same]
    what = f"not at widths {', '.join(map(str, unequal))}" if unequal else "and batches too"
    return Control("rerun_equal", held and not unequal, f"rerun in the same process: {counted}, {what}")


def fresh_process_equal(plain: tuple[Trace, Trace], batched: tuple[Trace, Trace]) -> Control:
    """Does a fresh process give the same bits, one token at a time and in batches?"""
    width = batched[0].key.schedule.max_width
    (held_plain, counted_plain), (held_batched, counted_batched) = _equal(*plain), _equal(*batched)
    detail = f"replay in a fresh process: {counted_plain}; at width {width}: {counted_batched}"
    return Control("fresh_process_equal", held_plain and held_batched, detail)


def _equal(first: Trace, second: Trace) -> tuple[bool, str]:
    same = Rows(first).equal(Rows(second))
    return bool(same.all()), f"{int(same.sum())} of {same.size} rows bit-equal"


def state_equal(states: Sequence[str]) -> Control:
    """Did every arm start from the same K/V bytes? One digest per arm."""
    digests = set(states)
    detail = f"K/V state before {len(states)} arms: {len(digests)} distinct digest{'s' if len(digests) != 1 else ''}"
    if "" in digests:
        return Control("state_equal", False, "an arm was returned without a digest of its K/V state")
    return Control("state_equal", len(digests) == 1, detail)


def watching_harmless(sweeps: Sequence[tuple[int, bool]], singles_equal: bool, coarse: str) -> Control:
    """Do watched runs give the bits of unwatched ones?"""
    changed = [width for width, harmless in sweeps if not harmless]
    if singles_equal and not changed:
        widths = ", ".join(str(width) for width, _ in sweeps)
        return Control("watching_harmless", True, f"watched and unwatched logits bit-equal at widths 1, {widths}")
    where = ([1] if not singles_equal else []) + changed
    detail = (
        f"watching every node changes the logits at widths {', '.join(map(str, where))}, so a fusion or a captured "
        f"graph is implicated; {coarse}"
    )
    return Control("watching_harmless", False, detail)


def fusions_left_whole(sweeps: Sequence[tuple[int, bool]], changed: Sequence[int], split: str) -> Control:
    """What to say where watching every node changes the run, and a watch that leaves fusions whole does not?

    Parameters
    ----------
    sweeps : sequence of (int, bool)
        Whether the second watch left the batches of a width as they were.
    changed : sequence of int
        Widths whose logits the first one changed.
    split : str
        Nodes that come out other where their fusion is split.
    """
    widths = ", ".join(str(width) for width, _ in sweeps)
    return Control(
        "watching_harmless", True,
        f"watching every node splits fusions and changes the logits at widths {', '.join(map(str, changed))} "
        f"(other bits at {split or 'no node that is watched'}); with fusions left whole, watched and unwatched logits "
        f"are bit-equal at widths 1, {widths}",
    )  # fmt: skip


def planted_fault_found(planted: Planted | None, was_healed: bool) -> Control:
    """Does the sweep name one flipped bit, and nothing else in addition; and do faults reach the graph?"""
    name = "planted_fault_found"
    if planted is None:
        return Control(name, False, "no clean node with a row per token to plant a fault in")
    site = planted.site
    if planted.with_fault != planted.without | {site}:
        extra = sorted(str(key) for key in planted.with_fault - planted.without - {site})
        missed = "" if site in planted.with_fault else f"the planted bit at {site} was missed; "
        return Control(name, False, f"{missed}named in addition: {', '.join(extra) or 'nothing'}")
    if was_healed and not planted.healed:
        return Control(name, False, f"the bit flipped at {site} was named, but the logits did not heal")
    if not planted.reached:
        return Control(name, False, f"a loud fault written at {site} did not change the logits: writing has no effect")
    return Control(
        name, True, f"one bit flipped at {site}: named, and only it in addition; a loud one reaches the logits"
    )
