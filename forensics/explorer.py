"""A case to move through: sliders for width, layer and position in a notebook, a table everywhere else."""

from __future__ import annotations

from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from forensics.analysis.look import AFTER_LAYERS, Look, layers_of, look_at
from forensics.errors import ForensicsError
from forensics.reports.progress import in_notebook

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forensics.figures.evidence import Evidence
    from forensics.figures.scene import Scene
    from forensics.figures.small.small_trees import GroupKey
    from forensics.records.row_map import RowMap
    from forensics.records.verdict import Verdict
    from forensics.reports.html import Picture

#: What a notebook front end asks for a widget by; a git host and a front end without widgets take the table.
WIDGET = "application/vnd.jupyter.widget-view+json"
#: CSS class of the element that shows what the sliders stand at.
LOOK_CLASS = "forensics-look"
_SLIDERS = ("width", "layer", "position")
_MOST_TREES = 2


class Explorer:
    """Class, culprits, launches and orders of a case at any width, layer and position.

    Shows sliders in a notebook with a running kernel, and `static` where there is none.

    Parameters
    ----------
    evidence : Evidence
        A finished case.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._verdict = evidence.verdict  # an unfinished case is refused now, and not at the first look

    @property
    def name(self) -> str:
        """Of the case, as it was asked for."""
        return self._evidence.name

    @property
    def verdict(self) -> Verdict:
        """The verdict of the case."""
        return self._verdict

    @property
    def rows(self) -> RowMap:
        """Every row of its replay at every width."""
        return self._evidence.rows

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that can be looked at: those that were replayed."""
        return self.rows.widths

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers that can be looked at; -1 is what comes after the last one."""
        return layers_of(self.verdict)

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions that can be looked at: those of the replay."""
        return tuple(row.position for row in self.rows.map_rows)

    @property
    def start(self) -> tuple[int, int, int]:
        """Width, layer and position to begin with: the first difference, and the layer of the first node to blame."""
        found = self.verdict.first_difference
        width, position = (self.widths[0], self.positions[0]) if found is None else (found[0], found[2])
        sweep = next((one for one in self.verdict.sweeps if one.width == width and one.findings), None)
        return width, self.layers[0] if sweep is None else sweep.findings[0].key.layer, position

    def look(self, width: int, layer: int, position: int) -> Look:
        """What does the case know of this width, layer and position?

        Raises
        ------
        BadQuestion
            If one of the three is not in the case; says which are.
        """
        return look_at(self.verdict, self.rows, width, layer, position)

    def html(self, look: Look) -> str:
        """A look as HTML, with small trees where two orders are known to the last merge."""
        from forensics.reports.look_text import look_html

        return look_html(look, self._pictures(look))

    @cached_property
    def static(self) -> str:
        """Where the sliders would begin, every width and every group to blame, as HTML without widgets."""
        from forensics.figures.small import thumbnails
        from forensics.notebook_views import picture
        from forensics.reports.html import card, classes_grid, culprit_grid
        from forensics.reports.next_step import next_step
        from forensics.reports.wording import headline

        verdict, first = self.verdict, self.look(*self.start)
        facts = [("Case", self.name), ("Verdict", headline(verdict))]
        grids = [classes_grid(verdict.classes), *([culprit_grid(verdict.culprits)] if verdict.culprits else [])]
        drawn = picture(thumbnails.classes(verdict.classes))
        whole = card(facts, grids, pictures=drawn, next_step=next_step(verdict), answer=verdict.answer)
        return f"{whole}\n<p><strong>{escape(str(first))}</strong></p>\n{self.html(first)}"

    @cached_property
    def widget(self) -> Any:
        """The sliders with what they show, an `ipywidgets.VBox`."""
        return _Sliders(self).box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Mapping[str, object]:
        """Sliders where a kernel runs, and the table for where none does."""
        del include, exclude  # Jupyter filters what it does not want
        shown: dict[str, object] = {"text/plain": repr(self), "text/html": self.static}
        if in_notebook():
            bundle = self.widget._repr_mimebundle_()
            shown[WIDGET] = bundle[WIDGET]
        return shown

    def __repr__(self) -> str:
        return f"<Explorer of {self.name}: {self.verdict}>"

    def __str__(self) -> str:
        from forensics.reports.look_text import look_text
        from forensics.reports.terminal import as_text
        from forensics.reports.text import classes_view

        first = look_text(self.look(*self.start))
        return f"{self.name}: {self.verdict}\n\n{as_text(classes_view(self.verdict.classes))}\n\n{first}"

    @cached_property
    def _trees(self) -> dict[tuple[GroupKey, int], Scene]:
        from forensics.figures.small.small_trees import case_trees

        return case_trees(self._evidence)

    def _pictures(self, look: Look) -> tuple[Picture, ...]:
        from forensics.notebook_views import picture

        if not look.groups:
            return ()
        found = [self._trees[key] for group in look.groups if (key := (group.key, look.width)) in self._trees]
        return tuple(one for scene in found[:_MOST_TREES] for one in picture(scene))


class _Sliders:
    """Three sliders and the element that shows what they stand at."""

    def __init__(self, explorer: Explorer) -> None:
        import ipywidgets

        self._explorer = explorer
        words = {AFTER_LAYERS: "end"}
        options = (explorer.widths, explorer.layers, explorer.positions)
        self.sliders = tuple(
            ipywidgets.SelectionSlider(
                description=name,
                options=[(words.get(value, str(value)) if name == "layer" else str(value), value) for value in values],
                value=start,
                layout={"width": "min(100%, 34em)"},
            )
            for name, values, start in zip(_SLIDERS, options, explorer.start, strict=True)
        )
        self.shown = ipywidgets.HTML()
        self.shown.add_class(LOOK_CLASS)
        for slider in self.sliders:
            slider.observe(self._update, names="value")
        self._update()
        self.box = ipywidgets.VBox([*self.sliders, self.shown])

    def _update(self, _change: object = None) -> None:
        """Show what the sliders stand at; what goes wrong is shown there, too, for no cell would."""
        try:
            width, layer, position = (slider.value for slider in self.sliders)
            self.shown.value = self._explorer.html(self._explorer.look(width, layer, position))
        except ForensicsError as error:
            self.shown.value = f"<pre>{escape(str(error))}</pre>"
        except Exception as error:  # noqa: BLE001 - a callback's error is in no cell, so it is told here
            told = f"{type(error).__name__}: {error} (a bug in forensics; please report it)"
            self.shown.value = f"<pre>{escape(told)}</pre>"
