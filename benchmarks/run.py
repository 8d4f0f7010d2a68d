"""Measure dtnb beside its peers and write README.md: `python benchmarks/run.py`, about half an hour; `run.py slurm` (or `slurm_session`, `recording`, `timeline`, `launchpad`) measures and writes that section alone. Nothing here passes or fails."""
import importlib, json, os, platform, re, select, statistics, subprocess, sys, tempfile, time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS, ROUNDS, WARM = (2, 4), 3, 2  # each round: one launch by fresh processes, WARM more by the same ones, one training step
IMPORTS = {"bare Python": "pass", "import dtnb": "import dtnb", "its names": "from dtnb import launch, jobs, Local, track", "import torch": "import torch", "import accelerate": "import accelerate"}
PEERS = dict(dtnb="dtnb", accelerate="notebook_launcher", torchrun="torchrun")
AIM_LAUNCH, AIM_TRACK, AIM_IMPORT = .6, .5, 150  # seconds; microseconds; milliseconds
AIM_CAUSE, AIM_HEALED, AIM_DEAD, AIM_RESTART = .5, .2, 1, 1  # seconds
AIM_SUBMIT, AIM_STATE = 1.5, 2  # times; seconds
AIM_START, AIM_START_RATIO, AIM_CELL, AIM_LINES, AIM_PUSH = .8, 10, 1, 10, .2  # seconds; times; times; times; seconds


def say(text): print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

def spin() -> float:
    "Seconds for a fixed piece of Python: how steady the machine is"
    start = time.perf_counter()
    sum(i * i for i in range(500_000))
    return time.perf_counter() - start


# Launching ------------------------------------------------------------------------------------------------------------------

