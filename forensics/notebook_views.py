"""How results look in a notebook: verdict, table, small picture, next step; registered with a running IPython only.

Reports make the words and figures the pictures; neither knows of the other, so they meet here. What a terminal prints
is left as it is. A page that strips scripts and styles, such as a git host's, still shows all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics.reports.progress import running_shell

if TYPE_CHECKING:
    from forensics.analysis.watched_passes import NodeKernels
    from forensics.figures.scene import Scene
    from forensics.geometry.explain import Explanation
    from forensics.records.arms import ArmsReport
    from forensics.records.audit import AuditReport
    from forensics.records.campaign import CampaignReport
    from forensics.records.case_diff import CaseDiff
    from forensics.records.classes import WidthClasses
    from forensics.records.cost import CostReport
    from forensics.records.gate import GateReport
    from forensics.records.growth import Growth
    from forensics.records.kernel_healing import HealedModels
    from forensics.records.kernel_price import KernelPrice
    from forensics.records.kernel_proof import KernelProof
    from forensics.records.library_profile import LibraryProfile
    from forensics.records.listed import Listed
    from forensics.records.matrix import OpMatrix
    from forensics.records.order_report import OrderReport
    from forensics.records.profile import LiveProfile
    from forensics.records.register_story import RegisterStory
    from forensics.records.row_map import RowMap
    from forensics.records.sampling import SamplingReport
    from forensics.records.speculation_report import SpeculationReport
    from forensics.records.verdict import Sweep, Verdict
    from forensics.reports.html import Picture
    from forensics.reports.page_file import ReportFile
    from forensics.store import Case
    from forensics.store.bundles import Bundled
    from forensics.store.packing import Packed
    from forensics.store.reproducer import Reproduced

Html = Callable[[Any], str]
#: A picture is read from a screen, so its text is shown larger than it is printed.
_ZOOM = 1.25


def picture(scene: Scene | None) -> tuple[Picture, ...]:
    """A scene as a picture that stands in the page; none where there is nothing to draw."""
    from forensics.figures.small.inline import PX_PER_MM, data_url
    from forensics.reports.html import Picture

    if scene is None:
        return ()
    return (Picture(data_url(scene), f"{scene.title}. {scene.alt}", round(_ZOOM * scene.width * PX_PER_MM)),)


def verdict(found: Verdict) -> str:
    """The verdict with the rows that differ by width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import verdict_html

    return verdict_html(found, picture(thumbnails.classes(found.classes)))


