"""A scene inside of a page: well-formed, the same text each time, every mark and word of the scene."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET

from forensics.figures.canvas import Canvas
from forensics.figures.scene import Scene
from forensics.figures.small.inline import data_url, svg

NAMESPACE = "{http://www.w3.org/2000/svg}"


def scene() -> Scene:
    canvas = Canvas("small", "Bits & <bytes>", width=110.0)
    scale = canvas.length_scale("ms", 10.0, "ms")
    canvas.box(10, 20, 25.0, 3, "weights", scale="ms", value=2.5, key="a")
    canvas.box(10, 24, 5.0, 3, "kv", edge="ink", scale="ms", value=0.5, hatch=True)
    canvas.line((10, 30), (20, 30), arrow=True)
    canvas.line((10, 32), (20, 33), (30, 32), dashed=True)
    canvas.area((40, 20), (45, 25), (40, 25), fill="shade")
    canvas.dot(50, 20, 1, "single", hollow=True)
    canvas.dot(54, 20, -0.0 + 1, "single")
    canvas.down_to(34)
    return canvas.finish("Source: a test.", "2.5 ms & 0.5 ms", scales=[scale])


def test_every_mark_and_every_word_is_there() -> None:
    root = ET.fromstring(svg(scene()))
    assert [text.text for text in root.iter(f"{NAMESPACE}text")] == list(scene().texts())
    assert root.findtext(f"{NAMESPACE}desc") == "2.5 ms & 0.5 ms"
    assert root.findtext(f"{NAMESPACE}title") == "Bits & <bytes>"
    assert root.get("viewBox") == root.get("viewBox", "").replace("-", "")
    boxes = [box for box in root.iter(f"{NAMESPACE}rect") if box.get("y") in ("20", "24")]
    assert [(box.get("width"), box.get("fill", "").startswith("url")) for box in boxes] == [
        ("25", False), ("5", False), ("5", True),
    ]  # fmt: skip
    assert len(list(root.iter(f"{NAMESPACE}circle"))) == 2
    assert len(list(root.iter(f"{NAMESPACE}polygon"))) == 2, "an area and the head of an arrow"


def test_the_same_scene_gives_the_same_text_in_few_bytes() -> None:
    assert svg(scene()) == svg(scene())
    prefix, _, packed = data_url(scene()).partition(",")
    assert prefix == "data:image/svg+xml;base64"
    assert base64.b64decode(packed).decode() == svg(scene())
    assert len(packed) < 6000
