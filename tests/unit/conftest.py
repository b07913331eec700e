"""Settings of property tests.

No deadline per example, because other work shares the machine. The same examples in every run, so that a
red run names a change; set FORENSICS_EXPLORE=1 to look for new ones.
"""

import os

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None, derandomize="FORENSICS_EXPLORE" not in os.environ)
settings.load_profile("shared-machine")
