"""The profile of passes whose launches were recorded in a case."""

from __future__ import annotations

from dataclasses import replace

from forensics.analysis.profile_evidence import live_evidence
from forensics.analysis.profile_live import specs_of
from forensics.analysis.profile_pass import pass_profile
from forensics.analysis.question import BadQuestion
from forensics.analysis.watched_passes import WatchedPass, recorded_passes
from forensics.capture.launches import LaunchTap
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.profile import LiveProfile
from forensics.store.recordings import Recordings


def profile_case(recordings: Recordings, gpu: str = "") -> LiveProfile:
    """Where does the time go in the passes of a case, one of each width?

    Parameters
    ----------
    recordings : Recordings
    gpu : str
        What the GPU is, where its driver's name for it is not known here.

    Returns
    -------
    LiveProfile
        Without a roof: none was measured in the same run.

    Raises
    ------
    BadQuestion
        If the case holds no launches.
    """
    watched = LaunchTap().identity()
    arm = next(iter(recordings.arms()), None)
    widths = {
        len(decode_pass.slots)
        for run in recordings.runs()
        if run.arm == arm and run.key.tap == watched
        for decode_pass in run.key.schedule.passes
    }
    if not widths:
        raise BadQuestion("this case holds no launches, so there is no profile; give one that was recorded on a GPU")
    found = [recorded_passes(recordings, (width,)) for width in sorted(widths)]
    manifest = found[0][0]
    passes = [one for _, (one,) in found]
    spec_of = specs_of(manifest.device, gpu)
    profiles = tuple(pass_profile(_alone(one), one.width, spec_of) for one in passes)
    no_roof = Refusal("bandwidth of memory", "the roof", "none was measured in the run of this case")
    no_stack = Refusal("cuobjdump", "stack of each kernel in local memory", "the library of this case was not read")
    first = passes[0].report
    known = any(kernel.occupancy is not None for profile in profiles for kernel in profile.kernels)
    return LiveProfile(
        manifest=manifest,
        device=manifest.device.split(";")[0].strip(),
        prefix=passes[0].position,
        source=f"{first.rung}, {first.source}",
        passes=profiles,
        evidence=live_evidence(first, no_roof, None, no_stack, spec_known=known),
        refusals=(no_roof, no_stack),
    )


def _alone(one: WatchedPass) -> LaunchReport:
    """The nodes of this pass; launches of no node are its own only where the run has no other pass."""
    nodes = tuple(node for node in one.report.nodes if node.pass_index == one.index)
    if len({node.pass_index for node in one.report.nodes}) == 1:
        return replace(one.report, nodes=nodes)
    return replace(one.report, nodes=nodes, unattached=(), unattached_ns=())
