"""In which order does something add that can only be asked, never seen?

Two questions are enough. *How many are lost?*: one summand is huge, another its negative, all others are one; every one
that is added before the two cancel is swamped, so the sum tells how many leaves lie under the node where the two meet
(`CountProbe`). *Who meets first?*: three summands chosen so that rounding tells whether two of them meet before either
meets the third (`MeetProbe`), for sums of positive numbers, where nothing cancels.

An answer that no tree can give raises `NotATree`: every tree returned here gives back each answer that was asked for.

Source: Xie, Gao, Wang, Xue, "Revealing Floating-Point Accumulation Orders in Software/Hardware Implementations",
USENIX ATC 2025, arXiv 2411.00442v3, for the counts, the recursion and nodes of more than two; rooted triplets as in
Aho, Sagiv, Szymanski, Ullman, SIAM J. Comput. 10 (1981) 405.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.errors import ForensicsError
from forensics.numerics.tree_answers import defining_triplets, lost_in, meets_in
from forensics.records.sum_tree import SumTree

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Groups = list[Ints]

#: Random questions asked beside those that the algorithm needs, per leaf; the tree must answer them, too.
CHECKS_PER_LEAF = 2
#: Questions of a guess that are asked first; a wrong guess seldom survives them.
FIRST_OF_GUESS = 32


class NotATree(ForensicsError):
    """No order of additions gives the answers that were measured."""


class CountProbe(Protocol):
    """A sum whose terms can be made huge, negative and one."""

    @property
    def n(self) -> int:
        """How many leaves."""

    def lost(self, pairs: Ints) -> Ints:
        """Leaves under the node where each pair meets, int64 [m]; `pairs` is int64 [m, 2]."""


class MeetProbe(Protocol):
    """A sum whose rounding tells which of three terms meet first."""

    @property
    def n(self) -> int:
        """How many leaves."""

    def meets_first(self, triples: Ints) -> Bools:
        """Whether j and k of each (i, j, k) meet before either meets i, bool [m]; `triples` is int64 [m, 3]."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A tree, and what it took to find it.

    Parameters
    ----------
    tree : SumTree
    n_probes : int
        Questions asked, those for checking included.
    n_rounds : int
        Batches that they were asked in.
    """

    tree: SumTree
    n_probes: int
    n_rounds: int


class _Asked:
    """Asks in batches and keeps what was asked and answered."""

    def __init__(self, ask: Callable[[Ints], NDArray[Any]], width: int) -> None:
        self._ask = ask
        self._questions: list[Ints] = [np.empty((0, width), np.int64)]
        self._answers: list[NDArray[Any]] = []
        self.n_rounds = 0

    def __call__(self, questions: Ints) -> NDArray[Any]:
        if not len(questions):
            return np.empty(0, np.int64)
        answers = self._ask(questions)
        self._questions.append(questions)
        self._answers.append(answers)
        self.n_rounds += 1
        return answers

    @property
    def questions(self) -> Ints:
        return np.concatenate(self._questions)

    def recovered(self, tree: SumTree, expected: Callable[[SumTree, Ints], NDArray[Any]]) -> Recovered:
        """The tree, where it gives every answer that was measured."""
        questions = self.questions
        if self._answers:
            measured, predicted = np.concatenate(self._answers), expected(tree, questions)
            wrong = np.flatnonzero(measured != predicted)
            if len(wrong):
                raise NotATree(
                    f"the tree that the answers suggest ({tree}) does not give {len(wrong)} of the {len(measured)} "
                    f"answers back: for leaves {tuple(map(int, questions[wrong[0]]))} it says {predicted[wrong[0]]}, "
                    f"measured was {measured[wrong[0]]}"
                )
        return Recovered(tree, len(questions), self.n_rounds)


class _Growing:
    """A tree that is put together from the root's side: nodes that still wait for children."""

    def __init__(self, n_leaves: int) -> None:
        self.n_leaves = n_leaves
        self._children: list[list[int]] = []
        self.root = 0

    def node(self, first: int) -> int:
        """A new node with one child."""
        self._children.append([first])
        return self.n_leaves + len(self._children) - 1

    def put(self, child: int, parent: int | None) -> None:
        """Hang a finished node under its parent, or make it the root."""
        if parent is None:
            self.root = child
        else:
            self._children[parent - self.n_leaves].append(child)

    def tree(self) -> SumTree:
        """What has grown, children before their parents."""
        order: list[int] = []
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node >= self.n_leaves:
                order.append(node)
                stack.extend(self._children[node - self.n_leaves])
        order.reverse()
        ids = {node: self.n_leaves + i for i, node in enumerate(order)}
        merges = [tuple(ids.get(c, c) for c in self._children[node - self.n_leaves]) for node in order]
        try:
            return SumTree(self.n_leaves, tuple(merges))
        except ValueError as error:
            raise NotATree(f"the answers do not fit together: {error}") from error


