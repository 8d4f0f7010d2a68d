"The table of faults, row by row; `DTNB_TRIALS=20` tries each twenty times."
import os, subprocess

import pytest

from conftest import wait_until
from dtnb.processes import start_time
from dtnb.session import Session
from test_session import everything, own_home

from . import trial
from .table import FAULTS

N = int(os.environ.get("DTNB_TRIALS", 1))
DECOYS = ["python -m dtnb.zygote 5", "dtnb-guard", "python -m dtnb.rank.worker", "torchrun train.py", "ipcontroller --profile-dir=ipp"]


@pytest.fixture(scope="module", autouse=True)
def decoys():
    "Foreign processes with names like ours"
    kept = [subprocess.Popen(["bash", "-c", f"exec -a '{name}' sleep 3600"]) for name in DECOYS]
    yield kept
    for p in kept:
        p.kill()
        p.wait()


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    "By their number of ranks: sessions that are used for one fault after the other, as long as they work"
    kept, pids, shm = {}, set(), set(os.listdir("/dev/shm"))
    def get(n):
        if n not in kept:
            with own_home(tmp_path_factory): kept[n] = Session(n)
        if get.spoiled: kept[n].restart()
        get.spoiled = False
        pids.update(everything(kept[n]))
        return kept[n]
    get.spoiled = False                  # whether the last trial went wrong, and may have left anything
    yield get
    for s in kept.values():
        pids.update(everything(s))
        s.close()
    wait_until(lambda: not trial.alive(pids), what="the end of all sessions")
    wait_until(lambda: not set(os.listdir("/dev/shm")) - shm, what="an empty /dev/shm")
    assert not [n for s in kept.values() for n in trial.sockets_of(s.id)]


def tried(record, name, where, run):
    "Run one trial and put it down for the table; `pytest -s` shows what was said"
    try: seconds, said = run()
    except BaseException:
        record("trial", (name, where, None, ""))
        raise
    record("trial", (name, where, seconds, ""))
    print(f"\n>>> {name} in a {where}, {seconds:.2f} s: {said}")


@pytest.mark.parametrize("trial_number", range(N))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
@pytest.mark.parametrize("where", ["session", "job"])
def test_fault(where, fault, trial_number, sessions, decoys, record_property):
    in_session = where == "session"
    if reason := fault.no_session if in_session else fault.no_job:
        record_property("trial", (fault.name, where, "-", reason))
        return
    if fault.kernel: tried(record_property, fault.name, where, fault.kernel[not in_session])
    elif in_session:
        s = sessions(fault.ranks)
        sessions.spoiled = True
        tried(record_property, fault.name, where, lambda: trial.in_session(s, fault))
        sessions.spoiled = False
    else: tried(record_property, fault.name, where, lambda: trial.in_job(fault))
    for p in decoys: assert p.poll() is None and start_time(p.pid), f"a foreign process, {p.args}, was touched"


ROW = ["raise", "exit", "no memory: torch", "mutual recv", "SIGKILL", "interrupt: Python loop", "shape mismatch", "port taken", "fork, then killed", "stdout closed"]


@pytest.mark.parametrize("trial_number", range(N))
def test_ten_in_a_row(trial_number, tmp_path, decoys, record_property):
    "One session goes through ten faults; ranks that died are replaced, it is never started anew"
    def run():
        with Session(2) as s:
            first, seconds = s.id, 0
            for name in ROW: seconds += trial.in_session(s, next(f for f in FAULTS if f.name == name))[0]
            assert s.id == first
            pids = everything(s)
        wait_until(lambda: not trial.alive(pids), what="the end of the session")
        return seconds, "it works"
    tried(record_property, "ten in a row", "session", run)