class Kernel:
    "A Python process that launches when it is asked"
    def __init__(self, kind, log):
        self.kind, self.log, self.born = kind, log, time.time()
        self.process = subprocess.Popen([sys.executable, str(HERE / "first_step.py"), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def launch(self, what, n, folder, timeout=120) -> dict:
        "Launch a step on `n` ranks; returns the kernel's answer. Raises `RuntimeError` after `timeout` seconds or when the kernel ended"
        self.process.stdin.write(f"{what} {n} {folder}\n".encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline() if select.select([self.process.stdout], [], [], timeout)[0] else b""
        if not line: raise RuntimeError(f"no answer from the {self.kind} kernel:\n{Path(self.log.name).read_text()[-3000:]}")
        return json.loads(line)

    def __enter__(self): return self

    def __exit__(self, *exc):
        "Let it go; it ends its own children"
        self.process.stdin.close()
        try: self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

class Torchrun:
    "Starts everything anew on each launch"
    def __init__(self, kind, log): self.log = log
    def __enter__(self): return self
    def __exit__(self, *exc): pass

    def launch(self, what, n, folder, timeout=120) -> dict:
        self.born = called = time.time()
        subprocess.run([sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", Path(folder).name, "--nproc-per-node", str(n),
                        str(HERE / "first_step.py"), "--rank", what, folder], check=True, timeout=timeout, stdout=self.log, stderr=self.log)
        return dict(called=called, ended=time.time())

def launch(kernel, what, n) -> dict:
    "One launch; returns when things happened, the last rank's time for each"
    with tempfile.TemporaryDirectory() as folder:
        answer = kernel.launch(what, n, folder)
        ranks = [json.loads(p.read_text()) for p in Path(folder).glob("*.json")]
    if [r["sum"] for r in ranks] != [n] * n: raise RuntimeError(f"the first step gave {ranks} on {n} ranks")
    return answer | dict(born=kernel.born) | {k: max(r[k] for r in ranks) for k in ("group", "step")} | dict(function=max(r["called"] for r in ranks))

def measure_round(n, order, log) -> list[dict]:
    "Fresh processes: each peer's launches, in turn, as `{peer, n, what, ...}`"
    found = []
    with ExitStack() as stack:
        kernels = {}
        for i, what in enumerate(["first"] + ["later"] * WARM + ["train"]):
            for peer in order:
                if peer == "torchrun" and i == WARM: continue  # slow, and the same each time: one launch less
                if peer not in kernels: kernels[peer] = stack.enter_context((Torchrun if peer == "torchrun" else Kernel)(peer, log))
                found.append({"peer": peer, "n": n, "what": what, "pass": i} | launch(kernels[peer], "train" if what == "train" else "reduce", n))
            say(f"{n} ranks, {what}: " + ", ".join(f"{f['peer']} {f['step'] - f['called']:.2f} s" for f in found if f["pass"] == i))
    return found

def measure_launches(log, steady) -> list[dict]:
    "All rounds; who goes first changes"
    found, peers = [], list(PEERS)
    for n in RANKS:
        for i in range(ROUNDS):
            steady += [spin(), spin()]
            found += measure_round(n, peers[i % 3:] + peers[:i % 3], log)
    return found


# The rest -------------------------------------------------------------------------------------------------------------------

def measure_imports() -> dict[str, list[float]]:
    "Milliseconds of a whole Python process, by what it imports; the first time of each does not count"
    found = {name: [] for name in IMPORTS}
    for i in range(8):
        for name, code in IMPORTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)
            if i: found[name].append((time.perf_counter() - start) * 1e3)
    return found

def inside(fn):
    "What `fn()` returns in a job of one rank"
    import dtnb
    job = dtnb.launch(fn, on=dtnb.Local(nproc=1))
    job.wait(200, draw=False)
    return job.result()

def measure_loops() -> dict[str, dict]:
    "Costs of an iteration outside a job and inside one"
    import loops
    return dict(outside=loops.costs(), inside=inside(loops.costs))

def measure_sessions(script, tmp, log) -> list[dict] | dict:
    "In a fresh process, as a notebook's kernel is one; it ends what it has started"
    with subprocess.Popen([sys.executable, str(HERE / script), tmp], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log) as process: answer = process.communicate()[0]
    if process.returncode: raise RuntimeError(f"{script} has not measured:\n{Path(log.name).read_text()[-3000:]}")
    return json.loads(answer)

def measure(tmp) -> dict:
    "Everything"
    import fold
    steady, load = [], [os.getloadavg()[0]]
    with open(f"{tmp}/log", "wb") as log:
        launches = measure_launches(log, steady)
        say("sessions")
        sessions = measure_sessions("session.py", tmp, log)
        steady.append(spin())
        load.append(os.getloadavg()[0])
        say("healing")
        healing = measure_sessions("healing.py", tmp, log)
        say("Slurm")
        slurm = measure_sessions("slurm.py", tmp, log)
        if "skipped" in slurm: say(slurm["skipped"])
        slurm_sessions = measure_sessions("slurm_session.py", tmp, log)
        say("recording")
        recording = measure_sessions("recording.py", tmp, log)
        say("timelines")
        timelines = measure_sessions("timeline.py", tmp, log)
        say("the launchpad")
        pad = measure_sessions("launchpad.py", tmp, log)
        if "skipped" in pad: say(pad["skipped"])
    steady.append(spin())
    say("imports")
    imports = measure_imports()
    steady.append(spin())
    say("loops")
    loops = measure_loops()
    steady.append(spin())
    say("the fold")
    folded = fold.costs(f"{tmp}/job")
    load.append(os.getloadavg()[0])
    return dict(launches=launches, sessions=sessions, healing=healing, slurm=slurm, slurm_sessions=slurm_sessions, recording=recording, timelines=timelines, pad=pad, imports=imports, loops=loops, fold=folded, steady=steady, load=load)


# Writing --------------------------------------------------------------------------------------------------------------------

def median(numbers): return statistics.median(numbers)

def spread(numbers, scale=1.0, digits=2) -> str:
    "Median (least - most)"
    return "{:,.{d}f} ({:,.{d}f} - {:,.{d}f})".format(*(scale * x for x in (median(numbers), min(numbers), max(numbers))), d=digits)

def table(head, rows, align="---:") -> str: return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] + [align] * (len(head) - 1), *rows])

def ratio(theirs, ours) -> str: return f"{median(theirs) / median(ours):.2g}x"

