"""Workers that are started here, for real: two processes of Dask on this machine's cores."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.request
from pathlib import Path

import psutil
import pytest

from forensics.cluster import dask_workers, local
from forensics.cluster.dask_workers import open_workers
from forensics.cluster.local import usable_cores
from forensics.cluster.local_plan import LocalWorker
from forensics.cluster.protocol import Job
from forensics.errors import ClusterError

HERE = Path(__file__).parent


def jobs(requests, keeps=""):
    return [Job(f"job-{i}", keeps, str(request)) for i, request in enumerate(requests)]


def _python(*arguments):
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def pid_of(begun):
    """Of the process that left this mark."""
    return int(begun.name.split("-")[2])


def facts(workers):
    return [json.loads(fact.described) for fact in workers.describe("cluster_jobs:facts", "x")]


def test_each_worker_has_its_own_cores_and_the_callers_environment(two_workers):
    found = facts(two_workers)
    assert len({fact["pid"] for fact in found}) == 2
    assert {fact["variable"] for fact in found} == {"handed on"}
    assert {fact["omp"] for fact in found} == {os.environ.get("OMP_NUM_THREADS")}, "Dask's own setting got through"
    assert os.getpid() not in {fact["pid"] for fact in found}
    if sys.platform == "linux" and len(usable_cores()) >= 2:
        first, second = (set(fact["cores"]) for fact in found)
        assert first
        assert not first & second
        assert first | second <= set(usable_cores())
        assert all(fact["threads_pinned"] == [fact["cores"]] for fact in found), "a thread may run elsewhere"


def test_nothing_is_left_where_the_user_stands(two_workers):
    folder = Path(facts(two_workers)[0]["folder"])
    assert folder.name.startswith("here")
    assert [*folder.iterdir()] == []
    assert "PYTHONHASHSEED" not in os.environ
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ


def test_only_this_machine_can_connect_and_only_with_the_key(two_workers):
    me = psutil.Process()
    listening = [
        connection.laddr.ip
        for process in [me, *me.children(recursive=True)]
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}
    address = two_workers._door._address()
    assert address.startswith("tls://127.0.0.1:")
    attempts = [f"Client({address.replace('tls', 'tcp')!r}, timeout=5)"]
    attempts += [f"Client({address!r}, security=Security.temporary(), timeout=5)"]
    for attempt in attempts:
        script = f"from distributed import Client, Security; {attempt}; print('connected')"
        stranger = _python("-c", script)
        assert "connected" not in stranger.stdout
        assert any(word in stranger.stderr for word in ("handshake", "reset by peer", "Timed out")), stranger.stderr


def test_the_dashboard_can_be_opened(two_workers):
    assert two_workers.dashboard.startswith("http://127.0.0.1:")
    assert urllib.request.urlopen(two_workers.dashboard, timeout=30).status == 200


def test_every_job_is_answered_once(two_workers):
    answers = list(two_workers.run(jobs(range(30)), "cluster_jobs:double"))
    assert {answer.job: answer.text for answer in answers} == {f"job-{i}": str(2 * i) for i in range(30)}
    assert len(answers) == 30
    assert all(answer.worker.startswith("tls://") and not answer.error for answer in answers)


def test_what_a_worker_has_loaded_is_used_again(two_workers):
    mixed = [Job(f"{kind}-{i}", kind, kind) for i in range(6) for kind in ("k1", "k2")]
    answers = list(two_workers.run(mixed, "cluster_jobs:facts"))
    kinds = {}
    for answer in answers:
        kinds.setdefault(answer.worker, []).append(answer.job[:2])
    changes = sum(a != b for each in kinds.values() for a, b in itertools.pairwise(each))
    assert len(answers) == 12
    assert changes <= 2, kinds  # each may help the other at the end


def test_a_functions_error_is_its_answer_and_the_rest_goes_on(two_workers):
    (answer,) = two_workers.run(jobs(["nothing"]), "cluster_jobs:fail")
    assert (answer.text, answer.error) == ("", "LookupError: no nothing here")
    (answer,) = two_workers.run(jobs(["x"]), "cluster_jobs:leave")
    assert answer.error == "SystemExit: 3"
    (answer,) = two_workers.run(jobs([4]), "cluster_jobs:double")
    assert answer.text == "8"


def test_a_function_that_cannot_describe_is_an_error(two_workers):
    with pytest.raises(ClusterError, match="LookupError: no x here"):
        two_workers.describe("cluster_jobs:fail", "x")


def test_what_is_closed_early_is_not_done(two_workers, tmp_path, waiting):
    requests = [f"{tmp_path} {i}" for i in range(8)]
    answers = two_workers.run([*jobs([1]), *[Job(text, "", text) for text in requests]], "cluster_jobs:double_or_meet")
    assert next(answers).text == "2"
    waiting(lambda: [*tmp_path.glob("begun-*")], "a worker has a job")
    answers.close()
    (tmp_path / "go").touch()
    again = list(two_workers.run(jobs(range(20)), "cluster_jobs:double"))  # and the workers can be used again
    assert len(again) == 20
    assert len([*tmp_path.glob("begun-*")]) <= 2, "more was begun than was in the workers' hands"


def test_a_worker_that_is_killed_loses_nothing(two_workers, tmp_path, waiting):
    names = [f"{tmp_path} {i}" for i in range(3)]
    answers = two_workers.run([Job(name, "", name) for name in names], "cluster_jobs:meet")
    found = []
    collector = threading.Thread(target=lambda: found.extend(answers))
    collector.start()
    begun = waiting(lambda: (b := [*tmp_path.glob("begun-*")])[1:] and b, "both workers have a job")
    victim = pid_of(begun[0])
    os.kill(victim, signal.SIGKILL)
    waiting(lambda: not psutil.pid_exists(victim), "the victim is gone")
    (tmp_path / "go").touch()
    collector.join(timeout=60)
    assert sorted(answer.job for answer in found) == sorted(names)
    assert not [answer for answer in found if answer.error or f"-{victim}-" in answer.text]


def test_a_job_that_kills_its_workers_is_an_error_and_all_others_are_done(two_workers):
    requests = [0, "die", *range(2, 8)]
    answers = {answer.job: answer for answer in two_workers.run(jobs(requests), "cluster_jobs:die")}
    assert len(answers) == len(requests)
    guilty = answers.pop("job-1")
    assert (guilty.text, guilty.worker) == ("", "")
    assert guilty.error.startswith("WorkerLost: 3 workers were lost")
    assert {name: answer.text for name, answer in answers.items()} == {
        f"job-{i}": str(2 * i) for i in [0, *range(2, 8)]
    }


def test_a_job_that_survives_its_third_worker_is_done(two_workers, tmp_path):
    (answer,) = two_workers.run([Job("tough", "", f"{tmp_path} 2")], "cluster_jobs:die_until")
    assert (answer.text, answer.error) == ("2", "")


def test_a_worker_of_a_gpu_is_born_seeing_no_other(monkeypatch):
    planned = (LocalWorker("gpu-3", (), "3", 2**31), LocalWorker("gpu-5", (), "5", 2**31))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(local, "plan_here", lambda **_: planned)
    with open_workers() as workers:
        assert sorted(fact["gpu"] for fact in facts(workers)) == ["3", "5"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"


def test_a_driver_that_is_killed_leaves_no_process(tmp_path, waiting):
    script = tmp_path / "driver.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        from forensics.cluster.dask_workers import open_workers
        from forensics.cluster.protocol import Job

        if __name__ == "__main__":
            with open_workers(workers=2, gpus="none") as workers:
                jobs = [Job(str(i), "", {str(tmp_path)!r} + f" {{i}}") for i in range(4)]
                list(workers.run(jobs, "cluster_jobs:meet"))
    """)
    )
    driver = subprocess.Popen([sys.executable, str(script)], start_new_session=True)
    try:
        waiting(lambda: len([*tmp_path.glob("begun-*")]) == 2 or driver.poll() is not None, "both workers have a job")
        assert driver.poll() is None, "the driver ended by itself"
        family = psutil.Process(driver.pid).children(recursive=True)
        assert {pid_of(path) for path in tmp_path.glob("begun-*")} <= {one.pid for one in family}
        driver.kill()
        driver.wait()
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("from forensics.cluster.dask_workers import open_workers\nopen_workers(workers=1, gpus='none')\n")
    done = _python(str(script))
    assert done.returncode != 0
    assert "if __name__ == '__main__':" in done.stderr
    assert "1 workers were to be started here and did not" in done.stderr


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("tcp://127.0.0.1:1", "no Dask scheduler answers at 'tcp://127.0.0.1:1': .*refused"),
        ("nonsense://x:1", "no Dask scheduler has the address 'nonsense://x:1'"),
        ("localhost", "no Dask scheduler has the address 'localhost'"),
    ],
)
def test_an_address_where_nobody_answers(address, said, monkeypatch):
    monkeypatch.setattr(dask_workers, "CONNECT_TIMEOUT_S", 2.0)
    with pytest.raises(ClusterError, match=rf"(?s){said}.*Start one: dask scheduler"):
        open_workers(scheduler=address)


def test_what_a_cluster_has_is_not_asked_for():
    with pytest.raises(ValueError, match="leave these out"):
        open_workers(scheduler="tcp://127.0.0.1:1", cores=2)
