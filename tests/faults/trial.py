"One trial of a fault, in a session and in a local job, and what must be true after any fault."
import os, re, resource, signal, threading, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from dtnb.processes import children_of, start_time
from dtnb.job import runtime_dir
from dtnb.launchers.local import Local
from dtnb.session import Session
from test_session import everything, guard, in_main

WORKS = "works"        # the next cell works, with the variables of before
RANKS = "some ranks"   # it is refused with a reason, works after `%dist restart --ranks`; the other ranks keep their variables
ENDED = "ended"        # the session is over and says why; a new one works

PATIENCE = 30   # seconds after which a fault that is not told counts as a wedge

HEAD = """import os, resource, signal, sys, time, torch, torch.distributed as dist
def fault():
    time.sleep(.3)
    print('fault at', time.monotonic(), flush=True)
def limit():
    size = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
def unlimit(): resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
def ahead(seconds, plain=getattr(time, 'plain', time.time)):
    time.plain, time.time = plain, lambda: plain() + seconds * (rank == 1)
    import dtnb.rank.worker
    dtnb.rank.worker.here.writer.clock = time.time
"""


# ---- what tests do from outside

def interrupt(at):
    "The stop button. In a job it ends the wait, and the job is cancelled after that"
    if isinstance(at.of, Session): return at.cell.cancel()
    threading.Timer(.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt): at.of.wait(PATIENCE)
    assert not at.of.state.ended, "an interrupt of the wait is not for the job"
    with pytest.raises(dtnb.JobTimeoutError, match="it goes on"): at.of.wait(.2)
    at.of.cancel("the fault was seen")


def kill_guard(at): os.kill(guard(at.of), signal.SIGKILL)
def kill_driver(at): os.kill(_parent(at.of.view.ranks[0].pid), signal.SIGKILL)
def kill_controller(at):
    "Among the guard's children: no rank, and started after the store"
    ranks = {r.pid for r in at.of.job.view.ranks.values()}
    os.kill(max(set(children_of(guard(at.of))) - ranks, key=lambda p: (start_time(p), p)), signal.SIGKILL)


def fill_disk(at):
    "Not a byte more into the files of ranks; those of the guard, which are longer, end at 64 KiB"
    at.limited = [guard(at.of), *(r.pid for r in at.job.view.ranks.values())]
    for pid in at.limited: resource.prlimit(pid, resource.RLIMIT_FSIZE, ((64 << 10) * (pid == at.limited[0]), resource.RLIM_INFINITY))


def tear_lines(at):
    "As if a write had been cut short, in a file of each writer"
    for path in (at.job.paths.events(1), at.job.paths.output_index(1), at.job.paths.events(0)):
        with open(path, "ab") as f: f.write(b'{"kind":"state","t":17')


def _parent(pid): return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class At:
    "Where a fault is: a session's cell, or a job"
    def __init__(self, of, cell=None): self.of, self.cell, self.job, self.limited = of, cell, getattr(of, "job", of), []

    def text(self, rank): return self.cell.text(rank) if self.cell else self.job.logs(rank)

    def begun(self):
        "Every rank has called `fault()`"
        def all_have(): return all("fault at" in self.text(r) for r in range(self.job.world_size))
        def ended(): return (self.cell or self.job).state.ended
        wait_until(lambda: (self.cell and self.of.listen()) or all_have() or ended(), what="the fault in every rank")

    def moment(self, otherwise):
        "When it happened, on this machine's monotonic clock"
        said = [float(t) for r in range(self.job.world_size) for t in re.findall(r"fault at ([\d.]+)", self.text(r))]
        return max(said, default=otherwise)

    def make_room(self):
        for pid in alive(self.limited): resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


# ---- in a session