def pick(data, peer, n, what, since, until="step") -> list[float]:
    "Seconds between two moments of one peer's launches. torchrun is always cold: its first and later launches are the same thing"
    same = ("first", "later") if peer == "torchrun" and what != "train" else (what,)
    return [f[until] - f[since] for f in data["launches"] if (f["peer"], f["n"]) == (peer, n) and f["what"] in same]

SITUATIONS = [("from a fresh Python", "first", "born", "step"), ("library imported, first call", "first", "called", "step"), ("later calls", "later", "called", "step"),
              ("later calls, until the result is there", "later", "called", "ended"), ("later call, first *training* step", "train", "called", "step")]

def launch_rows(data):
    for n in RANKS:
        for words, *situation in SITUATIONS:
            ours, notebook, torchrun = (pick(data, peer, n, *situation) for peer in PEERS)
            yield [f"{n} ranks: {words}", spread(ours), spread(notebook), spread(torchrun), ratio(notebook, ours), ratio(torchrun, ours)]

STAGES = [("`launch()`: freeze the call, write the folder, tell the zygote", "called", "returned"), ("zygote forks the guard; its store and socket", "returned", "guard"),
          ("driver: `notebook_launcher`, the rendezvous, forking the ranks", "guard", "ranks"), ("ranks: unpack the call", "ranks", "function"),
          ("gloo group", "function", "group"), ("first all_reduce", "group", "step"), ("from there to the result in the kernel", "step", "ended")]

def stage_rows(data):
    for words, since, until in STAGES: yield [words, *(spread(pick(data, "dtnb", n, "later", since, until), 1e3, 0) for n in RANKS)]
    yield ["the same in a training job: from the function's call to its first step", *(spread(pick(data, "dtnb", n, "train", "function", "step"), 1e3, 0) for n in RANKS)]

def seconds_of(data, what, peer, n) -> list[float]: return [f["s"] for f in data["sessions"] if (f["what"], f["peer"], f["n"]) == (what, peer, n)]

def both(data, what, n): return seconds_of(data, what, "dtnb", n), seconds_of(data, what, "ipyparallel", n)

def session_lines(n) -> int:
    import session
    return session.LINES * n

def session_rows(data):
    import session
    size = f"{session.ARRAY / 1e6:g} MB"
    for what, words in (("start", "start"), ("restart", "restart")):
        for n in RANKS:
            ours, theirs = both(data, what, n)
            yield [f"{n} ranks: {words}", spread(ours), spread(theirs), ratio(theirs, ours)]
    n = max(RANKS)
    lines = session_lines(n)
    ours, theirs = both(data, "lines", n)
    yield [f"{n} ranks print {session.LINES:,} flushed lines each: all are there", spread(ours), spread(theirs), ratio(theirs, ours)]
    yield ["the same, lines a second", *("{:,.0f} ({:,.0f} - {:,.0f})".format(*(lines / f(x) for f in (median, max, min))) for x in (ours, theirs)), ""]
    for what, words in (("push", f"push {size} to {n} ranks"), ("push and read", "the same, and each rank sums it"), ("pull", f"pull {size} from one rank")):
        ours, theirs = both(data, what, n)
        yield [words, spread(ours, 1, 3), spread(theirs, 1, 3), ratio(theirs, ours)]

CELLS = [("dtnb: sent, its output taken in, drawn (`%%distributed`)", "draw", "dtnb"), ("dtnb: `Session.run`", "run", "dtnb"), ("ipyparallel: `%%px`", "draw", "ipyparallel"), ("ipyparallel: `DirectView.execute`, replies only", "run", "ipyparallel")]

def cell_rows(data):
    for words, what, peer in CELLS:
        found = [seconds_of(data, what, peer, n) for n in RANKS]
        yield [words, *(f"{1e3 * x:.1f}" for f in found for x in (median(f), p95(f))), *(ratio(seconds_of(data, "draw", "ipyparallel", n), f) for n, f in zip(RANKS, found))]

def p95(numbers): return statistics.quantiles(numbers, n=20)[-1]

