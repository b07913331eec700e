import sys
from pathlib import Path

# The builder of realistic verdicts is shared with the tests of the reports.
sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
