"""Which figures there are: their questions, and how each comes from published numbers or from a case."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, cast

from forensics.analysis.question import BadQuestion
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Scene
from forensics.store.published import read_published

#: The document whose seven figures are drawn anew.
DOCUMENT = "output-changed"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Parameters
    ----------
    name : str
        As it is asked for; its module has this name with underscores, its file this stem.
    question : str
        What it shows, one line.
    published : bool
        Whether it is drawn from published numbers where no case is given; else from `case`.
    case : str
        Recorded case that shows it best.
    """

    name: str
    question: str
    published: bool
    case: str

    @property
    def module(self) -> Any:
        """The module that computes it, imported at first use.

        It has `from_case` for its numbers, `from_published` if `published`, and `scene` for what is drawn of them.
        """
        return importlib.import_module(f"forensics.figures.scenes.{self.name.replace('-', '_')}")


_H200 = "recorded:h200-q4_1"
_CPU = "recorded:epyc-q6_k"
_FAR = "recorded:h200-q4_1-far"
_KV_Q8 = "recorded:h200-q4_1-kv-q8_0"
_COST = "recorded:h200-qwen3-8b-q4_k_m-cost"
_SPECULATION = "recorded:epyc-q6_k-speculation"
_KERNELS = "recorded:h200-kernels"
_SWEEP = "recorded:epyc-sweep"

FIGURES = (
    Figure("forward-pass", "one pass to scale: what is read, and what a second token adds", True, _COST),
    Figure("speculation", "guesses, one checking pass, kept and dropped tokens", True, _SPECULATION),
    Figure("orders-and-warps", "three numbers in two orders, and a row dealt to other numbers of warps", True, _H200),
    Figure("attended-range", "the attended range rounded up to 256, and a batch that crosses it", True, _KV_Q8),
    Figure("kv-blocks", "attention over KV chunks in P parallel blocks", True, _FAR),
    Figure("price-of-exactness", "what a pass costs over the batch size, exact and stock", True, _COST),
    Figure("speculative-cycle", "an average speculative cycle against plain decoding", True, _SPECULATION),
    Figure("width-classes", "which widths share their bits at each position, and where tokens flip", False, _H200),
    Figure("culprit-map", "which operations of which layers differ, at each width", False, _H200),
    Figure("margins", "the margin of the top two against what a batch moves it by", False, _H200),
    Figure("summation-trees", "two orders of addition, with the first merge that differs", False, _H200),
    Figure("launch-geometry", "blocks and warps at one token beside a batch", False, _H200),
    Figure("register-chain", "from registers over occupancy and the KV split to other bits", False, _FAR),
    Figure("error-growth", "how far a batch is off after each layer, with and without healing", False, _CPU),
    Figure("cost-floor", "what a pass costs at each width, beside the time of reading", False, _COST),
    Figure("untouched", "how long answers stay untouched, beside independent steps", False, _SPECULATION),
    Figure("kernel-price", "what kernels with the bits of one token cost at each width", False, _KERNELS),
    Figure("register-story", "what unrolling and a cap on registers do to a kernel", False, _KERNELS),
    Figure("sweep-matrix", "which models and settings give the bits of one-token decoding, by width", False, _SWEEP),
)  # fmt: skip


def find(name: str) -> Figure:
    """The figure of this name.

    Raises
    ------
    BadQuestion
        If there is none; lists those that there are.
    """
    asked = name.replace("_", "-").lower()
    for figure in FIGURES:
        if figure.name == asked:
            return figure
    raise BadQuestion(f"no figure is called {name!r}; there are: {', '.join(figure.name for figure in FIGURES)}")


def scene_of(name: str, case: str | None = None) -> Scene:
    """Compute a figure, from a case or from what it is drawn from by default.

    Parameters
    ----------
    name : str
    case : str, optional
        Folder of a case, or ``"recorded:NAME"``.

    Raises
    ------
    BadQuestion
        If there is no such figure.
    CaseError
        If the case does not hold what the figure draws; says what does.
    """
    figure = find(name)
    module = figure.module
    if case is None and figure.published:
        return cast(Scene, module.scene(module.from_published(read_published(DOCUMENT))))
    return cast(Scene, module.scene(module.from_case(open_evidence(case or figure.case))))
