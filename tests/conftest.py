"What tests share: a private DTNB_HOME each, a decoy, and the certainty that nothing is left running."
import os, signal, subprocess, sys, time
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
SLOW = bool(os.environ.get("DTNB_SLOW"))   # `make test-all`: longer trials, too

import dtnb
from dtnb.processes import descendants, start_time
from dtnb.launchers.local import keeper


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    "A private DTNB_HOME"
    monkeypatch.setenv("DTNB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def alive(pids): return [p for p in pids if start_time(p) is not None]


def wait_until(true, seconds=20, what="the condition"):
    "Poll until `true()` is; a generous end, because CI is slow"
    end = time.monotonic() + seconds
    while not (got := true()):
        assert time.monotonic() < end, f"{what} did not come true in {seconds} s"
        time.sleep(.05)
    return got


def job_processes(job):
    "Every process that ever said it was part of a job, and what is below the guard now"
    from dtnb.event import EventReader
    said = EventReader(job.paths.launcher).read()
    pids = {said[0].get("guard")} if said else set()
    pids |= {r.pid for r in job.view.ranks.values() if r.pid}
    return pids | {p for guard in list(pids) if guard for p in descendants(guard)}


@pytest.fixture
def decoy():
    "A foreign process whose name looks like ours"
    p = subprocess.Popen(["bash", "-c", "exec -a 'python -m dtnb.zygote' sleep 300"])
    yield p
    assert p.poll() is None, "a foreign process was killed"
    p.kill()
    p.wait()


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    "After all tests, this process has no descendants"
    yield
    keeper().close()
    wait_until(lambda: not alive(descendants(os.getpid())), what="all processes ended")