def healing_of(data, what, n, peer="dtnb") -> list[float]: return [f["s"] for f in data["healing"] if (f["what"], f["peer"], f["n"]) == (what, peer, n)]

def to_healed(data, n) -> list[float]: return [b - a for a, b in zip(healing_of(data, "cause", n), healing_of(data, "healed", n))]

HEALING = [("raise, until the cause is known", "cause"), ("raise, until the cell has ended, with a new group", "healed"), ("raise, until the next cell's `all_reduce` is done", "works"), ("everybody waits for somebody: interrupt, until the cell has ended with a new group", "interrupt"),
           ("a rank is killed, until that is known", "dead"), ("fresh ranks in place of one that died; the others keep their variables", "restart one"), ("fresh ranks, all of them", "restart"), ("other number of ranks: 2 to 4 (left), 4 to 2 (right)", "resize")]

def healing_rows(data):
    for words, what in HEALING: yield [words, *(spread(healing_of(data, what, n)) for n in RANKS), *(their_word(data, what, n) for n in RANKS)]

def their_word(data, what, n) -> str:
    if what == "healed" and (waited := healing_of(data, "never", n, "ipyparallel")): return f"never (waited {waited[0]:.0f} s)"
    return f"{found[0]:.2f}" if (found := healing_of(data, what, n, "ipyparallel")) else ""

def loop_rows(data):
    out, inn = data["loops"]["outside"], data["loops"]["inside"]
    rows = [("`for _ in range(n)`", "bare", None), ("`dtnb.track`", "track", "tqdm"), ("`tqdm`, to a null file", "tqdm", None), ("`dtnb.log(loss=...)`", "log", "set_postfix"),
            ("`tqdm.set_postfix(loss=..., refresh=False)`", "set_postfix", None), ("`with dtnb.span(...)`", "span", "record_function"), ("a phase is noted, without a span", "phase", None), ("`with torch.profiler.record_function(...)`, not profiling", "record_function", None)]
    for what, key, peer in rows: yield [what, spread(out[key], 1, 0), spread(inn[key], 1, 0), ratio(inn[peer], inn[key]) if peer else ""]

def fold_rows(data):
    f = data["fold"]
    rate = [f["events"][0] / s for s in f["apply"]]
    return [["`JobView.apply`, events a second", spread(rate, 1, 0)], ["`to_rows(view)`, ms", spread(f["rows"], 1e3, 1)],
            [f"`json.dumps` of those rows ({median(f['bytes']) / 1e6:.2f} MB), ms", spread(f["dumps"], 1e3, 1)], [f"`JobReader`: first read of {f['events'][0]:,} records, ms", spread(f["first"], 1e3, 0)],
            ["`JobReader`: a poll with nothing new, ms", spread(f["idle"], 1e3, 1)], ["`JobReader`: a poll with one new record a rank, ms", spread(f["news"], 1e3, 1)]]

def import_rows(data):
    bare = median(data["imports"]["bare Python"])
    for name, code in IMPORTS.items(): yield [f"`{code}`", spread(data["imports"][name], 1, 0), f"{median(data['imports'][name]) - bare:,.0f}"]

def row(what, aim, got, unit, why, least=False) -> list[str]:
    "An aim, whether it was hit, by how much, and what decides"
    hit = got >= aim if least else got <= aim
    return [what, f"{'at least ' if least else ''}{aim:.3g}{unit}", f"{got:.3g}{unit}", f"**{'hit' if hit else 'miss'}**, {abs(1 - got / aim):.0%} {'under' if got <= aim else 'over'}", why]

def aim_rows(data):
    for n in RANKS:
        seconds = pick(data, "dtnb", n, "later", "called")
        parts = {words: median(pick(data, "dtnb", n, "later", *ends)) for words, *ends in STAGES[:-1]}
        longest = max(parts, key=parts.get)
        yield row(f"warm launch to first step, {n} ranks", AIM_LAUNCH, median(seconds), " s", f"worst {max(seconds):.2f} s; {parts[longest] / sum(parts.values()):.0%} of it is {longest}")
    inn = data["loops"]["inside"]
    cost = median([watched - bare for watched, bare in zip(inn["track"], inn["bare"])]) / 1e3
    yield row("`track` in a job, over a bare loop", AIM_TRACK, cost, " us", "a generator's step and one addition; a thread looks at the count")
    ms = {name: median(found) for name, found in data["imports"].items()}
    yield row("`import dtnb`, the whole process", AIM_IMPORT, ms["import dtnb"], " ms", f"names resolve on first use ({ms['its names']:.0f} ms with them); the bare process is {ms['bare Python']:.0f} ms of it")
    yield from session_aims(data)

