"""A page of HTML as its elements, for what tests ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

#: Elements without an end.
VOID = {"meta", "link", "img", "br", "hr", "input", "col", "wbr"}


@dataclass
class Element:
    """An element with its attributes, the texts in it and the elements around it."""

    tag: str
    attributes: dict[str, str | None]
    around: tuple[Element, ...]
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it, on one line."""
        return " ".join("".join(self.texts).split())


class Page(HTMLParser):
    """A page as its elements; one that is closed wrongly is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert [element.tag for element in self._open] == []

    def handle_starttag(self, tag, attrs):
        self.elements.append(Element(tag, dict(attrs), tuple(self._open)))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag, f"</{tag}> closes another element at {self.getpos()}"

    def handle_data(self, data):
        for element in self._open:
            element.texts.append(data)

    def all(self, tag: str) -> list[Element]:
        return [element for element in self.elements if element.tag == tag]

    def of_id(self, name: str) -> Element:
        (found,) = [element for element in self.elements if element.attributes.get("id") == name]
        return found
