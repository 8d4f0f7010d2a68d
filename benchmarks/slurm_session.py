"""What a session on two nodes of Slurm costs, beside ipyparallel's own launcher: `python slurm_session.py FOLDER` answers with a line of JSON, the measurements or why there are none; `run.py slurm_session` writes the section.

The Slurm is tests/slurm's, private and real; both nodes are this machine. `DTNB_HOME` and FOLDER are what the nodes share."""
import os, sys, time
from contextlib import redirect_stdout
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
NODES, SESSIONS, CELLS, LIMIT = 2, 4, 30, 500   # nodes; starts of a session; empty cells of each; seconds for everything


class OurSession:
    name = "dtnb"
    def __init__(self, folder):
        import dtnb
        self.session = dtnb.Session(on=dtnb.Slurm(nodes=NODES, nproc_per_node=2))

    def run(self, code): self.session.run(code)
    def printed(self, code): return [(c := self.session.run(code)).text(r) for r in self.session.ranks][:1]
    def close(self): self.session.close()


class TheirSession:
    "ipyparallel's own Slurm launcher, told to use both nodes; its controller is on this machine. Ready as ours is: torch is imported, gloo initialised, all have answered"
    name = "ipyparallel"
    TEMPLATE = "#!/bin/sh\n#SBATCH --export=ALL --nodes={nodes} --ntasks-per-node=2 --output={out}\nsrun {{program_and_args}}\n"
    def __init__(self, folder):
        import ipyparallel
        from traitlets.config import Config
        from session import JOIN
        config, n, before = Config(), 2 * NODES, os.getcwd()
        config.SlurmEngineSetLauncher.batch_template = self.TEMPLATE.format(nodes=NODES, out=folder / "ipengine.log")
        os.chdir(folder)                                   # it writes its script where it is
        try:
            self.cluster = ipyparallel.Cluster(n=n, engines="slurm", config=config)
            self.client = self.cluster.start_and_connect_sync(n=n)
            self.client.wait_for_engines(n, timeout=120)
            store = folder / f"store-{time.time_ns()}"
            for got in [self.client[i].execute(JOIN.format(store=store, rank=r, n=n), silent=False, block=False) for r, i in enumerate(sorted(self.client.ids))]: got.get(120)
            self.view = self.client[:]
        except BaseException:
            self.cluster.stop_cluster_sync()
            raise
        finally: os.chdir(before)

    def run(self, code): self.view.execute(code, silent=False, block=True)
    def printed(self, code):
        got = self.view.execute(code, silent=False, block=False)
        got.get(60)
        got.wait_for_output(60)
        return got.stdout[:1]

    def close(self):
        self.client.close()
        self.cluster.stop_cluster_sync()


def measure_sessions(cluster, folder) -> list[dict]:
    "Seconds, in turn: from the call until all ranks are one group, and for an empty cell"
    from session import SUM
    found = []
    os.environ["IPYTHONDIR"] = str(folder / "ipython")
    OurSession(folder).close()                             # warms the page cache
    for i in range(SESSIONS):
        for side in (OurSession, TheirSession)[::1 if i % 2 else -1]:
            called = time.perf_counter()
            up = side(folder)
            found.append(dict(peer=side.name, what="start", s=time.perf_counter() - called))
            try:
                if [float(t) for t in up.printed(SUM)] != [2 * NODES]: raise RuntimeError(f"{side.name}: the ranks are not one group")
                for _ in range(CELLS):
                    called = time.perf_counter()
                    up.run("pass")
                    found.append(dict(peer=side.name, what="cell", s=time.perf_counter() - called))
            finally: up.close()
            cluster._wait(lambda: not cluster.run("squeue", "-h").stdout.strip(), 60, "an empty queue")
    return found


def measure(folder) -> dict:
    sys.path.insert(0, str(TESTS))                         # `slurm` there is a package, so this must stand before this folder
    from slurm.cluster import Cluster, missing
    if reason := missing(): return dict(skipped=f"no Slurm here: {reason}")
    load = [os.getloadavg()[0]]
    with Cluster() as cluster:
        os.environ["SLURM_CONF"] = cluster.env["SLURM_CONF"]
        found, words = measure_sessions(cluster, folder), cluster.run("sinfo", "--version").stdout.split()
    return dict(found=found, version=words[-1], day=time.strftime("%Y-%m-%d"), load=[*load, os.getloadavg()[0]])

def section(data) -> str:
    "The part of README.md on sessions on Slurm; begins with its heading"
    from run import ratio, spread, table
    if "skipped" in data: return f"## Sessions on Slurm\n\nNot measured: {data['skipped']}.\n"
    rows = []
    for what, words in dict(start="start: all ranks are there and one group", cell="an empty cell on all ranks").items():
        ours, theirs = ([f["s"] for f in data["found"] if f["what"] == what and f["peer"] == peer] for peer in ("dtnb", "ipyparallel"))
        rows.append([words, spread(ours, digits=3), spread(theirs, digits=3), ratio(theirs, ours)])
    return f"""## Sessions on Slurm

{NODES} nodes with two ranks each, of a private Slurm {data["version"]}; both are this machine. Beside the engines of ipyparallel's own Slurm launcher (its controller on this machine, not encrypted), in turn, {SESSIONS} of each; seconds. Measured on {data["day"]} (`python benchmarks/run.py slurm_session` measures this section alone); load average {", ".join(f"{x:.1f}" for x in data["load"])} before and after.

{table(["", "dtnb", "ipyparallel", "ipyparallel / dtnb"], rows)}
"""

def quietly(folder) -> dict:
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet): return measure(Path(folder))

if __name__ == "__main__":
    from session import answer
    answer(quietly, LIMIT)