def session_aims(data):
    for n in RANKS:
        ours, theirs = both(data, "start", n)
        yield row(f"warm session start, {n} ranks", AIM_START, median(ours), " s", f"worst {max(ours):.2f} s; a restart, which first ends the old ranks, {median(seconds_of(data, 'restart', 'dtnb', n)):.2f} s")
        yield row(f"ipyparallel's start / ours, {n} ranks", AIM_START_RATIO, median(theirs) / median(ours), "x", f"it starts {n} Pythons that import torch, ours are forks of one that has it; its restart / ours {ratio(*reversed(both(data, 'restart', n)))}", True)
    for n in RANKS:
        ours, theirs = both(data, "draw", n)
        yield row(f"empty cell, drawn / `%%px`, {n} ranks", AIM_CELL, median(ours) / median(theirs), "x", f"{1e3 * median(ours):.1f} ms beside {1e3 * median(theirs):.1f}; the slowest 5% {p95(ours) / p95(theirs):.2g}x; `Session.run`, not drawn, {1e3 * median(seconds_of(data, 'run', 'dtnb', n)):.1f} ms")
    n = max(RANKS)
    ours, theirs = both(data, "lines", n)
    yield row(f"flushed lines, {n} ranks, ipyparallel's time / ours", AIM_LINES, median(theirs) / median(ours), "x", f"{session_lines(n) / median(ours):,.0f} a second; a line is a write to a pipe, ipyparallel's a message through its controller", True)
    ours, theirs = both(data, "push", n)
    yield row(f"push 100 MB to {n} ranks", AIM_PUSH, median(ours), " s", f"one copy into memory that all ranks map; with a read of it on each rank {median(seconds_of(data, 'push and read', 'dtnb', n)):.2f} s; ipyparallel's push takes {ratio(theirs, ours)} as long")

    for n in RANKS:
        cause, healed = healing_of(data, "cause", n), to_healed(data, n)
        yield row(f"a rank raises: until the cause is known, {n} ranks", AIM_CAUSE, median(cause), " s", f"worst {max(cause):.2f} s; the rank formats its traceback, and its reply wakes who waits")
        yield row(f"from there until all is healed, {n} ranks", AIM_HEALED, median(healed), " s", f"worst {max(healed):.2f} s; two looks at the others, their connections shut, their tracebacks, a new group")
        dead, one = healing_of(data, "dead", n), healing_of(data, "restart one", n)
        yield row(f"a rank is killed: until that is known, {n} ranks", AIM_DEAD, median(dead), " s", f"worst {max(dead):.2f} s; the guard sees it at once and writes it down")
        yield row(f"a fresh rank in its place that works, {n} ranks", AIM_RESTART, median(one), " s", f"worst {max(one):.2f} s; a fork of the zygote, its IPython, a new group")
        every = healing_of(data, "restart", n)
        yield row(f"fresh ranks that work, {n} ranks", AIM_RESTART, median(every), " s", f"worst {max(every):.2f} s; the old ones end first; ipyparallel {their_word(data, 'restart', n)} s")

SUBMITS = {"dtnb": "dtnb, s", "sbatch": "`sbatch`, `srun python`, s", "submitit": "submitit, s", "sbatch, no import": "`sbatch`, `srun python`, no torch, s"}
ENDINGS = {"return": "all ranks return", "exit": "rank 1 exits with status 3 (`os._exit`)", "scancel": "`scancel`, not by the handle"}
WATCHED = dict(idle="nobody is asked", poller="dtnb: the watcher alone", dtnb="dtnb: `job.state` of all", submitit="submitit: `job.done()` of all")

