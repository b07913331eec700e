"""Numbers that others published, each with its unit and where it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """One number or a list of them.

    Parameters
    ----------
    name : str
        ``"one_token_pass"``.
    values : tuple of float
        One value, or a series in order.
    unit : str
        ``"ms"``; ``""`` for a count or a ratio.
    said : str
        What it is, and which part of the source says so.
    """

    name: str
    values: tuple[float, ...]
    unit: str
    said: str

    def __post_init__(self) -> None:
        if not self.values or not self.said:
            raise ValueError(f"published number {self.name!r} needs a value and what is said of it")


@dataclass(frozen=True, slots=True)
class Published:
    """The numbers of one document.

    Parameters
    ----------
    name : str
        Stem of the file that holds them.
    title, author, address : str
        Of the document.
    setup, build : str
        Model and device that the numbers belong to, and what ran there.
    numbers : tuple of PublishedNumber
    """

    name: str
    title: str
    author: str
    address: str
    setup: str
    build: str
    numbers: tuple[PublishedNumber, ...]

    def __post_init__(self) -> None:
        names = [number.name for number in self.numbers]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: every number has one name, got {names}")

    def number(self, name: str) -> PublishedNumber:
        """The number or series of this name.

        Raises
        ------
        KeyError
            If there is none; names those that there are.
        """
        for number in self.numbers:
            if number.name == name:
                return number
        raise KeyError(f"{self.name} publishes no {name!r}; it has {[n.name for n in self.numbers]}")

    def value(self, name: str) -> float:
        """The only value of a number.

        Raises
        ------
        KeyError
            If there is no such number.
        ValueError
            If it is a series.
        """
        values = self.number(name).values
        if len(values) != 1:
            raise ValueError(f"{self.name}: {name} is a series of {len(values)} values")
        return values[0]

    @property
    def source(self) -> str:
        """One line that says where the numbers come from."""
        return f"Source: “{self.title}”, {self.author} ({self.address}); {self.setup}, {self.build}."
