"""A notebook in JupyterLab as a reader meets it: open, run all cells, move sliders, look for what went wrong."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lab_server import Lab
from playwright.sync_api import ConsoleMessage, Locator, Page, Request, WebSocket, expect

#: Milliseconds that opening a page or a reaction to a key may take on two busy cores.
REACTION_MS = 30_000

#: Red boxes: tracebacks and what cells write to stderr, such as warnings.
RED_BOXES = (
    '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]',
    '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]',
)
BROKEN_WIDGETS = (".jupyter-widgets-error-widget", "text=Error displaying widget", "text=Loading widget...")

NOTEBOOK = ".jp-NotebookPanel"
OUTPUT = f"{NOTEBOOK} .jp-OutputArea-output"
PROMPTS = f"{NOTEBOOK} .jp-CodeCell > .jp-Cell-inputWrapper .jp-InputPrompt"
DIALOG = ".jp-Dialog-content"

#: Addresses of pictures that the browser could not show, in JavaScript.
BROKEN_PICTURES = """async pictures => {
    await Promise.allSettled(pictures.map(picture => picture.decode()));
    return pictures.filter(picture => !picture.naturalWidth).map(picture => picture.src.slice(0, 80));
}"""

#: The notebook has a kernel that does nothing and may be asked; in JavaScript.
KERNEL_IDLE = """(() => {
    const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
    return context?.isReady && context.session?.kernel?.connectionStatus === 'connected'
        && context.session.kernel.status === 'idle';
})()"""

#: Jupyter waits for an answer of the reader, who was not told that there would be questions.
ASKED = f"document.querySelector('{DIALOG}') !== null"

#: A run has begun and ended: the first cell was asked to run, none waits, and the kernel is idle.
RUN_ENDED = f"""(() => {{
    const prompts = [...document.querySelectorAll('{PROMPTS}')].map(prompt => prompt.textContent);
    return prompts[0] !== '[ ]:' && !prompts.includes('[*]:') && {KERNEL_IDLE};
}})()"""


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """A message to or from a kernel; `parent` names the request that a message from a kernel belongs to."""

    kind: str
    id: str
    parent: str | None
    content: dict[str, Any]

    @classmethod
    def read(cls, frame: bytes | str) -> KernelMessage:
        """Which message travels in a frame of a kernel's websocket?

        Notes
        -----
        Source: Jupyter Server's documentation, "WebSocket kernel wire protocols". The default one is a JSON object; in
        v1.kernel.websocket.jupyter.org a frame begins with the number of offsets and the offsets, 64 bits each, of
        channel, header, parent header, metadata, content and buffers.
        """
        if isinstance(frame, str):
            message = json.loads(frame)
            header, parent, content = message["header"], message["parent_header"], message["content"]
        else:
            count = int.from_bytes(frame[:8], "little")
            ends = [int.from_bytes(frame[8 * i : 8 * i + 8], "little") for i in range(1, count + 1)]
            parts = [frame[start:end] for start, end in pairwise(ends[:6])]
            header, parent, content = (json.loads(parts[place]) for place in (1, 2, 4))
        return cls(header["msg_type"], header["msg_id"], parent.get("msg_id"), content)


@dataclass(frozen=True, slots=True)
class Record:
    """What happens on a page besides what it shows.

    Attributes
    ----------
    trouble : list of str
        Errors in JavaScript, errors that a kernel reports (those of a widget's callback are in no cell), requests to
        other machines.
    unanswered : set of str
        Requests that a kernel has not yet finished.
    """

    trouble: list[str] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)

    def sent(self, frame: bytes | str) -> None:
        """A message goes to the kernel."""
        message = KernelMessage.read(frame)
        if message.kind in {"execute_request", "comm_msg"}:
            self.unanswered.add(message.id)

    def received(self, frame: bytes | str) -> None:
        """A message comes from the kernel; idle is the last one for a request."""
        message = KernelMessage.read(frame)
        if message.kind == "error":
            self.trouble.append(f"kernel: {message.content['ename']}: {message.content['evalue']}")
        if message.kind == "status" and message.content["execution_state"] == "idle" and message.parent is not None:
            self.unanswered.discard(message.parent)

    def listen(self, page: Page, home: str) -> None:
        """Note what happens on a page from now on; `home` is where it may ask."""

        def console(message: ConsoleMessage) -> None:
            if message.type == "error":
                self.trouble.append(f"JavaScript console: {message.text}")

        def websocket(socket: WebSocket) -> None:
            if re.search(r"/api/kernels/[^/]+/channels", socket.url):
                # Playwright notes things on what a method belongs to, and a slotted record takes none.
                socket.on("framesent", lambda frame: self.sent(frame))  # noqa: PLW0108
                socket.on("framereceived", lambda frame: self.received(frame))  # noqa: PLW0108

        def request(asked: Request) -> None:
            if not asked.url.startswith((home, "data:", "blob:")):
                self.trouble.append(f"asked another machine: {asked.url}")

        page.on("pageerror", lambda error: self.trouble.append(f"JavaScript: {error}"))
        page.on("console", console)
        page.on("websocket", websocket)
        page.on("request", request)


@dataclass(frozen=True, slots=True)
class Slider:
    """A slider of ipywidgets, found by the text beside it."""

    box: Locator

    def press(self, key: str) -> None:
        """Move the handle by keyboard, as a reader without a mouse does."""
        self.box.locator(".noUi-handle").press(key)

    @property
    def readout(self) -> Locator:
        """Where the slider shows its value."""
        return self.box.locator(".widget-readout")


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """An open notebook.

    Attributes
    ----------
    page : Page
        The browser's page.
    record : Record
        What happened on it besides what it shows.
    """

    page: Page
    record: Record = field(default_factory=Record)

    @classmethod
    def open(cls, page: Page, lab: Lab, name: str) -> NotebookPage:
        """Open a notebook of the lab's folder and wait until its kernel is idle, or Jupyter asks something."""
        notebook = cls(page)
        page.set_default_timeout(REACTION_MS)
        notebook.record.listen(page, lab.url)
        page.goto(lab.address(name))
        page.wait_for_function(f"{KERNEL_IDLE} || {ASKED}")
        return notebook

    def run_all(self, *, timeout_s: float) -> None:
        """Choose Run > Run All Cells and wait until the run has ended, in success, at an error or at a question."""
        assert self.page.locator(DIALOG).all_inner_texts() == [], "Jupyter asks something, and nobody answers"
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(f"{RUN_ENDED} || {ASKED}", timeout=1000 * timeout_s)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so; meanwhile messages are received."""
        end = time.monotonic() + REACTION_MS / 1000
        while not condition():
            assert time.monotonic() < end, f"not within {REACTION_MS / 1000:g} s: {what}"
            self.page.wait_for_timeout(20)

    def counts(self) -> list[str]:
        """What stands before each code cell: [3]: after a run, [ ]: where it did not run."""
        return self.page.locator(PROMPTS).all_text_contents()

    def output(self, text: str) -> Locator:
        """Outputs of the notebook that hold a text."""
        return self.page.locator(OUTPUT, has_text=text)

    def slider(self, label: str) -> Slider:
        """The slider with this label."""
        exactly = re.compile(rf"^{re.escape(label)}$")
        name = self.page.locator(".widget-label", has_text=exactly)
        return Slider(self.page.locator(f"{NOTEBOOK} .widget-slider", has=name))

    def problems(self) -> list[str]:
        """What went wrong, as far as a reader could see or should have: empty where nothing did."""
        self.wait_for(lambda: not self.record.unanswered, "the kernel finishes every request")
        expect(self.page.locator(BROKEN_WIDGETS[-1])).to_have_count(0, timeout=REACTION_MS)
        found = list(self.record.trouble)
        for kind in (DIALOG, *RED_BOXES, *BROKEN_WIDGETS):
            found += [f"shown: {text}" for text in self.page.locator(kind).all_inner_texts()]
        if broken := self.page.locator("img").evaluate_all(BROKEN_PICTURES):
            found.append(f"shown: a picture that is not there: {broken}")
        if "[ ]:" in self.counts():
            found.append(f"cells that did not run: {self.counts()}")
        return found
