"""What a session costs, beside a cluster of ipyparallel: `python session.py FOLDER` answers with a line of JSON, one record a measurement.

A session is ready, and so is a cluster, when torch is imported and gloo initialised on all ranks, and all of them have answered."""
import json, os, signal, sys, time
from contextlib import closing, redirect_stdout
from pathlib import Path

RANKS, STARTS, BLOCKS, BLOCK = (2, 4), 4, 10, 10   # starts and restarts of ours; a block is so many cells of one kind, then comes the next kind
LINES, ARRAY, REPEATS, LIMIT = 5_000, 100_000_000, 5, 240   # lines a rank; bytes; pushes and pulls; seconds for everything

PRINT = f"for i in range({LINES}): print('line', i, flush=True)"
JOIN = "import torch, torch.distributed as dist\ndist.init_process_group('gloo', init_method='file://{store}', rank={rank}, world_size={n})"
SUM = "t = torch.ones(1); dist.all_reduce(t); print(t.item())"


class Ours:
    name = "dtnb"
    def __init__(self, n, folder):
        from dtnb.session import Session
        self.session = Session(nproc=n)

    @classmethod
    def of(cls, session):
        ours = cls.__new__(cls)
        ours.session = session
        return ours

    def restart(self): self.session.restart()
    def close(self): self.session.close()
    def run(self, code): self.session.run(code)

    def draw(self, code):
        "What `%%distributed` does"
        from dtnb.widgets.cell import CellDisplay
        cell = self.session.send(code)
        screen = CellDisplay()
        cell.wait(each=screen.update)
        screen.finish(cell)

    def printed(self, code) -> list[str]:
        cell = self.session.run(code)
        return [cell.text(r) for r in cell.ranks]

    def push(self, x): self.session.push(x=x)
    def pull(self): return self.session.pull("x", ranks=0)[0]


class Theirs:
    name = "ipyparallel"
    def __init__(self, n, folder):
        import ipyparallel
        self.n, self.folder, self.before = n, folder, set()
        self.cluster = ipyparallel.Cluster(n=n)        # its own atexit hook stops what comes up when the rest fails
        self.client = self.cluster.start_and_connect_sync()
        self._ready()

    def _ready(self):
        "Wait for engines that were not there before; all join a group"
        from ipyparallel.client.magics import ParallelMagics
        end = time.monotonic() + 60
        while len(ids := sorted(set(self.client.ids) - self.before)) < self.n:
            if time.monotonic() > end: raise RuntimeError(f"only engines {ids} of {self.n} have come")
            time.sleep(.01)
        self.before |= set(ids)
        store = Path(self.folder, f"store-{time.time_ns()}")
        joined = [self.client[i].execute(JOIN.format(store=store, rank=r, n=self.n), silent=False, block=False) for r, i in enumerate(ids)]
        for got in joined: got.get(60)
        self.first, self.view = self.client[ids[0]], self.client[ids]
        self.view.block = True
        self.px = ParallelMagics(None, self.view)

    def restart(self):
        self.cluster.restart_engines_sync()
        self._ready()

    def close(self):
        self.client.close()
        self.cluster.stop_cluster_sync()

    def run(self, code): self.view.execute(code, silent=False, block=True)
    def draw(self, code): self.px.parallel_execute(code)   # `%%px`

    def printed(self, code) -> list[str]:
        got = self.view.execute(code, silent=False, block=False)
        got.get(120)
        got.wait_for_output(60)
        return got.stdout

    def push(self, x): self.view.push(dict(x=x), block=True)
    def pull(self): return self.first.pull("x", block=True)


def timed(fn):
    start = time.perf_counter()
    value = fn()
    return time.perf_counter() - start, value

def check(side, n):
    "The ranks are one group, and print"
    if [float(t) for t in side.printed(SUM)] != [n] * n: raise RuntimeError(f"{side.name}: {n} ranks are not one group")

def warm_up():
    "A zygote with all its imports, also the late ones: ipyparallel is there, and its CPU time has stood still for a while"
    import ipyparallel   # as `%load_ext dtnb` does
    from dtnb.launchers.local import keeper
    zygote = keeper().get()
    zygote.wait_ready()
    proc, end, spent, since = Path(f"/proc/{zygote.process.pid}"), time.monotonic() + 60, None, 0
    while time.monotonic() < end:
        used = (proc / "stat").read_text().rpartition(")")[2].split()[11:13]
        if used != spent: spent, since = used, time.monotonic()
        if "_zmq" in (proc / "maps").read_text() and time.monotonic() - since > 1.5: return
        time.sleep(.1)
    raise RuntimeError("the zygote still imports")

def start(side, n, folder, note):
    "A side that is up, restarted once, and measured"
    seconds, up = timed(lambda: side(n, folder))
    try:
        note("start", up, n, seconds)
        check(up, n)
        note("restart", up, n, timed(up.restart)[0])
        check(up, n)
    except BaseException:
        up.close()
        raise
    return up

def measure_cells(ours, theirs, n, note):
    "Empty cells, in turn"
    ways = [(what, side, getattr(side, what)) for what in ("run", "draw") for side in (ours, theirs)]
    for block in range(-1, BLOCKS):
        for what, side, fn in ways:
            for _ in range(BLOCK):
                seconds, _ = timed(lambda: fn("pass"))
                if block >= 0: note(what, side, n, seconds)

def measure_lines(side, n, note):
    seconds, texts = timed(lambda: side.printed(PRINT))
    if [t.count("\n") for t in texts] != [LINES] * n: raise RuntimeError(f"{side.name}: of {LINES} lines a rank came {[t.count(chr(10)) for t in texts]}")
    note("lines", side, n, seconds)

def measure_arrays(side, n, note):
    "Push to all ranks, read it there, pull from one; what came back is what was sent"
    import numpy as np
    sent = np.random.default_rng(0).random(ARRAY // 8)
    pushed, _ = timed(lambda: side.push(sent))
    note("push", side, n, pushed)
    note("push and read", side, n, pushed + timed(lambda: side.run("total = x.sum()"))[0])
    seconds, back = timed(side.pull)
    note("pull", side, n, seconds)
    if not np.array_equal(sent, back): raise RuntimeError(f"{side.name}: another array came back")

def measure(folder, note, ranks=RANKS):
    warm_up()
    for n in ranks:
        for _ in range(STARTS): start(Ours, n, folder, note).close()
        with closing(start(Theirs, n, folder, note)) as theirs, closing(Ours(n, folder)) as ours:
            measure_cells(ours, theirs, n, note)
            if n != max(ranks): continue
            for side in (ours, theirs, ours, theirs, ours): measure_lines(side, n, note)
            for side in (ours, theirs) * REPEATS: measure_arrays(side, n, note)

def costs(folder, ranks=RANKS) -> list[dict]:
    "Seconds of everything, as `{what, peer, n, s}`"
    found = []
    def note(what, side, n, seconds): found.append(dict(what=what, peer=side.name, n=n, s=seconds))
    os.environ["IPYTHONDIR"] = str(Path(folder, "ipython"))
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet): measure(folder, note, ranks)
    return found

def answer(costs, limit: int):
    "Print what `costs(FOLDER)` gives as a line of JSON. Not killed from outside, so that it can stop what it has started"
    def late(*_): raise TimeoutError(f"not done after {limit} s")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    print(json.dumps(costs(sys.argv[1])))

if __name__ == "__main__": answer(costs, LIMIT)
