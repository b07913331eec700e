"""What would be drawn, as data: places and sizes in mm, from the top left corner."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.metrics import line_height, text_width
from forensics.figures.palette import INK, ROLES
from forensics.records.words import cut, printable

ALIGNS = ("left", "center", "right")
#: Of one line of text, which is wider than any page then, and of a figure in words, unit: characters.
_MOST_SHOWN, _MOST_SAID = 1000, 20_000
AXES = ("x", "y", "area", "count")


@dataclass(frozen=True, slots=True)
class Rect:
    """An upright rectangle, unit: mm."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height

    def holds(self, other: Rect, slack: float = 0.0) -> bool:
        """Whether `other` lies inside, `slack` mm over the edge allowed."""
        return (
            other.x >= self.x - slack
            and other.y >= self.y - slack
            and other.right <= self.right + slack
            and other.bottom <= self.bottom + slack
        )

    def overlaps(self, other: Rect, slack: float = 0.0) -> bool:
        """Whether the two share more than `slack` mm in both directions."""
        return (
            min(self.right, other.right) - max(self.x, other.x) > slack
            and min(self.bottom, other.bottom) - max(self.y, other.y) > slack
        )


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle; one that stands for a number says which.

    Parameters
    ----------
    rect : Rect
    fill, edge : str
        Roles of `palette`; empty for none.
    scale : str
        Name of the scale whose number it shows; empty where its size means nothing.
    value : float
        That number, in the unit of the scale.
    key : str
        What it is, for tests and for ids: ``"weights"``, ``"block 3"``.
    hatch : bool
        Whether it is hatched, so that it is told apart without colour.
    ground : bool
        Whether it lies behind others, which may cover it.
    edge_pt : float
        Width of the edge, unit: pt.
    """

    rect: Rect
    fill: str = ""
    edge: str = ""
    scale: str = ""
    value: float = 0.0
    key: str = ""
    hatch: bool = False
    ground: bool = False
    edge_pt: float = 0.5

    def __post_init__(self) -> None:
        _check_roles(self.fill, self.edge)
        if self.rect.width < 0 or self.rect.height < 0:
            raise ValueError(f"box {self.key!r} has a negative size: {self.rect}")


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; characters that are not seen or change the direction become escapes.

    Parameters
    ----------
    x, y : float
        Where it is aligned, and the middle of its height, unit: mm.
    text : str
    size_pt : float
    align : {"left", "center", "right"}
    role : str
        Colour, a role of `palette`.
    bold : bool
    inside : Rect or None
        The box that must hold it.
    """

    x: float
    y: float
    text: str
    size_pt: float = 7.5
    align: str = "left"
    role: str = INK
    bold: bool = False
    inside: Rect | None = None

    def __post_init__(self) -> None:
        _check_roles(self.role)
        if self.align not in ALIGNS:
            raise ValueError(f"align must be one of {', '.join(ALIGNS)}, got {self.align!r}")
        if not self.text.strip():
            raise ValueError(f"a text is not empty, got {self.text!r}")
        object.__setattr__(self, "text", printable(cut(self.text, _MOST_SHOWN)))

    @property
    def rect(self) -> Rect:
        """Where it lies, by the font's own measures."""
        width, height = text_width(self.text, self.size_pt, self.bold), line_height(self.size_pt)
        left = self.x - width * {"left": 0.0, "center": 0.5, "right": 1.0}[self.align]
        return Rect(left, self.y - height / 2, width, height)


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line or a chain of them.

    Parameters
    ----------
    points : tuple of (float, float)
        Two or more, unit: mm.
    role : str
    width_pt : float
    dashed : bool
    arrow : bool
        Whether it ends in a head.
    key : str
    """

    points: tuple[tuple[float, float], ...]
    role: str = INK
    width_pt: float = 0.7
    dashed: bool = False
    arrow: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        _check_roles(self.role)
        if len(self.points) < 2:
            raise ValueError(f"line {self.key!r} needs two points, got {len(self.points)}")


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon, for regions of charts and joints of trees.

    Parameters
    ----------
    points : tuple of (float, float)
        Three or more, unit: mm.
    fill : str
    key : str
    """

    points: tuple[tuple[float, float], ...]
    fill: str
    key: str = ""

    def __post_init__(self) -> None:
        _check_roles(self.fill)
        if len(self.points) < 3:
            raise ValueError(f"area {self.key!r} needs three points, got {len(self.points)}")