def lines_of(slurm, peer, since="called", until="last") -> list[float]: return [f[until] - f[since] for f in slurm["lines"] if f["peer"] == peer]

def submit_rows(slurm):
    for words, *ends in [("call of submit, until the first line of all ranks can be read", "called", "last"), ("the same, the first rank's", "called", "first"), ("until the call returns", "called", "returned"),
                         ("from there until the last rank's function begins", "returned", "began"), ("its `import torch`", "began", "imported"), ("from there until that line can be read", "imported", "last")]:
        found = [lines_of(slurm, peer, *ends) for peer in SUBMITS]
        yield [words, *(spread(f) for f in found), *([ratio(f, found[0]) for f in found[1:3]] if ends[0] == "called" and ends[1] != "returned" else ["", ""])]

def ends_of(slurm, how, peer, accounting=(False, True)) -> list: return [e["s"] for e in slurm["ends"] if e["how"] == how and e["peer"] == peer and e["accounting"] in accounting]

def ends_rows(slurm):
    for accounting in sorted({e["accounting"] for e in slurm["ends"]}):
        for how, words in ENDINGS.items():
            found = [ends_of(slurm, how, peer, (accounting,)) for peer in ("dtnb", "submitit")]
            yield [f"{words}; {'with' if accounting else 'no'} accounting", *(f"never (waited {slurm['never']} s)" if None in f else spread(f) for f in found)]

def watch_rows(slurm):
    for w in slurm["watched"]: yield [WATCHED[w["what"]], f"{w['cpu']:.2f}", f"{w['controller']:.2f}", f"{w['calls']:.0f}"]

def slurm_aims(slurm):
    ours, bare, printed = (median(lines_of(slurm, peer)) for peer in ("dtnb", "sbatch", "sbatch, no import"))
    guard, last = median(lines_of(slurm, "dtnb", "returned", "guard")), median(lines_of(slurm, "dtnb", "guard", "last"))
    yield row("submit to first line / bare `sbatch`, `srun python`, both with `import torch`", AIM_SUBMIT, ours / bare, "x", f"{ours:.2f} s beside {bare:.2f}, submitit {median(lines_of(slurm, 'submitit')):.2f}; {guard:.2f} s from sbatch's answer to the first word of the later guard, which has imported torch for its rank; {last:.2f} s from there to the line")
    both = median(slurm["imports"]["2"])
    yield row("submit to first line; aim: 1.5 times bare without torch, and `import torch` in two Pythons at once", AIM_SUBMIT * printed + both, ours, " s", f"bare {printed:.2f} s, the two imports {both:.2f} s, one alone {median(slurm['imports']['1']):.2f} s")
    why = {"return": "the guards write it down", "exit": "the guard sees it and writes it down; the other's guard reads that", "scancel": "Slurm's own 0.7 s, then the next look of the watcher (every 2 s)"}
    for how, words in ENDINGS.items():
        found = ends_of(slurm, how, "dtnb")
        yield row(f"{words}: until `job.state` says so", AIM_STATE, median(found), " s", f"worst {max(found):.2f} s; {why[how]}")

