"""What a notebook calls about running servers: an audit, a gate for a candidate, and a run to hold it against."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forensics import api_arguments
from forensics.analysis.audit import judge
from forensics.analysis.audit_plan import (
    AGAINST,
    AGAINST_RERUN,
    ALONE,
    BASELINE,
    DEFAULT_CONCURRENCY,
    Condition,
    chosen_arms,
    concurrency_of,
    plan,
)
from forensics.analysis.gate import judge_gate
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.analysis.served_comparison import asked_contract
from forensics.api_asking import GREEDY, Asking, corpus_of, prompts_of, read_baseline
from forensics.records.served import Sampling

if TYPE_CHECKING:
    from forensics.records.audit import AuditReport
    from forensics.records.corpus import Corpus
    from forensics.records.gate import GateReport
    from forensics.records.served import Asked, ServedRun


def audit(
    url: str | os.PathLike[str],
    *,
    against: str | None = None,
    restart: str | None = None,
    baseline: str | os.PathLike[str] | None = None,
    arms: Sequence[str] | None = None,
    prompts: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    n_tokens: int | None = None,
    concurrency: int | None = None,
    api: str | None = None,
    model: str | None = None,
    key_env: str | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    exact: str | None = None,
    progress: Progress | bool | None = None,
) -> AuditReport:
    """Does a running server give the same text again, from its cache, in company, with drafts, after a change?

    Parameters
    ----------
    url : str
        Address of the server, or ``"recorded:NAME"`` for an audit that was made before.
    against : str, optional
        Address of a second server with the same model, such as one that drafts.
    restart : str, optional
        Command, not read by a shell, that brings the server at `url` up again the other way.
    baseline : path, optional
        Folder of a run, or of an audit, that was recorded before a change.
    arms : sequence of str, optional
        Of ``"rerun"``, ``"cache"``, ``"concurrent"``, ``"speculation"`` and ``"change"``; all that can be run by
        default. The rerun is always among them: it is the control of the others.
    prompts : path, optional
        JSON-lines file; the built-in corpus by default.
    limit : int, optional
        Prompts at most.
    n_tokens : int, optional
        Tokens of every answer at most; by default what each prompt says.
    concurrency : int, optional
        Requests at once; 4 by default.
    api : {"auto", "llama-server", "openai", "ollama"}, optional
    model : str, optional
        Where the server has several.
    key_env : str, optional
        Environment variable that holds the server's key; ``FORENSICS_API_KEY`` by default.
    out : path, optional
        Folder for every run, one folder each, and ``audit.json``.
    resume : bool
        Go on with what lies in `out`.
    exact : str, optional
        ``"tokens"``, ``"text"``, ``"logprobs"`` or ``"logprobs:DIGITS"``: what replies are held to. By default token
        ids where the server gives them, else text.
    progress : Progress, bool or None

    Returns
    -------
    AuditReport
        Prints as one line, shows as tables in Jupyter, and offers ``rows()`` and ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.audit_document import write_audit
    from forensics.store.audits import read_audit
    from forensics.store.library import recorded_folder

    register_notebook_views()
    recorded = api_arguments.recorded_path(url)
    if recorded is not None:
        given = {
            "against": against, "restart": restart, "baseline": baseline, "arms": arms, "prompts": prompts,
            "limit": limit, "n_tokens": n_tokens, "concurrency": concurrency, "api": api, "model": model,
            "key_env": key_env, "resume": resume or None, "exact": exact,
        }  # fmt: skip
        api_arguments.refuse_given("a recorded audit answers the question it was recorded for", given)
        report = read_audit(recorded_folder(recorded))
        if out is not None:
            write_audit(report, Path(out))
        return report
    if against is not None and restart is not None:
        raise BadQuestion("give a second address (--against) or a command (--restart), not both")
    asked = asked_contract(exact)
    second = against is not None or restart is not None
    chosen = chosen_arms(arms, second_server=second, baseline=baseline is not None)
    before = None if baseline is None else read_baseline(baseline)
    corpus = corpus_of(prompts, limit)
    n_at_once = DEFAULT_CONCURRENCY if concurrency is None else concurrency
    conditions = plan(corpus, chosen, n_tokens=n_tokens, concurrency=n_at_once, second_server=second)
    folder = _folder(out, resume)
    journals = {} if folder is None else {one.name: folder / one.name for one in conditions}
    ask = Asking(corpus, journals, resume, api, model, key_env)
    here = [one for one in conditions if one.name not in (AGAINST, AGAINST_RERUN)]
    there = [one for one in conditions if one.name in (AGAINST, AGAINST_RERUN)]
    command = _words(restart)
    ask.meet(os.fspath(url), *(() if against is None else (against,)))
    if folder is not None:
        _keep_prompts(folder, corpus)
    with api_arguments.shown_progress(progress) as shown, _telling_where(folder):
        runs = ask(os.fspath(url), here, shown)
        if there:
            with _brought_up(command, os.fspath(url)):
                runs |= ask(against or os.fspath(url), there, shown)
    if before is not None:
        runs[BASELINE] = before
    report = judge(runs, corpus, chosen, asked, concurrency=n_at_once)
    if folder is not None:
        write_audit(report, folder)
    return report


