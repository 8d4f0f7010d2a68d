"""What a job on Slurm costs, beside bare sbatch and submitit: `python slurm.py FOLDER` answers with a line of JSON, the measurements or why there are none.

The Slurm is tests/slurm's, private and real, of two nodes; both are this machine, so two ranks that import torch share its cores. `DTNB_HOME` and FOLDER are what the nodes share."""
import os, resource, subprocess, sys, time
from contextlib import redirect_stdout
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"   # `slurm` there is a package, so this must stand before this folder
NODES, LINES, ENDS, AGE = 2, 4, 2, 10   # repetitions of first line and of each end; seconds since submission at which a job ends
NEVER, JOBS, WATCH, LOOK = 60, 500, 20, 1   # seconds to wait for news; held jobs; seconds to watch them; seconds between two looks of a person at all handles
LIMIT = 1200   # seconds for everything

BARE = "#!/bin/bash\n#SBATCH --nodes={n} --ntasks-per-node=1 --output={out}\nsrun {python} -u -c '{code}'\n"
IMPORT = "import time; began = time.time(); import torch; print(began, time.time())"
PRINT = "import time; print(time.time(), time.time())"

def line():
    import time
    began = time.time()
    import torch
    print(began, time.time(), flush=True)

def ending(folder, how):
    "A rank that is up, waits for `go`, tells when, and ends"
    import os, time
    from pathlib import Path
    folder, rank = Path(folder), os.environ["SLURM_PROCID"]
    (folder / f"up-{rank}").touch()
    while not (folder / "go").exists(): time.sleep(.005)
    (folder / f"end-{rank}").write_text(repr(time.time()))
    if how == "exit" and rank == "1": os._exit(3)


class Ours:
    name = "dtnb"
    def __init__(self, folder, fn, *args):
        import dtnb
        self.job = dtnb.launch(fn, *args, on=dtnb.Slurm(nodes=NODES))

    def lines(self): return "".join(self.job.logs(r) for r in range(NODES))
    def ended(self) -> bool: return self.job.state.ended

    @property
    def id(self):
        from dtnb.launchers.slurm import read_record
        return read_record(self.job.paths)["id"]

    def stages(self) -> dict:
        "When the last guard began, and when the last rank did"
        from dtnb.event import EventReader
        first = lambda path: next(e.t for e in EventReader(path).read() if e.get("state") == "starting")
        return dict(guard=max(first(self.job.paths.guard(i)) for i in range(NODES)), rank=max(first(self.job.paths.events(r)) for r in range(NODES)))


class Theirs:
    name = "submitit"
    def __init__(self, folder, fn, *args):
        import submitit
        executor = submitit.SlurmExecutor(folder / "submitit")
        executor.update_parameters(nodes=NODES, ntasks_per_node=1, time=10)
        self.job = executor.submit(fn, *args)

    def lines(self): return "".join(p.read_text() for j in self.job._sub_jobs if (p := j.paths.stdout).exists())
    def ended(self) -> bool: return self.job.done()
    def stages(self) -> dict: return {}

    @property
    def id(self): return self.job.job_id