def slurm_section(slurm) -> str:
    "The part of README.md on Slurm; begins with its heading"
    if "skipped" in slurm: return f"## Jobs on Slurm\n\nNot measured: {slurm['skipped']}.\n"
    no = f" Nothing was measured with accounting: {slurm['no_accounting']}." if slurm["no_accounting"] else ""
    return f"""## Jobs on Slurm

A private Slurm {slurm["version"]} of two nodes, both on this machine's {len(os.sched_getaffinity(0))} cores, so two ranks that import torch are in each other's way, and two nodes of a real cluster are not. Measured on {slurm["day"]} (`python benchmarks/run.py slurm` measures this section alone); load average {", ".join(f"{x:.1f}" for x in slurm["load"])} on the way. submitit {version("submitit")}.{no}{slurm.get("note", "")}

{table(["", "aim", "median", "", "what decides"], slurm_aims(slurm), "---")}

One rank a node, {slurm["repeats"]} of each, in turn; seconds. The function imports torch and prints. dtnb's ranks are forks of a guard that has imported it, so there is nothing left to import for the function.

{table(["", *SUBMITS.values(), "`sbatch` / dtnb", "submitit / dtnb"], submit_rows(slurm))}

`import torch` in a plain Python at the same time: {spread(slurm["imports"]["1"])} s; in two at once {spread(slurm["imports"]["2"])} s.

Seconds from the real end (the last act of the last rank; the call of `scancel`) until a handle that is asked all the time says that the job has ended (`job.state`, submitit's `job.done()`). Jobs are {slurm["age"]} s old: submitit asks `sacct` at intervals that grow with the age of its newest job, half of it and at most 10 minutes; ours don't grow. It sees results as files at once, and without accounting nothing else.

{table(["", "dtnb, s", "submitit, s"], ends_rows(slurm))}

{slurm["jobs"]} held jobs, every handle asked once in {slurm["look"]} s; a minute's worth, from {slurm["watch"]} s. CPU of the Python and of Slurm's commands together; of the controller. submitit's first {slurm["watch"]} s after a submission: it asks ever less, and learns as much later.

{table(["", "CPU, s a minute", "`slurmctld`, s a minute", "Slurm's commands a minute"], watch_rows(slurm))}
"""

PAINTS = dict(form="the form is on the page", known="and its choices: all partitions", cards="and cards of the newest jobs", pane="a click on Cluster, until its three tables are there", typed="a number is typed, until the script has it", busy="the kernel was held by `dtnb.launchpad(train)`")

def pad_section(pad) -> str:
    "What README.md says of the launchpad"
    if "skipped" in pad: return f"## The launchpad\n\nNot measured: {pad['skipped']}.\n"
    rows = ([words, f"{pad['first'][key]:.2f}", spread([f[key] for f in pad["later"]])] for key, words in PAINTS.items())
    return f"""## The launchpad

{pad["jobs"]} jobs in the queue and as many ended ones below `DTNB_HOME`, {pad["partitions"]} partitions, {pad["nodes"]} nodes: made-up answers of Slurm's commands, in a real JupyterLab and a real Chromium. Seconds from the start of the cell; the first in a new kernel, which imports dtnb, then {len(pad["later"])} more. Measured on {pad["day"]} (`python benchmarks/run.py launchpad` measures this section alone); load average {", ".join(f"{x:.1f}" for x in pad["load"])} before and after.

{table(["until", "first, s", "later, s"], rows)}
"""

def machine(data) -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in ("torch", "accelerate", "ipyparallel", "tqdm"))
    return (f"{len(os.sched_getaffinity(0))} cores ({platform.machine()}, shared with other work), Python {platform.python_version()}, {peers}; gloo on loopback, `OMP_NUM_THREADS=1`. "
            f"Load average at the start, before the faults and at the end {', '.join(f'{x:.1f}' for x in data['load'])}. A fixed piece of pure Python took {spread(data['steady'], 1e3, 0)} ms through the run: the width says how steady the machine was.")

def section_of(script):
    "The function that writes a script's section, imported when it is called"
    return lambda found: importlib.import_module(script).section(found)