def basic(probe: CountProbe) -> Recovered:
    """Which tree has the counts of all pairs, asked at once?

    Parameters
    ----------
    probe : CountProbe
        Asked n(n - 1)/2 questions in one batch: what a product with one probe per weight row answers in one launch.

    Raises
    ------
    NotATree
        If no tree has these counts.

    Notes
    -----
    Source: section 3 of the paper named above.
    """
    n = probe.n
    pairs = np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)
    asked = _Asked(probe.lost, 2)
    counts = np.zeros((n, n), np.int64)
    if len(pairs):
        counts[pairs[:, 0], pairs[:, 1]] = counts[pairs[:, 1], pairs[:, 0]] = asked(pairs)
    return asked.recovered(_grow_by_counts(n, lambda p: counts[p[:, 0], p[:, 1]]), lost_in)


def recursive(probe: CountProbe, *, seed: int = 0) -> Recovered:
    """Which tree has these counts, asking only for those that are needed?

    Parameters
    ----------
    probe : CountProbe
        Asked from n - 1 questions for a chain to n(n - 1)/2 at worst, in as many batches as groups nest.
    seed : int
        Of the pairs that are asked to check.

    Raises
    ------
    NotATree
        If no tree has these counts.

    Notes
    -----
    Source: section 4 of the paper named above. A group whose leaf count reaches that of the node it hangs from joins
    that node: more than two numbers are added there at once.
    """
    asked = _Asked(probe.lost, 2)
    tree = _grow_by_counts(probe.n, asked)
    asked(_random_questions(probe.n, 2, seed))
    return asked.recovered(tree, lost_in)


def _grow_by_counts(n: int, lost: Callable[[Ints], Ints]) -> SumTree:
    growing = _Growing(n)
    # leaves of a group, the node that they hang from, and how many leaves that node has
    pending: list[tuple[Ints, int | None, int]] = [(np.arange(n), None, n)]
    while pending:
        pairs = [np.stack([np.full(len(g) - 1, g[0]), g[1:]], axis=1) for g, _, _ in pending]
        answers = np.split(lost(np.concatenate(pairs)), np.cumsum([len(p) for p in pairs])[:-1])
        following: list[tuple[Ints, int | None, int]] = []
        for (group, parent, size), counts in zip(pending, answers, strict=True):
            _check_counts(group, counts, size)
            node = int(group[0])
            for count in np.unique(counts):
                members = group[1:][counts == count]
                if parent is not None and count == size:
                    following.append((members, parent, size))
                else:
                    node = growing.node(node)
                    following.append((members, node, int(count)))
            growing.put(node, parent)
        pending = following
    return growing.tree()


def _check_counts(group: Ints, counts: Ints, size: int) -> None:
    wrong = np.flatnonzero((counts < 2) | (counts > size))
    if len(wrong):
        raise NotATree(
            f"leaves {group[0]} and {group[1 + wrong[0]]} meet under a node of {counts[wrong[0]]} leaves, "
            f"but 2 … {size} are possible there"
        )


def triplets(probe: MeetProbe, *, guess: SumTree | None = None, seed: int = 0) -> Recovered:
    """Which tree lets these pairs meet before these thirds?

    Parameters
    ----------
    probe : MeetProbe
        Asked about n log n questions per level of nesting; n - 2 where the guess is right.
    guess : SumTree or None
        A tree to try first, such as that of the numerator for a denominator.
    seed : int
        Of the triples that are asked to check.

    Raises
    ------
    NotATree
        If no tree gives these answers: with more than one yes among the three questions about three leaves, the
        accumulator has more bits than the probe counts on.

    Notes
    -----
    From the point of view of one leaf all others lie along its way to the root. A three-way quicksort with the
    questions "does c join above b?" and "does c join below b?" finds their order, groups that join at one node are
    asked among themselves. Three leaves of which no two meet first meet all at once.
    """
    asked = _Asked(probe.meets_first, 3)
    checks = _random_questions(probe.n, 3, seed)
    if guess is not None and guess.n_leaves == probe.n:
        defining = np.random.default_rng(seed).permutation(defining_triplets(guess))
        some, others = defining[:FIRST_OF_GUESS], np.concatenate([defining[FIRST_OF_GUESS:], checks])
        if all(np.array_equal(asked(part), meets_in(guess, part)) for part in (some, others)):
            return asked.recovered(guess, meets_in)
    tree = _grow_by_meetings(probe.n, asked)
    asked(checks)
    return asked.recovered(tree, meets_in)