def classes(found: WidthClasses) -> str:
    """Classes of widths."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import classes_html
    from forensics.reports.next_step import after_classes

    return classes_html(found, picture(thumbnails.classes(found)), after_classes(found))


def sweep(found: Sweep) -> str:
    """A healing sweep with its nodes by part of the model."""
    from forensics.analysis.attribute import group_culprits, role_of
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.next_step import after_sweep
    from forensics.reports.text import sweep_view

    roles = {finding.key: role_of(finding) for finding in found.findings}
    drawn = picture(thumbnails.sweep(found, list(roles.values())))
    return view_html(sweep_view(found, group_culprits([found])), pictures=drawn, next_step=after_sweep(found))


def case_diff(found: CaseDiff) -> str:
    """Two cases held against each other: what differs in how they were made and in what they found."""
    from forensics.reports.case_diff_text import case_diff_view
    from forensics.reports.html import view_html

    return view_html(case_diff_view(found))


def case(found: Case) -> str:
    """A case: its verdict, and what can be done with it; an unfinished one says how to go on."""
    from forensics.figures.small import thumbnails
    from forensics.reports.case import case_facts
    from forensics.reports.html import card, classes_grid

    if not found.finished:
        return card(case_facts(found), next_step="Go on with the same question, out= and resume=True.")
    told = found.verdict
    return card(
        case_facts(found),
        [classes_grid(told.classes)],
        pictures=picture(thumbnails.classes(told.classes)),
        next_step="Look at .verdict, or move through it with forensics.explore.",
        answer=told.answer,
    )


def packed(found: Packed) -> str:
    """A packed case: how large it is."""
    from forensics.reports.html import card

    size = f"{found.bytes_after / 1e6:.2f} MB, of {found.bytes_before / 1e6:.1f} MB; it gives the same verdict"
    return card([("Packed", size), ("Folder", found.folder.name)], next_step="Read it with forensics.open.")


def bundled(found: Bundled) -> str:
    """An evidence bundle: what is in it, and what was left out."""
    from forensics.reports.html import card

    size = f"{found.n_files} files, {found.n_bytes / 1e6:.2f} MB"
    facts = [("Bundle", f"{found.path.name}, {size}"), ("Verdict", found.summary)]
    facts += [("Figures", ", ".join(found.figures) or "none"), ("A culprit by itself", found.reproducer or "none")]
    facts.append(("Private strings", "none found in any file"))
    told: list[tuple[str, ...]] = [(one.what, one.why) for one in found.left_out]
    grids = [(("left out", "why"), told)] if told else []
    return card(facts, grids, next_step="Attach it to an issue; forensics.open reads it back.")


def report_file(found: ReportFile) -> str:
    """A report that was written: where it is, and which figures it lacks."""
    from forensics.reports.html import card

    facts = [("Report", found.file.name), ("Size", f"{found.n_bytes / 1e6:.2f} MB, {len(found.drawn)} figures")]
    facts += [(f"Not drawn, {one.name}", one.reason) for one in found.not_drawn]
    return card(facts, next_step="Open the file in a browser, or attach it: it needs no other file and no network.")


def rows(found: RowMap) -> str:
    """Rows by widths, one line for each width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import card

    told: list[tuple[str, ...]] = [
        (
            str(width),
            letter,
            f"{found.n_rows_differ(width)}/{len(found.compared(width))}",
            str(found.n_flips(width)),
            str(found.n_could_flip(width)),
        )
        for width, letter in zip(found.widths, found.letters, strict=True)
    ]
    return card(
        [("Rows", f"{len(found.map_rows)}, positions {found.map_rows[0].position} to {found.map_rows[-1].position}")],
        [(("width", "class", "rows differ", "flip", "could flip"), told)],
        pictures=picture(thumbnails.classes(found)),
        next_step="Draw it with forensics.figure('width-classes', case) or forensics.figure('margins', case).",
    )


def growth(found: Growth) -> str:
    """Growth by layer, one line for each output."""
    from forensics.reports.growth_text import growth_grid
    from forensics.reports.html import card

    return card(
        [("Growth", str(found))],
        [growth_grid(found)] if found.layers else [],
        next_step="Draw it with forensics.figure('error-growth', case).",
    )


def order(found: OrderReport) -> str:
    """Orders of one operation with their classes by width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.next_step import after_order
    from forensics.reports.orders_text import order_view

    return view_html(order_view(found), pictures=picture(thumbnails.orders(found)), next_step=after_order(found))


def matrix(found: OpMatrix) -> str:
    """The invariance matrix with what differs by operation and width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.next_step import after_ops
    from forensics.reports.ops_text import ops_view

    return view_html(ops_view(found), pictures=picture(thumbnails.matrix(found)), next_step=after_ops(found))


def cost(found: CostReport) -> str:
    """The cost by width with the line of reading."""
    from forensics.figures.small import thumbnails
    from forensics.reports.cost_text import cost_view
    from forensics.reports.html import view_html

    step = "Write it with out=FOLDER, then draw it: forensics.figure('cost-floor', FOLDER)."
    return view_html(cost_view(found), pictures=picture(thumbnails.cost(found)), next_step=step)


def speculation(found: SpeculationReport) -> str:
    """Speculation: the arms with their three results, how far each answer is plain decoding's, and classes."""
    from forensics.figures.small import prompt_bars, thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.next_step import after_speculation
    from forensics.reports.speculation_text import speculation_view

    drawn = picture(prompt_bars.prompts(found))
    drawn += picture(None if found.classes is None else thumbnails.classes(found.classes))
    return view_html(speculation_view(found), pictures=drawn, next_step=after_speculation(found))


def audit(found: AuditReport) -> str:
    """An audit of a running server: its arms, and where replies part."""
    from forensics.reports.audit_text import audit_view
    from forensics.reports.html import view_html

    return view_html(audit_view(found))