def readme(data) -> str:
    "The text of README.md"
    return f"""# Benchmarks

Written by `python benchmarks/run.py` (`make bench`) in {data["minutes"]:.1f} minutes; don't edit. The peers ran in the same run, in turn, on the same machine, so the ratios mean more than the seconds. Figures are the median (least - most).

{machine(data)}

## Aims

{table(["", "aim", "median", "", "what decides"], aim_rows(data), "---")}

## Launch to first step

Seconds until the last rank has completed its first `all_reduce`; in a training job, until it has made the first step of an optimizer under `Accelerator`. Of each line {ROUNDS} launches by fresh processes, {ROUNDS * WARM} later ones ({ROUNDS * WARM} of torchrun in all), {ROUNDS} training jobs.

- `notebook_launcher` is `accelerate.notebook_launcher`, called from a Python that stays, as in a notebook. It forks that Python, which has torch already and waits until the ranks have ended; dtnb's kernel never imports torch, is not blocked, and its ranks outlive it. In the first call dtnb still has to start the process (the zygote) that its ranks are forked from.
- `torchrun` starts everything anew each time: one figure for the first call and the later ones.
- The last two columns say how many times longer the peer took. **Below 1 the peer is faster.**

{table(["", "dtnb, s", "notebook_launcher, s", "torchrun, s", "notebook_launcher / dtnb", "torchrun / dtnb"], launch_rows(data))}

Where a later call of dtnb spends its time, ms:

{table(["", *(f"{n} ranks" for n in RANKS)], stage_rows(data))}

## Sessions

A session is ready, and so is a cluster of ipyparallel, when torch is imported and gloo initialised on all ranks, and all of them have answered. Seconds; dtnb's zygote is warm. ipyparallel has its defaults (`Cluster(n=N).start_and_connect_sync()`, one start and one restart of its engines; its cluster was stopped while ours started).

{table(["", "dtnb, s", "ipyparallel, s", "ipyparallel / dtnb"], session_rows(data))}

An empty cell (`pass`) from a plain Python, ms; {len(seconds_of(data, "run", "dtnb", max(RANKS)))} of each, in turn:

{table(["", *(f"{n} ranks, {p}" for n in RANKS for p in ("p50", "p95")), *(f"`%%px` / this, {n} ranks" for n in RANKS)], cell_rows(data))}

## Faults, and fresh ranks

Seconds. A rank raises while the others are in `all_reduce`; the time is taken in the rank just before. {len(healing_of(data, "cause", max(RANKS)))} faults a column, the first of a session among them; {len(healing_of(data, "restart", max(RANKS)))} of everything else. After a fault or a change the clock runs until a collective of all ranks has answered.

ipyparallel: one fault, one restart of its engines, whose variables are lost. The cause is known to who asks for the first exception; `%%px` waits for the end of the cell. What is empty it does not have.

{table(["", *(f"dtnb, {n} ranks" for n in RANKS), *(f"ipyparallel, {n} ranks" for n in RANKS)], healing_rows(data))}

{slurm_section(data["slurm"])}
{section_of("slurm_session")(data["slurm_sessions"])}
{section_of("recording")(data["recording"])}
{section_of("timeline")(data["timelines"])}
{pad_section(data["pad"])}
## An iteration of a watched loop

Nanoseconds an iteration, the loop itself included. Inside a job the rank's reporter samples the loop ten times a second.

{table(["", "outside a job, ns", "inside a job, ns", "peer / dtnb, inside"], loop_rows(data))}

## A job of 1,024 ranks

{table(["", "median (least - most)"], fold_rows(data))}

## Import

{table(["", "whole process, ms", "over bare Python, ms"], import_rows(data))}
"""

SECTIONS = dict(slurm=slurm_section, launchpad=pad_section) | {name: section_of(name) for name in ("slurm_session", "recording", "timeline")}   # those that can be measured alone

def only(script, section, tmp):
    "Measure and write that section alone"
    with open(f"{tmp}/log", "wb") as log: found = measure_sessions(script, tmp, log)
    if "skipped" in found: return print(found["skipped"])
    print(splice(section(found)))

def splice(section) -> str:
    "Put a section where it was, or before `An iteration of a watched loop`"
    file, heading = HERE / "README.md", section.splitlines()[0]
    text = re.sub(rf"^{re.escape(heading)}\n.*?(?=^## )", "", file.read_text(), flags=re.M | re.S)
    before, loop, after = text.partition("## An iteration of a watched loop")
    file.write_text(f"{before}{section}\n{loop}{after}")
    return section

def main():
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="dtnb-bench-") as tmp:
        os.environ.update(DTNB_HOME=f"{tmp}/home", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        for name in sys.argv[1:2]: return only(f"{name}.py", SECTIONS[name], tmp)
        data = measure(tmp)
    text = readme(data | dict(minutes=(time.time() - start) / 60))
    (HERE / "README.md").write_text(text)
    print(text)

if __name__ == "__main__": main()