class Bare:
    "sbatch of a script with srun and a Python"
    name, code = "sbatch", IMPORT
    def __init__(self, folder, *_):
        self.out, script = folder / f"out-{time.time_ns()}", folder / "script"
        script.write_text(BARE.format(n=NODES, out=self.out, python=sys.executable, code=self.code))
        done = subprocess.run(["sbatch", "--parsable", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode: raise RuntimeError(f"sbatch: {done.stderr}")
        self.id = done.stdout.strip()

    def lines(self): return self.out.read_text() if self.out.exists() else ""
    def stages(self) -> dict: return {}


class BarePrint(Bare): name, code = "sbatch, no import", PRINT


def until(true, seconds, pause=.005) -> bool:
    end = time.monotonic() + seconds
    while not (got := true()) and time.monotonic() < end: time.sleep(pause)
    return bool(got)

def times(text) -> list[list[float]]:
    "Of a rank's line: when its function began, when torch was there"
    return [[float(x) for x in words] for l in text.splitlines() if len(words := l.split()) == 2 and all(w.replace(".", "", 1).isdigit() for w in words)]

def first_line(side, cluster, folder) -> dict:
    "From the call to submit until the first line of a rank, and of the last rank, can be read"
    called = time.time()
    up = side(folder, line)
    returned, first = time.time(), None
    while len(found := times(up.lines())) < NODES:
        if found and not first: first = time.time()
        if time.time() - called > 60: raise RuntimeError(f"{side.name}: no lines but {up.lines()!r}")
        time.sleep(.005)
    last = time.time()
    more = up.stages()
    cluster._wait(lambda: not cluster.run("squeue", "-h").stdout.strip(), 60, "an empty queue")
    return dict(peer=side.name, called=called, returned=returned, first=first or last, last=last, began=max(b for b, _ in found), imported=max(i for _, i in found), **more)

def measure_lines(cluster, folder) -> dict:
    "In turn, and `import torch` without Slurm: alone, and twice at once as the nodes do"
    found, imports, sides = [], {"1": [], str(NODES): []}, [Ours, Bare, Theirs, BarePrint]
    first_line(Ours, cluster, folder)     # warms the page cache
    for i in range(LINES):
        found += [first_line(side, cluster, folder) for side in sides[i % 4:] + sides[:i % 4]]
        for n in imports:
            start = time.perf_counter()
            for p in [subprocess.Popen([sys.executable, "-c", "import torch"], stdin=subprocess.DEVNULL) for _ in range(int(n))]: p.wait()
            imports[n].append(time.perf_counter() - start)
    return dict(lines=found, imports=imports)

def end_of(side, cluster, folder, how) -> float | None:
    "Seconds from a job's end, or the call of scancel, until its handle says so; None: not within `NEVER`"
    place = folder / f"end-{time.time_ns()}"
    place.mkdir()
    born = time.monotonic()
    up = side(folder, ending, str(place), how)
    if not until(lambda: len(list(place.glob("up-*"))) == NODES, 90): raise RuntimeError(f"{side.name}: not up\n{cluster.log()[-3000:]}")
    while time.monotonic() - born < AGE:      # somebody looks at it all the time
        if up.ended(): raise RuntimeError(f"{side.name} ended early")
        time.sleep(.05)
    since = time.time()
    if how == "scancel": subprocess.run(["scancel", up.id], check=True)
    else: (place / "go").touch()
    seen = until(up.ended, NEVER)
    now = time.time()
    if how != "scancel": since = max(float(p.read_text()) for p in place.glob("end-*"))
    cluster._wait(lambda: not cluster.run("squeue", "-h").stdout.strip(), 60, "an empty queue")
    return now - since if seen else None

def measure_ends(cluster, folder, accounting) -> list[dict]:
    found = []
    for how in ("return", "exit", "scancel"):
        for side in (Ours, Theirs):
            for _ in range(ENDS):
                found.append(dict(how=how, peer=side.name, accounting=accounting, s=end_of(side, cluster, folder, how)))
                if found[-1]["s"] is None: break
    return found


def spent(pid=None) -> float:
    "CPU seconds of this process and of its children that ended, or of another process"
    if pid is None: return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

def handles(ids) -> list:
    "dtnb's, as if it had submitted them"
    from dtnb.handle import Job
    from dtnb.job import JobPaths, jobs_dir, make_private, write_atomic
    from dtnb.launchers.launcher import make_spec
    from dtnb.launchers.slurm import Slurm, note
    on, jobs = Slurm(), []
    for id in ids:
        spec = make_spec(on, "held")
        paths = JobPaths(make_private(jobs_dir() / spec.job_id))
        write_atomic(paths.spec, spec.to_json())
        note(paths, id=id, asked=time.time())
        jobs.append(Job(paths.root, on))
    return jobs

def measure_watch(cluster, folder) -> list[dict]:
    "Per minute: CPU of this process and Slurm's commands, of the controller, and the number of commands; a person looks at every handle each `LOOK` s"
    import submitit
    from submitit.core import core
    from dtnb.launchers import squeue
    ids = cluster.run("bash", "-c", f"for i in $(seq {JOBS}); do sbatch --parsable --hold --wrap true --output /dev/null; done", timeout=300).stdout.split()
    if len(ids) != JOBS: raise RuntimeError(f"{len(ids)} jobs of {JOBS}")
    calls, found = [], []
    def count(fn): return lambda *a, **k: (calls.append(a[0] if isinstance(a[0], str) else a[0][0]), fn(*a, **k))[1]
    squeue.ask, core.subprocess.check_output = count(squeue.ask), count(subprocess.check_output)
    ours, theirs = handles(ids), [submitit.SlurmJob(folder, i) for i in ids]
    ways = [("idle", lambda: None), ("poller", lambda: [squeue.poller().last(i) for i in ids]), ("dtnb", lambda: [j.state for j in ours])] + [("submitit", lambda: [j.done() for j in theirs])] * cluster.accounting
    for what, look in ways:
        if what == "submitit": submitit.SlurmJob.watcher._start_time = time.time()   # as if just submitted
        look()                         # the first one begins to watch, and reads all folders
        until(lambda: squeue.poller().thread is None or what in ("poller", "dtnb"), 40)
        calls.clear()
        start, cpu, ctl, n = time.monotonic(), spent(), spent(cluster.controller), 0
        while time.monotonic() - start < WATCH:
            look()
            n += 1
            time.sleep(max(0, start + n * LOOK - time.monotonic()))
        per = 60 / (time.monotonic() - start)
        found.append(dict(what=what, looks=n * per, cpu=(spent() - cpu) * per, controller=(spent(cluster.controller) - ctl) * per, calls=len(calls) * per))
        if what == "poller" and any(squeue.poller().last(i).word != "PENDING" for i in ids): raise RuntimeError("a held job is not seen as one")
    cluster.run("scancel", "-u", cluster.run("id", "-un").stdout.strip())
    return found


def measure(folder) -> dict:
    sys.path.insert(0, str(TESTS))
    from slurm.cluster import Cluster, missing
    if reason := missing(): return dict(skipped=f"no Slurm here: {reason}")
    reason = missing(accounting=True)
    data = dict(age=AGE, never=NEVER, jobs=JOBS, watch=WATCH, look=LOOK, repeats=LINES, no_accounting=reason, ends=[], day=time.strftime("%Y-%m-%d"), load=[os.getloadavg()[0]])
    for accounting in (False, True)[:1 if reason else 2]:
        with Cluster(accounting=accounting) as cluster:
            os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
            data["version"] = cluster.run("sinfo", "--version").stdout.split()[-1]
            from dtnb.launchers.squeue import has_accounting
            has_accounting.cache_clear()
            if not accounting: data |= measure_lines(cluster, folder)
            data["ends"] += measure_ends(cluster, folder, accounting)
            data["load"].append(os.getloadavg()[0])
            if accounting or reason: data["watched"] = measure_watch(cluster, folder)
    return data

def quietly(folder) -> dict:
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet): return measure(Path(folder))

if __name__ == "__main__":
    from session import answer
    answer(quietly, LIMIT)