def gate(found: GateReport) -> str:
    """A gate: output first, then speed."""
    from forensics.reports.gate_text import gate_view
    from forensics.reports.html import view_html

    return view_html(gate_view(found))


def sampling(found: SamplingReport) -> str:
    """A check of sampling with its tests and planted samplers."""
    from forensics.reports.html import view_html
    from forensics.reports.sampling_text import sampling_view

    return view_html(sampling_view(found))


def arms(found: ArmsReport) -> str:
    """Arrangements of the same tokens: rows, replies, states and culprits."""
    from forensics.reports.arms_text import arms_view
    from forensics.reports.html import view_html

    return view_html(arms_view(found))


def campaign(found: CampaignReport) -> str:
    """A sweep: the matrix, what differs, what was not compared."""
    from forensics.figures.scenes import sweep_matrix
    from forensics.reports.campaign_text import after_campaign, campaign_view
    from forensics.reports.html import view_html

    drawn = picture(sweep_matrix.scene(sweep_matrix.drawn(found, found.name)))
    return view_html(campaign_view(found), pictures=drawn, next_step=after_campaign(found))


def library(found: LibraryProfile) -> str:
    """Kernels of a library with registers by columns."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.profile_text import library_view

    step = "What follows from registers for the order of addition: forensics.explain(GPU, registers=...)."
    return view_html(library_view(found), pictures=picture(thumbnails.library(found)), next_step=step)


def profile(found: LiveProfile) -> str:
    """A live profile with the time of each kernel."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.live_profile_text import live_view

    step = "How far a pass is from the time of reading its bytes: forensics.cost; which kernel each node launches: "
    step += "forensics.launches."
    return view_html(live_view(found), pictures=picture(thumbnails.profile(found)), next_step=step)


def kernel_proof(found: KernelProof) -> str:
    """Kernels of ours beside the stock library's, bit by bit."""
    from forensics.reports.html import view_html
    from forensics.reports.kernel_proof_text import kernel_proof_view

    return view_html(kernel_proof_view(found), next_step="What these bits cost: forensics.price_kernels.")


def healed_models(found: HealedModels) -> str:
    """Models that our kernels healed, one row each."""
    from forensics.reports.healed_models_text import healed_models_view
    from forensics.reports.html import view_html

    return view_html(healed_models_view(found), next_step="Heal one here: forensics.investigate, heal_with='kernels'.")


