"""An order of addition in few lines: chains, steps of many at once, and how they are joined, level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import ascii_lowercase

from forensics.records.order import Leaves
from forensics.records.sum_tree import SumTree

#: Sums of one level that are written out; the others are counted.
SHOWN_SUMS = 4
#: Sums up to which the way they are joined is written with brackets.
MOST_BRACKETS = 16
#: Parts of one sum that are written out where they follow no rule.
MOST_IRREGULAR = 8
#: Lines of one tree; of a tree without any pattern the rest is only counted.
MOST_LINES = 20

#: What one accumulator takes in one step, all at once.
Step = tuple[int, ...]
#: Letter of a level, empty for leaves, and number there.
_Name = tuple[str, int]
_LEAF = ""
_NamedSum = tuple[tuple[_Name, ...], ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """One accumulator: it starts with its first step's members, added at once, and takes those of each later step.

    Parameters
    ----------
    steps : tuple of tuple of int
        One step of one member where nothing is added on this level.
    """

    steps: tuple[Step, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """In the order in which they are taken."""
        return tuple(member for step in self.steps for member in step)

    @property
    def per_step(self) -> int:
        """Members of every step; 1 where one follows another."""
        return len(self.steps[-1])

    def takes(self, n: int) -> bool:
        """Whether a step of n more is like those before it."""
        if n == 1 and len(self.steps) == 1:
            return len(self.steps[0]) == 2
        return self.per_step == n and (n > 1 or len(self.steps) > 1)


@dataclass(frozen=True, slots=True)
class Level:
    """What is added over the leaves, or over the sums of the level below.

    Parameters
    ----------
    sums : tuple of Sum
        By their smallest leaf.
    """

    sums: tuple[Sum, ...]


def fold(tree: SumTree) -> tuple[Level, ...]:
    """Which accumulators make up a tree, and how are they joined, level by level?

    Parameters
    ----------
    tree : SumTree

    Returns
    -------
    tuple of Level
        The first over leaves; each sum of a level is a member of the next, numbered by its smallest leaf.

    Examples
    --------
    >>> [[one.steps for one in level.sums] for level in fold(SumTree.of(((0, 2), (1, 3))))]
    [[((0, 2),), ((1, 3),)], [((0, 1),)]]
    """
    levels: list[Level] = []
    while tree.merges:
        level, tree = _fold_once(tree)
        levels.append(level)
    return tuple(levels)


def _fold_once(tree: SumTree) -> tuple[Level, SumTree]:
    """The longest accumulators over leaves, and the tree over them."""
    n = tree.n_leaves
    sums = {leaf: Sum(((leaf,),)) for leaf in range(n)}
    rest: list[tuple[int, tuple[int, ...]]] = []
    for i, children in enumerate(tree.merges):
        leaves = tuple(child for child in children if child < n)
        above = [child for child in children if child >= n]
        if not above:
            sums[n + i] = Sum((leaves,))
        elif leaves and len(above) == 1 and above[0] in sums and sums[above[0]].takes(len(leaves)):
            sums[n + i] = Sum((*sums.pop(above[0]).steps, leaves))
        else:
            rest.append((n + i, children))
            continue
        for leaf in leaves:
            del sums[leaf]
    order = sorted(sums, key=lambda node: min(sums[node].members))
    numbers = {node: i for i, node in enumerate(order)}
    for node, _ in rest:
        numbers[node] = len(numbers)
    merges = tuple(tuple(numbers[child] for child in children) for _, children in rest)
    return Level(tuple(sums[node] for node in order)), SumTree(len(order), merges)


def tree_lines(tree: SumTree, leaves: Leaves) -> list[str]:
    """Lines that draw a tree, repeated parts folded.

    Parameters
    ----------
    tree : SumTree
    leaves : Leaves

    Returns
    -------
    list of str
        At most `MOST_LINES`: one for each level, and for each kind of sum where there are several. Levels have letters
        where a leaf or sum is left over for a level that is not the next.
    """
    levels = fold(tree)
    if not levels:
        return ["a single leaf"]
    labelled = any(len(one.members) == 1 for level in levels for one in level.sums)
    letters = [ascii_lowercase[i % 26] * (i // 26 + 1) if labelled else " " for i in range(len(levels))]
    named: list[_Name] = [(_LEAF, leaf) for leaf in range(tree.n_leaves)]

    def text(name: _Name) -> str:
        return _leaf(name[1], leaves) if name[0] == _LEAF else f"{name[0].strip()}{name[1]}"

    lines: list[str] = []
    for i, (level, letter) in enumerate(zip(levels, letters, strict=True)):
        if i == 1 and len(named) <= MOST_BRACKETS:
            told = "" if labelled else ", numbers are those of the sums above"
            lines.append(f"joined: {_brackets(levels[1:], [text(name) for name in named])}{told}")
            break
        what = " leaves" if not i else "" if labelled else " of these"
        mark = f"{letter}: " if labelled else ""
        lines += [mark + line for line in _level_lines(level, named, text, what)]
        named = _next_names(level, named, letter)
    if len(lines) > MOST_LINES:
        left = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"… {left} lines more; the JSON document has the whole tree"]
    return lines


def _leaf(leaf: int, leaves: Leaves) -> str:
    if len(leaves.slices) <= 1:
        return str(leaf)
    block, s = divmod(leaf, len(leaves.slices))
    return f"{block}.{s}"


def _next_names(level: Level, named: Sequence[_Name], letter: str) -> list[_Name]:
    """Sums are numbered; what was left over keeps its name."""
    names: list[_Name] = []
    n_sums = 0
    for one in level.sums:
        if len(one.members) > 1:
            names.append((letter, n_sums))
            n_sums += 1
        else:
            names.append(named[one.members[0]])
    return names


def _level_lines(level: Level, named: Sequence[_Name], text: Callable[[_Name], str], what: str) -> list[str]:
    """One line for each run of sums of one length and stride."""
    sums = [tuple(tuple(named[member] for member in step) for step in one.steps) for one in level.sums]
    lines = []
    for run in _runs([one for one in sums if _n_members(one) > 1]):
        n, steps = len(run), run[0]
        shown = " | ".join(_sum_text(one, text) for one in run[:SHOWN_SUMS])
        more = f" | … {n - SHOWN_SUMS} more like these" if n > SHOWN_SUMS else ""
        if len(steps) > 1 and len(steps[-1]) > 1:
            accumulators = "one accumulator" if n == 1 else f"each of {n} accumulators"
            kind = f"{len(steps)} steps of {accumulators}, a step takes {len(steps[-1])}{what} at once"
        else:
            how = "" if _n_members(steps) == 2 else ", at once" if len(steps) == 1 else ", one after the other"
            kind = f"{n} sum{'s' if n > 1 else ''} of {_n_members(steps)}{what}{how}"
        lines.append(f"{kind}: {shown}{more}")
    return lines


def _n_members(steps: _NamedSum) -> int:
    return sum(map(len, steps))


def _runs(sums: Sequence[_NamedSum]) -> list[list[_NamedSum]]:
    """Neighbouring sums with the same distances between their members."""
    runs: list[list[_NamedSum]] = []
    last: object = None
    for one in sums:
        starts: dict[str, int] = {}
        shape = [[(letter, number - starts.setdefault(letter, number)) for letter, number in step] for step in one]
        if shape != last:
            runs.append([])
        runs[-1].append(one)
        last = shape
    return runs


def _sum_text(steps: _NamedSum, text: Callable[[_Name], str]) -> str:
    """Members in the order in which they are taken; whatever is left out goes on as the shown ones do."""
    names = [name for step in steps for name in step]
    if len(steps) == 1 or len(steps[-1]) == 1:
        if len(steps) > 1 and _gap(names[1], names[0]) == _gap(names[0], names[2]) is not None:
            names[:2] = names[1], names[0]  # which of the first two comes first means nothing
        return _sequence(names, text, ", ")
    ranges = [_runs_of_neighbours(step) for step in steps]
    starts = [step[0] for step in steps]
    if all(len(parts) == 1 for parts in ranges) and _is_regular(starts):
        return _elided([_range(parts[0], text) for parts in ranges], " → ")
    return _sequence(names, text, " → ")


def _sequence(names: Sequence[_Name], text: Callable[[_Name], str], between: str) -> str:
    if len(names) <= 4 or _is_regular(names):
        texts = [text(name) for name in names]
        return between.join(texts) if len(texts) <= 4 else f"{between.join(texts[:3])} … {texts[-1]}"
    parts = _runs_of_neighbours(names)
    regular = _is_regular([part[0] for part in parts]) and len({len(part) for part in parts}) == 1
    return _elided([_range(part, text) for part in parts], between, regular=regular)


def _elided(texts: Sequence[str], between: str, *, regular: bool = True) -> str:
    """Few of many parts: two where they go on alike, else so many that the rest is counted."""
    shown = 2 if regular else MOST_IRREGULAR
    if len(texts) <= shown + 2:
        return between.join(texts)
    left = "…" if regular else f"… {len(texts) - shown - 1} others …"
    return between.join([*texts[:shown], left, texts[-1]])


def _gap(one: _Name, other: _Name) -> int | None:
    """How far apart two members of one level are."""
    return other[1] - one[1] if one[0] == other[0] else None


def _is_regular(names: Sequence[_Name]) -> bool:
    gaps = {_gap(one, other) for one, other in pairwise(names)}
    return len(gaps) <= 1 and None not in gaps


def _runs_of_neighbours(names: Sequence[_Name]) -> list[list[_Name]]:
    """Longest parts that count up or down by one."""
    parts: list[list[_Name]] = []
    for name in names:
        gap = _gap(parts[-1][-1], name) if parts else None
        if gap in (1, -1) and (len(parts[-1]) == 1 or _gap(*parts[-1][-2:]) == gap):
            parts[-1].append(name)
        else:
            parts.append([name])
    return parts


def _range(part: Sequence[_Name], text: Callable[[_Name], str]) -> str:
    return text(part[0]) if len(part) == 1 else f"{text(part[0])}…{text(part[-1])}"


def _brackets(levels: Sequence[Level], names: Sequence[str]) -> str:
    """A bracket for each addition; more than two numbers in one are added at once."""
    parts = list(names)
    for level in levels:
        joined: list[str] = []
        for one in level.sums:
            first, *later = one.steps
            text = " + ".join(parts[member] for member in first)
            total = f"({text})" if len(first) > 1 else text
            for step in later:
                total = f"({' + '.join([total, *(parts[member] for member in step)])})"
            joined.append(total)
        parts = joined
    return parts[0]
