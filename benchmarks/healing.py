"""What a fault costs: `python healing.py FOLDER` answers with a line of JSON, one record a measurement.

A rank raises while the others are in `all_reduce`; a rank is killed; ranks wait for ever and are interrupted; the session gets fresh ranks, or more, or fewer. All times are to the end of what a person waits for."""
import os, signal, time
from contextlib import closing, redirect_stdout

from session import Ours, Theirs, answer, check, timed, warm_up

RANKS, FAULTS, REPEATS, LIMIT = (2, 4), 10, 5, 400   # faults; times of everything else; seconds for everything
GIVE_UP = 10  # seconds that ipyparallel has for the end of a cell in which a rank has raised

RAISE = "import time\ndist.barrier()\nif dist.get_rank() == 1:\n    time.sleep(.2)\n    raise ValueError(time.time())\ndist.all_reduce(torch.ones(1))"   # the others are in it by then
HANG = "import time\ndist.barrier()\nif rank == 1: dist.recv(torch.zeros(1), src=0)\nelse: dist.all_reduce(torch.ones(1))"


def fault(s, n, note):
    "From the moment before `raise` to the first look at which the cause is known, to the end of the cell with a new group, to the end of a collective in the next one"
    seen = []
    cell = s.send(RAISE)
    cell.wait(60, each=lambda c: None if seen or c.exception() is None else seen.append(time.time()))
    healed, error = time.time(), cell.exception()
    raised = float(error.message.split()[1])
    check(Ours.of(s), n)
    for what, t in (("cause", (seen or [healed])[0]), ("healed", healed), ("works", time.time())): note(what, n, t - raised)
    if "new process group" not in str(error): raise RuntimeError(f"nothing was healed: {error}")

def death(s, n, note):
    "A rank is killed between cells: until it is known, and until a fresh one works with the others"
    pid = s.run("import os\nos.getpid()").result()[1]
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    while not s.dead:
        time.sleep(.001)
        s.hear()
    note("dead", n, time.perf_counter() - start)
    changed(s, n, note, "restart one", lambda: s.restart([1]))

def changed(s, n, note, what, fn):
    "A change, until a collective of all ranks has answered"
    start = time.perf_counter()
    fn()
    check(Ours.of(s), s.world_size)
    note(what, n, time.perf_counter() - start)

def interrupt(s, n, note):
    "Everybody waits for somebody else, and is interrupted: until the cell has ended with a new group"
    cell = s.send(HANG)
    time.sleep(.5)
    note("interrupt", n, timed(lambda: cell.cancel(20))[0])
    if cell.stuck: raise RuntimeError(f"{cell} did not stop: {cell.stuck}")
    check(Ours.of(s), n)

def measure(folder, note, ranks=RANKS):
    from dtnb.session import Session
    warm_up()
    for n in ranks:
        with Session(nproc=n) as s:
            check(Ours.of(s), n)
            for _ in range(FAULTS): fault(s, n, note)
            for _ in range(REPEATS):
                death(s, n, note)
                interrupt(s, n, note)
                changed(s, n, note, "resize", lambda: s.resize(6 - n))      # 2 to 4, 4 to 2
                s.resize(n)
                changed(s, n, note, "restart", s.restart)
        with closing(Theirs(n, folder)) as theirs: their_fault(theirs, n, note)

def their_fault(theirs, n, note):
    "What ipyparallel tells: to one who asks for the first exception, and to one who waits for the cell, as `%%px` does; then fresh engines"
    from ipyparallel.error import RemoteError
    check(theirs, n)
    got = theirs.view.execute(RAISE, silent=False, block=False)
    try: got.get(GIVE_UP, return_when="FIRST_EXCEPTION")
    except TimeoutError: pass
    except RemoteError as error: note("cause", n, time.time() - float(error.evalue), theirs.name)
    seconds, ended = timed(lambda: got.wait(GIVE_UP))
    note("healed" if ended else "never", n, seconds, theirs.name)
    note("restart", n, timed(lambda: (theirs.restart(), check(theirs, n)))[0], theirs.name)

def costs(folder, ranks=RANKS) -> list[dict]:
    "Seconds of everything, as `{what, peer, n, s}`"
    found = []
    def note(what, n, seconds, peer=Ours.name): found.append(dict(what=what, peer=peer, n=n, s=seconds))
    os.environ["IPYTHONDIR"] = os.path.join(folder, "ipython")
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet): measure(folder, note, ranks)
    return found

if __name__ == "__main__": answer(costs, LIMIT)
