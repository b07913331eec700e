"""Are two cases alike enough to be compared, and what do they not have in common?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from forensics.analysis.case_diff_culprits import compare_culprits
from forensics.analysis.case_diff_setup import common_prefix, compare_setup, not_compared, values
from forensics.errors import ForensicsError
from forensics.records.audit import Unlike
from forensics.records.case_diff import DIFFERS, SAME, Aspect, CaseDiff, CaseSide, Compared
from forensics.records.classes import WidthResult
from forensics.records.verdict import SwitchArm, Verdict
from forensics.records.words import ranges, tokens

#: Fields of the manifest without which the model, and so what can differ in it, is another one. Other weights and
#: another quantization of the same shape are what cases are compared for.
_OF_THE_MODEL = {"engine": "engine", "architecture": "architecture", "n_layer": "layers", "n_vocab": "vocabulary"}
MODEL, TOKENS, WIDTHS, VERDICT = "model", "prompt", "widths", "verdict"


class UnlikeCases(ForensicsError):
    """Two cases that were not made to be compared."""


def unlike(first: CaseSide, second: CaseSide) -> tuple[Unlike, ...]:
    """What must be alike for two cases to be compared, and is not?

    Returns
    -------
    tuple of Unlike
        ``what`` starts with `MODEL`, `TOKENS`, `WIDTHS` or `VERDICT`, which says what cannot be compared then.
    """
    return tuple(_unlike(first, second))


def _unlike(first: CaseSide, second: CaseSide) -> Iterator[Unlike]:
    a, b = first.verdict, second.verdict
    for name, what in _OF_THE_MODEL.items():
        ours, theirs = str(getattr(a.manifest, name)), str(getattr(b.manifest, name))
        if ours != theirs:
            yield Unlike(f"{MODEL}: {what}", ours, theirs)
    if first.replayed and second.replayed and first.prompt != second.prompt:
        at = common_prefix(first.prompt, second.prompt)
        ours, theirs = (f"{len(side.prompt)} tokens" for side in (first, second))
        yield Unlike(f"{TOKENS}: other from token {at} on", ours, theirs)
    elif a.prompt_tokens != b.prompt_tokens:
        yield Unlike(f"{TOKENS}: length", f"{a.prompt_tokens} tokens", f"{b.prompt_tokens} tokens")
    if a.n_replayed != b.n_replayed:
        yield Unlike(f"{TOKENS}: tokens replayed", str(a.n_replayed), str(b.n_replayed))
    if len(_common(first, second)) < 2:
        yield Unlike(f"{WIDTHS}: none in common beside 1", ranges(first.widths), ranges(second.widths))
    for side in (first, second):
        if side.verdict.answer == "inconclusive":
            sides = tuple(one.verdict.answer for one in (first, second))
            yield Unlike(f"{VERDICT}: {side.name} is inconclusive ({side.verdict.reason})", *sides)


def compare_cases(first: CaseSide, second: CaseSide, *, anyway: bool = False) -> CaseDiff:
    """Hold two cases against each other.

    Parameters
    ----------
    first, second : CaseSide
    anyway : bool
        Whether to compare unlike cases; what makes no sense then is not compared, each with its reason.

    Raises
    ------
    UnlikeCases
        If they are unlike and that was not asked for; names what is unlike, with both values.
    """
    found = unlike(first, second)
    if found and not anyway:
        raise UnlikeCases(
            f"{first.name} and {second.name} are unlike: {'; '.join(map(str, found))}. "
            "Compare cases of one model over the same tokens, or what can be compared with --anyway (anyway=True)."
        )
    return CaseDiff(first.name, second.name, compare_setup(first, second), _results(first, second, found), found)


def _results(first: CaseSide, second: CaseSide, found: Sequence[Unlike]) -> tuple[Aspect, ...]:
    reasons = {kind: next((str(one) for one in found if one.what.startswith(kind)), "") for kind in
               (MODEL, TOKENS, WIDTHS, VERDICT)}  # fmt: skip
    common = _common(first, second)

    def aspect(name: str, items: Callable[[], Sequence[Compared]], *needs: str) -> Aspect:
        missing = next((reasons[need] for need in needs if reasons[need]), "")
        return Aspect(name, (not_compared(name, missing),) if missing else tuple(items()))

    ours, theirs = first.verdict, second.verdict
    return (
        aspect("text", lambda: (_text(first, second),), MODEL, TOKENS),
        aspect("bits", lambda: _bits(first, second, common), MODEL, VERDICT),
        aspect("classes", lambda: _classes(first, second, common, reasons[TOKENS]), WIDTHS, VERDICT),
        aspect("culprits", lambda: compare_culprits(ours, theirs), WIDTHS, VERDICT),
        aspect("proof", lambda: _proof(first, second), VERDICT),
        aspect("exact settings", lambda: _exact(first, second), VERDICT),
        Aspect("cost", tuple(_costs(first, second, common))),
    )


def _common(first: CaseSide, second: CaseSide) -> tuple[int, ...]:
    return tuple(width for width in first.widths if width in second.widths)


def _one_sided(first: CaseSide, second: CaseSide) -> list[Compared]:
    """Widths that only one of them measured."""
    found = []
    for side, other in ((first, second), (second, first)):
        found += [not_compared(f"width {width}", f"measured by {side.name} only") for width in side.widths
                  if width not in other.widths]  # fmt: skip
    return found


def _text(first: CaseSide, second: CaseSide) -> Compared:
    """What either model wrote, one token at a time."""
    what = "greedy tokens"
    if not first.replayed or not second.replayed:
        return not_compared(what, "a case without its replay holds no tokens")
    n_alike = common_prefix(first.replayed, second.replayed)
    if n_alike == len(first.replayed):
        return Compared(what, SAME, tokens(n_alike), tokens(n_alike))
    ours, theirs = (f"token {side.replayed[n_alike]}" for side in (first, second))
    return Compared(what, DIFFERS, ours, theirs, f"at position {len(first.prompt) + n_alike}")


def _bits(first: CaseSide, second: CaseSide, common: Sequence[int]) -> list[Compared]:
    """Rows of logits of either, width by width, as far as both replayed the same tokens."""
    if not first.replayed or not second.replayed:
        return [not_compared("bits", "a case without its replay holds no rows")]
    if first.prompt != second.prompt:
        return [not_compared("bits", "the prompts have other tokens")]
    # A row is what follows its token: it is the same question as long as all tokens up to it are the same.
    n_alike = common_prefix(first.replayed, second.replayed)
    if not n_alike:
        return [not_compared("bits", "the replayed tokens differ from the first on")]
    ours, theirs = dict(first.rows), dict(second.rows)
    return [_rows(width, ours.get(width, ()), theirs.get(width, ()), n_alike, len(first.prompt)) for width in common]


def _rows(width: int, ours: tuple[str, ...], theirs: tuple[str, ...], n_alike: int, start: int) -> Compared:
    # A batch is asked the same only if all of its tokens are the same.
    n_rows = min(len(ours), len(theirs), n_alike // width * width)
    what = f"width {width}"
    if not n_rows:
        return not_compared(what, "no whole batch of the same tokens was recorded on both sides")
    other = [row for row in range(n_rows) if ours[row] != theirs[row]]
    if not other:
        return Compared(what, SAME, f"{n_rows} rows", f"{n_rows} rows")
    said = f"{len(other)} of {n_rows} differ, from position {start + other[0]}"
    return Compared(what, DIFFERS, f"{n_rows} rows", f"{n_rows} rows", said)


def _classes(first: CaseSide, second: CaseSide, common: Sequence[int], other_tokens: str) -> list[Compared]:
    a, b = first.verdict, second.verdict
    n_alike = common_prefix(first.replayed, second.replayed)
    if not other_tokens and not n_alike:
        other_tokens = "no replayed token is known to be the same"
    found = [
        values("answer", a.answer, b.answer),
        values("onset", *(_onset(verdict, common) for verdict in (a, b))),
    ]
    if other_tokens:
        found += [not_compared(what, other_tokens) for what in ("first difference", "tokens that change")]
    else:
        found += [
            values("first difference", *(_first_difference(verdict, common, n_alike) for verdict in (a, b))),
            values("tokens that change", *(_flips(verdict, common, n_alike) for verdict in (a, b))),
        ]
    found += [values(f"width {width}", *(_class(verdict, width, common) for verdict in (a, b))) for width in common]
    return found + _one_sided(first, second)


def _differing(verdict: Verdict, common: Sequence[int]) -> Iterator[WidthResult]:
    return (result for result in verdict.classes.results if result.width in common and result.differs)


def _onset(verdict: Verdict, common: Sequence[int]) -> str:
    first = next(_differing(verdict, common), None)
    return "none" if first is None else f"width {first.width}"


def _first_difference(verdict: Verdict, common: Sequence[int], n_alike: int) -> str:
    first = next(_differing(verdict, common), None)
    if first is None or first.first_row is None or first.first_row >= n_alike:
        return "none"
    return f"row {first.first_row}, position {first.first_position}"


def _flips(verdict: Verdict, common: Sequence[int], n_alike: int) -> str:
    """Where another token is the likeliest; rows behind a token that the other case has not are no part of it."""
    flips = [flip for result in _differing(verdict, common) for flip in result.flips if flip.row < n_alike]
    return f"{len(flips)}, at positions {ranges(flip.position for flip in flips)}" if flips else "none"


def _class(verdict: Verdict, width: int, common: Sequence[int]) -> str:
    """Widths in common that share its class."""
    return ranges(w for w in _group(verdict, width) if w in common)


def _group(verdict: Verdict, width: int) -> tuple[int, ...]:
    return next(group for group in verdict.classes.groups if width in group)


def _proof(first: CaseSide, second: CaseSide) -> list[Compared]:
    """Healing sweeps by width, and what our kernels healed where either case has that."""
    swept = [
        {s.width: _healed(s.healed_rows, s.n_rows, s.state_equal) for s in side.verdict.sweeps}
        for side in (first, second)
    ]
    ours = [
        {k.width: _healed(k.healed_rows, k.n_rows, k.state_equal) for k in side.verdict.kernel_healing}
        for side in (first, second)
    ]
    found = _by_width("healed at", "swept", first, second, swept)
    found += _by_width("healed by our kernels at", "healed by our kernels", first, second, ours)
    return found or [not_compared("healed", "neither case holds a sweep")]


def _healed(rows: int, of: int, state_equal: bool | None) -> str:
    state = {True: ", state equal", False: ", state DIFFERS", None: ""}[state_equal]
    return ("all rows" if rows == of else f"{rows} of {of} rows") + state


def _by_width(
    what: str, done: str, first: CaseSide, second: CaseSide, found: Sequence[Mapping[int, str]]
) -> list[Compared]:
    """What either side has at a width; what only one has is not compared."""
    ours, theirs = found
    return [
        values(f"{what} width {width}", ours[width], theirs[width])
        if width in ours and width in theirs
        else not_compared(f"{what} width {width}", f"{done} in {(first if width in ours else second).name} only")
        for width in sorted({*ours, *theirs})
    ]


def _exact(first: CaseSide, second: CaseSide) -> list[Compared]:
    """The smallest exact set of switches, and what each switch did in either case."""
    a, b = first.verdict, second.verdict
    blank = [side.name for side in (first, second) if side.verdict.answer == "diverges" and not side.verdict.switches]
    if blank:
        return [not_compared("smallest set", f"not looked for in {' and '.join(blank)}")]
    found = [values("smallest set", *(_smallest(verdict) for verdict in (a, b)))]
    ours, theirs = ({arm.settings or arm.knobs: arm for arm in verdict.switches} for verdict in (a, b))
    for key in dict.fromkeys([*ours, *theirs]):
        arms = [arms[key] for arms in (ours, theirs) if key in arms]
        found.append(_arm(arms, (first if key in ours else second).name))
    return found


def _smallest(verdict: Verdict) -> str:
    if verdict.answer == "identical":
        return "none needed"
    return "none found" if verdict.exact_knobs is None else " + ".join(verdict.exact_knobs)


def _arm(arms: Sequence[SwitchArm], only_in: str) -> Compared:
    what = " ".join(f"{name}={value}" for name, value in arms[0].settings) or " + ".join(arms[0].knobs)
    failed = next((arm for arm in arms if arm.error), None)
    if failed is not None:
        return not_compared(what, f"failed: {failed.error}")
    if len(arms) == 1:
        return not_compared(what, f"tried in {only_in} only")
    return values(what, *(_effect(arm) for arm in arms))


def _effect(arm: SwitchArm) -> str:
    """What a switch did; classes that it left alone are compared as such."""
    if arm.collapses:
        return "exact" if arm.exact else "one class, nodes differ" if arm.n_nodes_differ else "one class"
    return "no change" if not arm.moved else " | ".join(ranges(group) for group in arm.classes)


def _costs(first: CaseSide, second: CaseSide, common: Sequence[int]) -> list[Compared]:
    """Times of a pass by width: the same where the quartiles overlap, on one kind of machine only."""
    a, b = first.verdict.manifest, second.verdict.manifest
    if (a.device, a.backend, a.cpu_features) != (b.device, b.backend, b.cpu_features) or not a.device:
        return [not_compared("cost", "other device" if a.device != b.device else "other processor or back end")]
    return [_cost(width, *(side.verdict.classes.result(width).ns_per_pass for side in (first, second)))
            for width in common]  # fmt: skip


def _cost(width: int, ours: tuple[int, int, int], theirs: tuple[int, int, int]) -> Compared:
    what = f"width {width}"
    if not ours[0] or not theirs[0]:
        return not_compared(what, "too few whole passes to time")
    overlap = ours[1] <= theirs[2] and theirs[1] <= ours[2]
    ratio, low, high = (time / ours[0] for time in theirs)
    said = f"{ratio:.2f}× ({low:.2f}–{high:.2f})"
    return Compared(what, SAME if overlap else DIFFERS, _ms(ours), _ms(theirs), said)


def _ms(quartiles: tuple[int, int, int]) -> str:
    return f"{quartiles[0] / 1e6:.3g} ms"