def in_session(s, fault):
    "Returns the seconds from the fault to the error; afterwards the session works, or has said why not and is mended"
    n = fault.ranks
    s.run("kept = rank\n" + HEAD + fault.setup, timeout=60)
    at, before = At(s, s.send(fault.body)), everything(s)
    began = time.monotonic()
    if fault.act:
        at.begun()
        began = time.monotonic()
        fault.act(at)
    try: at.cell.wait(PATIENCE)
    finally: at.make_room()
    t = time.monotonic()
    error = at.cell.exception()
    assert error is not None, f"the cell went well: {at.cell.outputs}"
    said = "\n".join([str(error), *(f"rank {r} waited in {where}" for r, where in sorted(at.cell.freed.items()))])   # as the magic says it
    assert re.search(fault.says, said), f"the error was: {said}"
    if fault.shows: wait_until(lambda: s.listen() or re.search(fault.shows, at.text(fault.rank)), what=f"{fault.shows} in the output")
    if fault.rank is not None: assert error.rank == fault.rank, str(error)
    _next_cell(s, fault, n, before)
    if fault.after: s.run(fault.after, timeout=30)
    return t - (began if fault.act else at.moment(began)), said


def _next_cell(s, fault, n, before):
    if fault.then != WORKS:
        with pytest.raises(dtnb.DtnbError, match="this session has ended .*%dist start" if fault.then == ENDED else fault.refuses.format(fault.rank, fault.rank)): s.run("1", timeout=PATIENCE)
    if fault.then == RANKS: s.restart([fault.rank])
    if fault.then == ENDED:
        s.restart()
        wait_until(lambda: not alive(before), what=f"the end of {alive(before)}")
    kept = {r: None if fault.then == ENDED or fault.then == RANKS and r == fault.rank else r for r in range(n)}
    cell = s.run("one = torch.ones(1)\ndist.all_reduce(one)\nprint('rank', rank, 'prints')\n(one.item(), globals().get('kept'))", timeout=PATIENCE)
    wait_until(lambda: len(alive(children_of(guard(s)))) == n + 2, what="only ranks, store and controller below the guard")
    assert cell.result() == {r: (float(n), kept[r]) for r in range(n)}
    assert [cell.text(r) for r in range(n)] == [f"rank {r} prints\n" for r in range(n)]


# ---- in a job

def function(fault):
    "What a notebook would have defined"
    lines = f"{HEAD}dist.init_process_group('gloo')\nrank, world_size = dist.get_rank(), dist.get_world_size()\n{fault.setup}\n{fault.body}"
    return in_main("def faulty():\n" + "".join(f"    {line}\n" for line in lines.splitlines()), "faulty")


def sums():
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    one = torch.ones(1)
    dist.all_reduce(one)
    return one.item()


def in_job(fault):
    "Returns the seconds from the fault to when the job's view shows it, and the error"
    job = dtnb.launch(function(fault), on=Local(nproc=fault.ranks))
    at, pids, began, seen = At(job), set(), time.monotonic(), []
    if fault.act:
        at.begun()
        began = time.monotonic()
        pids |= job_processes(job)
        fault.act(at)
    def look(view):
        pids.update(job_processes(job))
        if any(r.error for r in view.ranks.values()) or view.state.ended: seen.append(time.monotonic())
    try: job.follow(PATIENCE, look)
    finally: at.make_room()
    assert job.state == fault.state, (job.state, job.view.reason)
    error, says = job.exception(), fault.job or fault.says
    if fault.state == "cancelled": says = "was cancelled: the fault was seen"
    elif fault.rank is not None: says = rf"rank {fault.rank} on .*: (.*\n)*?.*{says}"
    assert re.search(says, f"{error}"), f"the error was: {error}"
    wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")
    assert job.state == "lost" or not sockets_of(job.id), "the guard's sockets are removed"
    again = dtnb.launch(sums, on=Local(nproc=2))
    again.follow(60)
    assert again.results() == {0: 2.0, 1: 2.0}
    return seen[0] - (began if fault.act else at.moment(began)), str(error)


def sockets_of(job_id): return [n for n in os.listdir(runtime_dir() / "g") if n.startswith(job_id[-30:])]
