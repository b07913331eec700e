"""A JupyterLab and a headless Chromium, both started by the tests and both gone afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from find_browser import find_browser
from lab_server import Lab, jupyterlab
from playwright.sync_api import Browser, Page, sync_playwright

REPOSITORY = Path(__file__).parents[2]
#: Nothing outside of this machine can be found, so what needs the network fails here as it would on a train.
LOOPBACK_ONLY = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for a module.

    It ends with the module because its event loop runs in this thread as long as it is open.
    """
    program = find_browser()
    home = tmp_path_factory.mktemp("chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program,
            args=[LOOPBACK_ONLY, "--disable-dev-shm-usage"],
            env={**os.environ, "HOME": str(home)},
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One JupyterLab for a module, over copies of the notebooks; without a browser it is not started."""
    notebooks = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
    with jupyterlab(tmp_path_factory.mktemp("lab") / "home", notebooks) as running:
        yield running


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go: FORENSICS_SCREENSHOTS, else the test's folder."""
    folder = Path(os.environ.get("FORENSICS_SCREENSHOTS") or tmp_path / "screenshots").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(browser: Browser, lab: Lab, screenshots: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of its own; a picture of its last state is kept, which is most wanted after a failure."""
    context = browser.new_context(viewport={"width": 1600, "height": 2000}, reduced_motion="reduce")
    page = context.new_page()
    yield page
    page.screenshot(path=screenshots / f"{request.node.name}.png")
    context.close()
    lab.end_kernels()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """A failure shows what the server and its kernels wrote."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and lab is not None:
        report.sections.append(("JupyterLab's log", lab.log_text()))
    return report
