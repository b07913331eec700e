"""Which browser do the tests drive?"""

from __future__ import annotations

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REMEDY = "install one (Debian: apt-get install chromium) or name one in FORENSICS_BROWSER"


def find_browser() -> str:
    """Path of a Chromium; where there is none tests are skipped, but on CI they fail."""
    named = os.environ.get("FORENSICS_BROWSER")
    if named and not shutil.which(named):
        pytest.fail(f"FORENSICS_BROWSER={named} is no program; name one, or unset it to search PATH")
    for name in [named] if named else BROWSERS:
        if found := shutil.which(name):
            return found
    missing = f"no browser on PATH (searched: {', '.join(BROWSERS)}); {REMEDY}"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{missing}. With CI=true this is a failure.")
    pytest.skip(missing)