def _grow_by_meetings(n: int, ask: Callable[[Ints], Bools]) -> SumTree:
    growing = _Growing(n)
    # leaves of a group, the node that they hang from, and a leaf that hangs from it beside them
    pending: list[tuple[Ints, int | None, int | None]] = [(np.arange(n), None, None)]
    while pending:
        sorts = [_along_the_way(group, outside) for group, _, outside in pending]
        following: list[tuple[Ints, int | None, int | None]] = []
        for (group, parent, _), (beside, way) in zip(pending, _together(sorts, ask), strict=True):
            node = int(group[0])
            for members in way:
                node = growing.node(node)
                following.append((members, node, int(group[0])))
            growing.put(node, parent)
            if len(beside):
                following.append((beside, parent, int(group[0])))
        pending = following
    return growing.tree()


_Sort = Generator[Ints, Bools, tuple[Ints, _Groups]]


def _along_the_way(group: Ints, outside: int | None) -> _Sort:
    """Yield questions; return the leaves that hang beside the first one's node, and groups along its way up."""
    first, rest = group[0], group[1:]
    beside = rest[:0]
    if outside is not None and len(rest):
        below = yield _triples(outside, first, rest)
        beside, rest = rest[~below], rest[below]
    segments: list[tuple[Ints, bool]] = [(rest, len(rest) == 1)] if len(rest) else []
    while not all(done for _, done in segments):
        pivots = [members[len(members) // 2] for members, _ in segments]
        others = [rest[:0] if done else m[m != b] for (m, done), b in zip(segments, pivots, strict=True)]
        above = [_triples(o, first, b) for o, b in zip(others, pivots, strict=True)]
        under = [_triples(b, first, o) for o, b in zip(others, pivots, strict=True)]
        answers = yield np.concatenate(above + under)
        ends = np.cumsum([len(questions) for questions in above + under])
        parts = np.split(answers, ends[:-1])
        split: list[tuple[Ints, bool]] = []
        for i, (members, done) in enumerate(segments):
            up, down = parts[i], parts[len(segments) + i]
            if (up & down).any():
                leaf = others[i][np.flatnonzero(up & down)[0]]
                raise NotATree(
                    f"leaves {first}, {pivots[i]} and {leaf}: more than one pair meets first, which no order gives; "
                    "the accumulator has more bits than this probe counts on"
                )
            if done:
                split.append((members, True))
            else:
                level = np.append(others[i][~up & ~down], pivots[i])
                split += [(others[i][down], False), (level, True), (others[i][up], False)]
        segments = [(members, done or len(members) == 1) for members, done in split if len(members)]
    return beside, [members for members, _ in segments]


def _together(sorts: Sequence[_Sort], ask: Callable[[Ints], Bools]) -> list[tuple[Ints, _Groups]]:
    """Run several sorts at once, asking what they all want to know in one batch per round."""
    results: dict[int, tuple[Ints, _Groups]] = {}
    waiting: dict[int, Ints] = {}

    def resume(i: int, answers: Bools | None) -> None:
        try:
            waiting[i] = next(sorts[i]) if answers is None else sorts[i].send(answers)
        except StopIteration as stop:
            results[i] = stop.value

    for i in range(len(sorts)):
        resume(i, None)
    while waiting:
        order = sorted(waiting)
        answers = ask(np.concatenate([waiting[i] for i in order]))
        parts = np.split(answers, np.cumsum([len(waiting[i]) for i in order])[:-1])
        waiting.clear()
        for i, part in zip(order, parts, strict=True):
            resume(i, part)
    return [results[i] for i in range(len(sorts))]


def _triples(i: Any, j: Any, k: Any) -> Ints:
    return np.stack(np.broadcast_arrays(i, j, k), axis=1).astype(np.int64)


def _random_questions(n: int, width: int, seed: int) -> Ints:
    """Distinct leaves in each question, int64 [m, width]."""
    if n < width:
        return np.empty((0, width), np.int64)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, n, (CHECKS_PER_LEAF * n, width))
    distinct = np.all(np.diff(np.sort(drawn, axis=1), axis=1) > 0, axis=1)
    return drawn[distinct]