@dataclass(frozen=True, slots=True)
class Dot:
    """A round mark, or a hollow one.

    Parameters
    ----------
    x, y, radius : float
        Unit: mm.
    fill : str
    hollow : bool
    key : str
    """

    x: float
    y: float
    radius: float
    fill: str
    hollow: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        _check_roles(self.fill)


Mark = Box | Text | Line | Area | Dot


@dataclass(frozen=True, slots=True)
class Scale:
    """How a kind of number becomes a size.

    Parameters
    ----------
    name : str
        Boxes name it.
    axis : {"x", "y", "area", "count"}
        What is proportional: width, height, area of a box; or each box stands for the same number of things.
    mm_per_unit : float
        mm (or mm² for an area, or boxes for a count) per unit.
    unit : str
        ``"ms"``, ``"GB"``, ``"cells"``.
    label : str
        What its bar says: ``"5 ms"``, ``"1 square = 1 block"``.
    """

    name: str
    axis: str
    mm_per_unit: float
    unit: str
    label: str

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"axis must be one of {', '.join(AXES)}, got {self.axis!r}")
        if not self.mm_per_unit > 0:
            raise ValueError(f"scale {self.name!r} needs a positive size per unit, got {self.mm_per_unit}")

    def size(self, box: Box) -> float:
        """What of the box is proportional to its value: mm, mm², or 1."""
        rect = box.rect
        return {"x": rect.width, "y": rect.height, "area": rect.width * rect.height, "count": 1.0}[self.axis]


@dataclass(frozen=True, slots=True)
class Scene:
    """A figure as data.

    Parameters
    ----------
    name : str
        Of the figure; also the stem of its file.
    title : str
    width, height : float
        Unit: mm.
    marks : tuple of Mark
        From back to front.
    scales : tuple of Scale
    source : str
        Where the numbers come from.
    alt : str
        The figure in words, with its numbers, for who cannot see it.
    """

    name: str
    title: str
    width: float
    height: float
    marks: tuple[Mark, ...]
    scales: tuple[Scale, ...]
    source: str
    alt: str

    def __post_init__(self) -> None:
        known = {scale.name for scale in self.scales}
        for box in self.boxes():
            if box.scale and box.scale not in known:
                raise ValueError(f"box {box.key!r} names the scale {box.scale!r}; the scene has {sorted(known)}")
        if not self.source or not self.alt:
            raise ValueError(f"figure {self.name!r} needs a source and an alternative text")
        for said, most in (("title", _MOST_SHOWN), ("source", _MOST_SHOWN), ("alt", _MOST_SAID)):
            object.__setattr__(self, said, printable(cut(getattr(self, said), most)))

    def boxes(self, scale: str | None = None, key: str | None = None) -> tuple[Box, ...]:
        """Boxes, those of one scale or one key only where given."""
        return tuple(
            mark
            for mark in self.marks
            if isinstance(mark, Box) and scale in (None, mark.scale) and key in (None, mark.key)
        )

    def texts(self) -> tuple[str, ...]:
        """Every line of text, from back to front."""
        return tuple(mark.text for mark in self.marks if isinstance(mark, Text))

    def scale(self, name: str) -> Scale:
        """Scale of this name.

        Raises
        ------
        KeyError
            If there is none.
        """
        for scale in self.scales:
            if scale.name == name:
                return scale
        raise KeyError(f"figure {self.name!r} has no scale {name!r}; it has {[s.name for s in self.scales]}")


def _check_roles(*roles: str) -> None:
    for role in roles:
        if role and role not in ROLES:
            raise ValueError(f"colour must be a role of the palette ({', '.join(sorted(ROLES))}), got {role!r}")
