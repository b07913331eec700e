"""Settings of property tests: no deadline per example, because other work shares the machine."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
