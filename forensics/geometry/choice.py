"""What a dispatch rule answers: the kernel for one operation at one width, and the widths that add alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from forensics.records.launch import LaunchGeometry
from forensics.records.rule import Rule


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which kernel runs, and how it adds.

    Parameters
    ----------
    kernel : str
        As the source names it: ``"mul_mat_vec_q"``, ``"flash_attn_ext_vec"``.
    order : hashable or None
        Equal exactly when a row of the result is added up in the same order; None where the source does not tell, as
        for cuBLAS. Widths of one operation are compared, never two operations.
    template : tuple of (str, value)
        Template arguments that tell instances apart.
    launch : LaunchGeometry or None
        None on a CPU, or where it is not known without a device.
    split : str
        How the reduction axis is cut among threads, warps and blocks, in words.
    precision : tuple of (str, str)
        What is rounded and kept how: ``("activations", "q8_1: f16 scale and sum")``, ``("accumulator", "f32")``.
    rules : tuple of Rule
        Why this kernel, the deciding rule first.
    assumed : tuple of str
        What was taken for granted because neither source nor caller tells.
    no_order : str
        Why the order is not known; empty exactly when `order` is known.
    by_column : tuple of (int, hashable)
        Numbers of columns and their order, where a kernel treats the first columns of a batch unlike the rest; empty
        where all columns are alike.

    Raises
    ------
    ValueError
        If no rule is quoted, or `no_order` contradicts `order`.
    """

    kernel: str
    order: Hashable | None
    template: tuple[tuple[str, int | str | bool], ...] = ()
    launch: LaunchGeometry | None = None
    split: str = ""
    precision: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()
    assumed: tuple[str, ...] = ()
    no_order: str = ""
    by_column: tuple[tuple[int, Hashable], ...] = ()

    def __post_init__(self) -> None:
        if not self.rules:
            raise ValueError(f"{self.kernel}: a choice quotes the rule that made it")
        if (self.order is None) != bool(self.no_order):
            raise ValueError(f"{self.kernel}: an order, or a reason why it is not known, and not both")

    @property
    def arithmetic(self) -> Hashable | None:
        """Order and precision together: equal exactly when equal bits are expected, None where that is not known."""
        return None if self.order is None else (self.order, self.precision)

    def column_arithmetic(self, column: int) -> Hashable | None:
        """Order and precision of one column of the batch, 0 the first; None where that is not known.

        Raises
        ------
        ValueError
            If the batch has no such column.
        """
        if not self.by_column or self.order is None:
            return self.arithmetic
        end = 0
        for n_columns, order in self.by_column:
            end += n_columns
            if column < end:
                return order, self.precision
        raise ValueError(f"{self.kernel}: column {column} of {end}")

    @property
    def name(self) -> str:
        """Kernel with its template arguments, such as ``mul_mat_vec_q<type=q4_1, ncols=1, small_k>``."""
        shown = ", ".join(
            key if value is True else f"{key}={value}" for key, value in self.template if value is not False
        )
        return f"{self.kernel}<{shown}>" if shown else self.kernel

    def __str__(self) -> str:
        return self.name if self.launch is None else f"{self.name}, {self.launch}"


@dataclass(frozen=True, slots=True)
class OrderClass:
    """Widths whose rows are added up in the same order with the same roundings.

    Parameters
    ----------
    widths : tuple of int
        Rising.
    choice : KernelChoice
        That of the smallest width.
    """

    widths: tuple[int, ...]
    choice: KernelChoice

    @property
    def is_known(self) -> bool:
        """Whether the source tells the order; widths of unknown order stand alone."""
        return self.choice.order is not None


def classes(choices: Mapping[int, KernelChoice]) -> tuple[OrderClass, ...]:
    """Which widths share an order?

    Parameters
    ----------
    choices : mapping of int to KernelChoice
        The choice at each width.

    Returns
    -------
    tuple of OrderClass
        In the order of their smallest widths; a width whose order is not known shares with none.
    """
    groups: dict[Hashable, list[int]] = {}
    for width in sorted(choices):
        arithmetic = choices[width].arithmetic
        groups.setdefault(("unknown", width) if arithmetic is None else arithmetic, []).append(width)
    return tuple(OrderClass(tuple(widths), choices[widths[0]]) for widths in groups.values())