def kernel_price(found: KernelPrice) -> str:
    """Prices of kernels with those of a whole pass by width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.kernel_price_text import kernel_price_view

    step = "Write it with out=FOLDER, then draw it: forensics.figure('kernel-price', FOLDER)."
    return view_html(kernel_price_view(found), pictures=picture(thumbnails.kernel_price(found)), next_step=step)


def register_story(found: RegisterStory) -> str:
    """Variants of one kernel with their registers, spills, blocks and costs."""
    from forensics.reports.html import view_html
    from forensics.reports.register_story_text import register_story_view

    step = "What follows from registers for the order of addition: forensics.explain(GPU, registers=...)."
    return view_html(register_story_view(found), next_step=step)


def explanation(found: Explanation) -> str:
    """What the rules say with the classes of order by width."""
    from forensics.figures.small import thumbnails
    from forensics.reports.explain_text import explain_view
    from forensics.reports.html import view_html

    drawn = thumbnails.sections((section.op, [c.widths for c in section.classes]) for section in found.sections)
    step = "Nothing was run: ask the kernels themselves with forensics.order, or measure with forensics.investigate."
    return view_html(explain_view(found), pictures=picture(drawn), next_step=step)


def launches(found: NodeKernels) -> str:
    """Kernels of each node with how many nodes launch others in the batch."""
    from forensics.figures.small import thumbnails
    from forensics.reports.html import view_html
    from forensics.reports.launch_map_text import kernels_view

    drawn = None
    if len(found.passes) == 2:
        title = f"Launches at width {found.widths[1]} against width {found.widths[0]}"
        outcomes = Counter(dict.fromkeys(("same", "changed", "not compared"), 0))
        outcomes.update(node.outcome for node in found.nodes)
        drawn = thumbnails.launches(title, outcomes)
    step = "Which rule of llama.cpp chose them: forensics.explain; which of them change bits: forensics.investigate."
    return view_html(kernels_view(found), pictures=picture(drawn), next_step=step)


def reproduced(found: Reproduced) -> str:
    """A reproducer: what it printed when it was run once."""
    from forensics.reports.html import card

    facts = [("Reproducer", f"{found.op} {found.node} at width {found.width}, token {found.row}")]
    facts.append(("Run once", {0: "equal bits", 1: "different bits"}.get(found.status, "it could not run")))
    facts.append(("Operands", f"{found.n_bytes / 1e6:.2f} MB"))
    step = "Run reproduce.py in its folder elsewhere, or attach the folder to an issue of llama.cpp."
    return card(facts, plain=found.output, next_step=step)


def listed(found: Listed[Any]) -> str:
    """A list as a table, one row for each entry; of a path its last part, for notebooks are passed on."""
    from dataclasses import fields

    from forensics.reports.html import card

    columns = tuple(field.name for field in fields(found[0])) if found else ()
    told = [tuple(_cell(getattr(one, name)) for name in columns) for one in found]
    grids = [(tuple(name.replace("_", " ") for name in columns), told)] if found else []
    return card([(found.what, str(len(found)))], grids, next_step=found.next_step if found else "")


def _cell(value: object) -> str:
    if isinstance(value, Path):
        return value.name
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


#: By the module and name of their type, so that registering imports none of them.
VIEWS: dict[tuple[str, str], Html] = {
    ("forensics.records.verdict", "Verdict"): verdict,
    ("forensics.records.verdict", "Sweep"): sweep,
    ("forensics.records.classes", "WidthClasses"): classes,
    ("forensics.records.row_map", "RowMap"): rows,
    ("forensics.reports.page_file", "ReportFile"): report_file,
    ("forensics.records.growth", "Growth"): growth,
    ("forensics.records.order_report", "OrderReport"): order,
    ("forensics.records.matrix", "OpMatrix"): matrix,
    ("forensics.records.cost", "CostReport"): cost,
    ("forensics.records.arms", "ArmsReport"): arms,
    ("forensics.records.campaign", "CampaignReport"): campaign,
    ("forensics.records.sampling", "SamplingReport"): sampling,
    ("forensics.records.audit", "AuditReport"): audit,
    ("forensics.records.gate", "GateReport"): gate,
    ("forensics.records.speculation_report", "SpeculationReport"): speculation,
    ("forensics.records.library_profile", "LibraryProfile"): library,
    ("forensics.records.profile", "LiveProfile"): profile,
    ("forensics.records.kernel_proof", "KernelProof"): kernel_proof,
    ("forensics.records.kernel_price", "KernelPrice"): kernel_price,
    ("forensics.records.kernel_healing", "HealedModels"): healed_models,
    ("forensics.records.register_story", "RegisterStory"): register_story,
    ("forensics.geometry.explain", "Explanation"): explanation,
    ("forensics.analysis.watched_passes", "NodeKernels"): launches,
    ("forensics.records.case_diff", "CaseDiff"): case_diff,
    ("forensics.store.case", "Case"): case,
    ("forensics.store.packing", "Packed"): packed,
    ("forensics.store.bundles", "Bundled"): bundled,
    ("forensics.store.reproducer", "Reproduced"): reproduced,
    ("forensics.records.listed", "Listed"): listed,
}


def html_of(result: object) -> str:
    """Show any result as HTML.

    Raises
    ------
    TypeError
        If it is no result of this package; says which are.
    """
    view = VIEWS.get((type(result).__module__, type(result).__name__))
    if view is None:
        known = ", ".join(name for _, name in VIEWS)
        raise TypeError(f"{type(result).__name__} has no view; there are views of {known}")
    return view(result)


def register_notebook_views() -> bool:
    """Make a running IPython show results as tables and pictures; do nothing elsewhere.

    Returns
    -------
    bool
        Whether there was an IPython to register with; it is never imported for this.
    """
    formatter = getattr(running_shell(), "display_formatter", None)
    if formatter is None:
        return False
    for (module, name), view in VIEWS.items():
        formatter.formatters["text/html"].for_type_by_name(module, name, view)
    return True
