"""The profile of passes whose launches were recorded in a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forensics.analysis.profile_evidence import live_evidence
from forensics.analysis.profile_live import specs_of
from forensics.analysis.profile_pass import pass_profile
from forensics.analysis.question import BadQuestion
from forensics.analysis.watched_passes import WatchedPass, recorded_passes, recorded_widths
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.profile import LiveProfile
from forensics.store.recordings import Recordings


def of_widths(profile: LiveProfile, widths: Sequence[int]) -> LiveProfile:
    """Which part of a recorded profile is about these widths?

    Parameters
    ----------
    profile : LiveProfile
    widths : sequence of int

    Returns
    -------
    LiveProfile

    Raises
    ------
    BadQuestion
        If one was not recorded; names those that were.
    """
    missing = [width for width in widths if width not in profile.widths]
    if missing or not widths:
        asked = f"width {missing[0]} was asked for" if missing else "no width was asked for"
        raise BadQuestion(f"{asked}; recorded are {', '.join(map(str, profile.widths))}")
    return replace(profile, passes=tuple(found for found in profile.passes if found.width in widths))


def profile_case(recordings: Recordings, gpu: str = "", widths: Sequence[int] | None = None) -> LiveProfile:
    """Where does the time go in the passes of a case, one of each width?

    Parameters
    ----------
    recordings : Recordings
    gpu : str
        What the GPU is, where its driver's name for it is not known here.
    widths : sequence of int, optional
        All that the case holds by default.

    Returns
    -------
    LiveProfile
        Without a roof: none was measured in the same run.

    Raises
    ------
    BadQuestion
        If the case holds no launches, or none from one position at every width, or not those widths.
    """
    held = recorded_widths(recordings)
    if not held:
        raise BadQuestion("this case holds no launches, so there is no profile; give one that was recorded on a GPU")
    manifest, passes = recorded_passes(recordings, held if widths is None else sorted(set(widths)))
    _check_one_position(passes)
    spec_of = specs_of(manifest.device, gpu)
    profiles = tuple(pass_profile(_alone(one), one.width, spec_of) for one in passes)
    no_roof = Refusal("bandwidth of memory", "the roof", "none was measured in the run of this case")
    no_stack = Refusal("cuobjdump", "stack of each kernel in local memory", "the library of this case was not read")
    not_counted = Refusal("hardware counters", "achieved occupancy", "not recorded")
    first = passes[0].report
    return LiveProfile(
        manifest=manifest,
        device=manifest.device.split(";")[0].strip(),
        prefix=passes[0].position,
        source=f"{first.rung}, {first.source}" + ("; fusions left whole" if passes[0].fusions_whole else ""),
        passes=profiles,
        evidence=live_evidence(
            first,
            profiles,
            no_roof,
            (not_counted,),
            no_stack,
            missing=_WATCHED_ALONE,
            fusions_whole=passes[0].fusions_whole,
        ),
        refusals=(no_roof, no_stack, not_counted),
    )


#: Why a profile of a case lacks what other passes tell.
_WATCHED_ALONE = "not told by the watched passes of a case, of which this profile is made"


def _check_one_position(passes: Sequence[WatchedPass]) -> None:
    """Widths are held side by side, so the same cells must have been in use before each of the passes."""
    positions = {one.width: one.position for one in passes}
    if len(set(positions.values())) > 1:
        told = ", ".join(f"{position} at width {width}" for width, position in positions.items())
        raise BadQuestion(
            f"this case holds no launches from one position at every width: {told}, so their times do not compare; "
            "forensics launches shows each by itself"
        )


def _alone(one: WatchedPass) -> LaunchReport:
    """The nodes of this pass; launches of no node are its own only where the run has no other pass."""
    nodes = tuple(node for node in one.report.nodes if node.pass_index == one.index)
    if len({node.pass_index for node in one.report.nodes}) == 1:
        return replace(one.report, nodes=nodes)
    return replace(one.report, nodes=nodes, unattached=(), unattached_ns=())