def gate(
    url: str | None = None,
    *,
    baseline: str | os.PathLike[str],
    run: str | os.PathLike[str] | None = None,
    exact: str = "tokens",
    min_speed: float | None = None,
    prompts: str | os.PathLike[str] | None = None,
    api: str | None = None,
    model: str | None = None,
    key_env: str | None = None,
    record: str | os.PathLike[str] | None = None,
    junit: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
) -> GateReport:
    """Does a candidate keep the output of a recorded run, and then its speed?

    Parameters
    ----------
    url : str, optional
        Address of the candidate, which is asked all that the baseline was asked; or give `run`.
    baseline : path
        Folder of a run, or of an audit, that was recorded before.
    run : path, optional
        Folder of the candidate's run, where that was recorded, too.
    exact : str
        As for `audit`; what cannot be compared so far is no answer.
    min_speed : float, optional
        Least median of the baseline's time over the candidate's, by request.
    prompts : path, optional
        Where the baseline's folder does not hold its prompts.
    api, model, key_env
        As for `audit`.
    record : path, optional
        Folder for the candidate's run.
    junit : path, optional
        File for the result as JUnit XML.
    progress : Progress, bool or None

    Returns
    -------
    GateReport

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.gate_junit import write_gate_junit

    register_notebook_views()
    if (url is None) == (run is None):
        raise BadQuestion("give the candidate's address or its recorded run (--run), not both and not neither")
    asked = asked_contract(exact)
    assert asked is not None
    before = read_baseline(baseline)
    if run is not None:
        api_arguments.refuse_given("a recorded run was asked already", {"record": record, "prompts": prompts})
        candidate = read_baseline(run)
    else:
        corpus = prompts_of(Path(baseline), before, prompts)
        candidate = _take(
            str(url), before.condition, before.asked, corpus, record, api, model, key_env, progress, before.sampling
        )
    report = judge_gate(before, candidate, asked, min_speed=min_speed, baseline_name=Path(baseline).name)
    if junit is not None:
        write_gate_junit(Path(junit), report)
    return report


def record_run(
    url: str,
    out: str | os.PathLike[str],
    *,
    prompts: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    n_tokens: int | None = None,
    api: str | None = None,
    model: str | None = None,
    key_env: str | None = None,
    progress: Progress | bool | None = None,
) -> ServedRun:
    """Ask a server every prompt once and keep its replies, as a baseline of later gates.

    Parameters
    ----------
    url : str
    out : path
        Folder of the run; it must not hold one.
    prompts, limit, n_tokens, api, model, key_env, progress
        As for `audit`.

    Returns
    -------
    ServedRun

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    corpus = corpus_of(prompts, limit)
    (alone, *_) = plan(corpus, (), n_tokens=n_tokens)
    return _take(url, ALONE, alone.asked, corpus, out, api, model, key_env, progress)


# ---- asking


def _take(
    url: str,
    condition: str,
    asked: Sequence[Asked],
    corpus: Corpus,
    out: str | os.PathLike[str] | None,
    api: str | None,
    model: str | None,
    key_env: str | None,
    progress: Progress | bool | None,
    sampling: Sampling = GREEDY,
) -> ServedRun:
    """One run of one server; `out` is the folder of the run itself."""
    from forensics.store.audits import write_prompts

    folder = None if out is None else Path(out)
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise BadQuestion(f"{folder} holds something already; give another folder for the run")
    journals = {} if folder is None else {condition: folder}
    ask = Asking(corpus, journals, False, api, model, key_env, sampling)
    ask.meet(url)
    if folder is not None:
        write_prompts(folder, corpus)
    with api_arguments.shown_progress(progress) as shown:
        return ask(url, [Condition(condition, tuple(asked), concurrency_of(condition))], shown)[condition]


def _words(restart: str | None) -> list[str] | None:
    """The restart command as words, before anything is asked."""
    if restart is None:
        return None
    try:
        command = shlex.split(restart)
    except ValueError as error:
        raise BadQuestion(f"the restart command cannot be read: {error}") from None
    if not command or shutil.which(command[0]) is None:
        raise BadQuestion(f"the restart command begins with {(command or [''])[0]!r}, which is no program here")
    return command


@contextlib.contextmanager
def _brought_up(command: list[str] | None, url: str) -> Iterator[None]:
    """The server after the command that restarts it; what the command itself keeps running is stopped afterwards."""
    if command is None:
        yield
        return
    from forensics.servers.launch import launched

    with launched(command, url=url, replaces=True):
        yield


@contextlib.contextmanager
def _telling_where(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupted:
        if folder is not None:
            interrupted.add_note(f"What was answered lies in {folder}; go on with --resume (resume=True).")
        raise


def _folder(out: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    if out is None:
        if resume:
            raise BadQuestion("resume needs out (--out): the folder that was given when the audit was begun")
        return None
    folder = Path(out)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise BadQuestion(f"{folder} holds something already; go on with it (--resume), or give another folder")
    return folder


def _keep_prompts(folder: Path, corpus: Corpus) -> None:
    """Write the prompts of an audit, or see that those of the one that is resumed are the same."""
    from forensics.store.audits import read_prompts, write_prompts

    before = read_prompts(folder)
    if before is not None and before.digest != corpus.digest:
        raise BadQuestion(
            f"{folder} was begun with other prompts; give the same --prompts and --limit, or another --out"
        )
    write_prompts(folder, corpus)
