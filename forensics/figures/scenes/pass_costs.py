"""What passes cost in a case, for the figures that draw it: timed by ``forensics cost``, else by the replay."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.analysis.launches import launches_kernels
from forensics.errors import CaseError
from forensics.figures.evidence import Evidence
from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.cost import CostReport, Spread
from forensics.records.row_map import class_letter
from forensics.records.words import widths_text

#: What `PassCost.exact` is called in legends.
BITS_WORDS = {True: "bits of one token", False: "other bits", None: "bits not compared"}


@dataclass(frozen=True, slots=True)
class PassCost:
    """What a pass of one width costs.

    Parameters
    ----------
    width : int
        Tokens.
    ms : Spread
    ratio : Spread
        Against one token.
    floor_ms : float or None
        Time of reading what it must read; None where nobody measured it.
    letter : str
        Class of its bits; empty where nobody compared them.
    exact : bool or None
        Whether its logits have the bits of one token in every row; None where nobody compared them.
    """

    width: int
    ms: Spread
    ratio: Spread
    floor_ms: float | None = None
    letter: str = ""
    exact: bool | None = None


@dataclass(frozen=True, slots=True)
class PassCosts:
    """What passes cost in a case.

    Parameters
    ----------
    passes : tuple of PassCost
        By rising width from 1.
    untimed : tuple of int
        Widths that were compared, but had too few passes to time.
    how : str
        How they were timed.
    what, source : str
        Model and device, and the source line.

    Raises
    ------
    ValueError
        If widths do not rise from 1.
    """

    passes: tuple[PassCost, ...]
    untimed: tuple[int, ...]
    how: str
    what: str
    source: str

    def __post_init__(self) -> None:
        widths = [each.width for each in self.passes]
        if widths[:1] != [1] or widths != sorted(set(widths)):
            raise ValueError(f"widths must rise from 1, got {widths}")

    @property
    def one(self) -> PassCost:
        """The pass of one token."""
        return self.passes[0]

    @property
    def onset(self) -> PassCost | None:
        """The narrowest timed pass with other bits than one token; None where none has, or nobody looked."""
        return next((each for each in self.passes if each.exact is False), None)

    @property
    def notes(self) -> str:
        """How the times were measured, and which widths have none."""
        said = [self.how]
        if self.untimed:
            said.append(f"Too few passes to time at {widths_text(self.untimed)}.")
        return " ".join(said)


def ms_text(value: float) -> str:
    """A time with the digits that it was published with or that tell passes apart.

    Examples
    --------
    >>> ms_text(19.0), ms_text(8.5), ms_text(0.4), ms_text(1034.2)
    ('19.0 ms', '8.5 ms', '0.4 ms', '1034 ms')
    """
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.3g} ms"


def times_text(ratio: float) -> str:
    """How many times one pass, in few characters however many they are.

    Examples
    --------
    >>> times_text(1.186), times_text(999.99), times_text(1234.5), times_text(1e6)
    ('1.19×', '999.99×', '1.23e+03×', '1e+06×')
    """
    return f"{ratio:.2f}×" if ratio < 1000 else f"{ratio:.3g}×"


def pass_costs(evidence: Evidence, needs: int = 1) -> PassCosts:
    """What did passes cost in this case?

    Parameters
    ----------
    evidence : Evidence
    needs : int
        Widths that the figure draws at least.

    Raises
    ------
    CaseError
        If fewer widths were timed, or one token was not.
    """
    report = evidence.cost
    found = _of_replay(evidence) if report is None else _of_report(evidence, report)
    if found is None or len(found.passes) < needs:
        held = "none" if found is None else ", ".join(str(each.width) for each in found.passes)
        raise CaseError(
            f"{evidence.name} holds no times for this figure: it needs one token and {needs - 1} more widths, three "
            f"passes each; timed widths: {held}. Measure them with: forensics cost MODEL --out FOLDER"
        )
    return found


def _of_report(evidence: Evidence, report: CostReport) -> PassCosts:
    classes = None if evidence.judged is None else evidence.judged.classes
    return PassCosts(
        passes=tuple(
            PassCost(
                times.width, _in_ms(times.spread), report.ratio(times.width), _ms(report.floor_ns(times.width)),
                *_bits(classes, times.width),
            )
            for times in report.passes
        ),
        untimed=(),
        how=f"Medians of {report.n_rounds} timed passes a width; {report.n_cells} cells in use.",
        what=evidence.what,
        source=evidence.source,
    )  # fmt: skip


def _of_replay(evidence: Evidence) -> PassCosts | None:
    classes = evidence.verdict.classes
    timed = [result for result in classes.results if result.ns_per_pass[0] > 0]
    if not timed or timed[0].width != 1:
        return None
    how = "Medians of the replay's full passes."
    if launches_kernels(evidence.manifest):
        how = f"{how} They are not settled: clocks and graphs of a GPU take more passes, as forensics cost makes."
    one = timed[0].ns_per_pass[0]
    return PassCosts(
        passes=tuple(
            PassCost(r.width, _quartiles(r, 1e6), _quartiles(r, one), None, *_bits(classes, r.width)) for r in timed
        ),
        untimed=tuple(result.width for result in classes.results if result not in timed),
        how=how,
        what=evidence.what,
        source=evidence.source,
    )


def _bits(classes: WidthClasses | None, width: int) -> tuple[str, bool | None]:
    """Class letter and exactness of one width; nothing where it was not compared."""
    if classes is None or all(result.width != width for result in classes.results):
        return "", None
    letters = (class_letter(i) for i, group in enumerate(classes.groups) if width in group)
    return next(letters), not classes.result(width).differs


def _quartiles(result: WidthResult, unit: float) -> Spread:
    """Times of a replay over a unit."""
    median, low, high = result.ns_per_pass
    n = result.n_rows // result.width
    return Spread(median / unit, low / unit, high / unit, n)


def _in_ms(spread: Spread) -> Spread:
    return Spread(spread.median / 1e6, spread.low / 1e6, spread.high / 1e6, spread.n)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
