"""How soon the launchpad is on the page, with 500 jobs and 200 partitions: `python launchpad.py FOLDER` answers with a line of JSON, the measurements or why there are none.

A real JupyterLab and a real Chromium; Slurm's commands are scripts that print made-up answers, so that nothing of a cluster's own time is in the figures. The 500 jobs are in the queue, and as many ended ones are in `DTNB_HOME`."""
import json, os, signal, sys, time
from contextlib import redirect_stdout
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
PARTITIONS, JOBS, NODES, ROUNDS, LIMIT = 200, 500, 1000, 5, 400   # LIMIT: seconds for everything
SEP, END = "\x1f", "\x1e\n"

CELL = """import dtnb, time
def train(lr): return lr
began = time.perf_counter()
pad = dtnb.launchpad(train, 3e-4, on=dtnb.Slurm())
from IPython.display import display
display(pad)
seconds = time.perf_counter() - began"""

def answers() -> dict[str, str]:
    "What the commands print"
    row = lambda *fields: SEP.join(map(str, fields)) + END
    sinfo = "".join(row(f"part{i}" + "*" * (i == 0), NODES // PARTITIONS, 64, 512000, "2-00:00:00", "1:00:00", "up", "mixed", "100/220/0/320", "gpu:a100:4(S:0-1)") for i in range(PARTITIONS))
    waits = [row(1000 + i, "me", f"part{i % PARTITIONS}", "PENDING", "Priority", 2, 8, "gres:gpu:a100:2", "0:00", "10:00", "N/A", JOBS - i, "", f'sweep | "{i}"') for i in range(JOBS - 20)]
    runs = [row(i, "me", f"part{i}", "RUNNING", "None", 1, 4, "gres:gpu:1", "1:02:03", "10:00:00", "2026-11-30T16:03:52", 5, f"node{i}", f"run {i}") for i in range(20)]
    nodes = "\n\n".join(f"NodeName=node{i} Arch=x86_64 CoresPerSocket=32\n   CPUAlloc={i % 64} CPUEfctv=64 CPUTot=64 CPULoad=0.65\n   Gres=gpu:a100:4(S:0-1)\n   GresUsed=gpu:a100:{i % 5}(IDX:0-1)\n   RealMemory=512000 AllocMem=64000 FreeMem=22193 Sockets=1 Boards=1\n"
                        f"   State=MIXED ThreadsPerCore=1 TmpDisk=0\n   Partitions=part{i % PARTITIONS}" for i in range(NODES))
    return dict(sinfo=sinfo, squeue="".join(waits + runs), ahead="".join(row(1000 + i, JOBS - i, f"part{i % PARTITIONS}") for i in range(JOBS - 20)), nodes=nodes,
                partitions="\n\n".join(f"PartitionName=part{i}\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   MaxNodes=4 MaxTime=2-00:00:00" for i in range(PARTITIONS)))

def pretend(folder: Path):
    "The commands, first on PATH"
    for name, text in answers().items(): (folder / name).write_text(text)
    scripts = dict(sinfo=f"cat {folder}/sinfo", squeue=f'case "$*" in *--me*) cat {folder}/squeue;; *) cat {folder}/ahead;; esac', scontrol=f'case "$*" in *node*) cat {folder}/nodes;; *) cat {folder}/partitions;; esac',
                   sacctmgr="echo 'lab|normal'", sbatch="echo 'sbatch: Job 7 to start at 2026-11-30T16:03:52 using 1 processors on nodes node1 in partition part0' >&2", sacct="exit 1")
    (folder / "bin").mkdir()
    for name, text in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o700)
    os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"

def ended_jobs():
    "As many jobs that have ended, in DTNB_HOME"
    from dtnb.event import EventKind, EventWriter
    from dtnb.job import JobPaths, JobSpec, JobState, jobs_dir, make_private
    for i in range(JOBS):
        paths = JobPaths(make_private(jobs_dir() / f"0101-000000-old-{i:04d}"))
        paths.spec.write_text(JobSpec(paths.root.name, "old", "Local", dict(nproc=2), 1, 2, created=time.time() - 1e4 + i, host="here").to_json())
        writer = EventWriter(paths.launcher)
        for state in (JobState.RUNNING, JobState.DONE): writer.write(EventKind.STATE, state=state)

FIRST = """([what, has]) => new Promise(done => { const began = performance.now(), look = () => eval(has) ? done(performance.now() - began) : requestAnimationFrame(look); eval(what); look() })"""
GO = "window.jupyterapp.commands.execute('notebook:run-cell')"

def measure(folder: str) -> dict:
    sys.path.insert(0, str(TESTS))
    try: import playwright
    except ImportError: return dict(skipped="no playwright here")
    from lab import CHROMIUM, Lab, Page
    if CHROMIUM is None: return dict(skipped="no Chromium here: apt-get install chromium")
    from test_browser import write_notebook
    tmp = Path(folder) / "launchpad"
    (tmp / "notebooks").mkdir(parents=True)
    (tmp / "made-up").mkdir()
    pretend(tmp / "made-up")
    ended_jobs()
    write_notebook(tmp / "notebooks" / "a.ipynb", CELL, "pad.close()", "print(seconds)")
    data, rounds = dict(partitions=PARTITIONS, jobs=JOBS, nodes=NODES, day=time.strftime("%Y-%m-%d"), load=[os.getloadavg()[0]]), []
    with Lab(tmp / "notebooks", tmp) as lab, Page(lab, 1400, 1200) as p:
        p.open("a.ipynb")
        for i in range(ROUNDS + 1):
            until = lambda what, has: p.page.evaluate(FIRST, [what, has]) / 1e3
            p.page.evaluate("() => { const n = window.jupyterapp.shell.currentWidget.content; n.activeCellIndex = 0; return null }")
            form = until(GO, "document.querySelectorAll('.dtnb-pad .dtnb-field').length > 5")
            known = form + until("", "document.querySelectorAll('.dtnb-field[data-field=partition] option').length > 100")
            cards = known + until("", "document.querySelectorAll('.dtnb-card').length > 10")
            p.wait_done([0])
            pane = until("[...document.querySelectorAll('.dtnb-pane .dtnb-button')][0].click()", "document.querySelectorAll('.dtnb-table').length === 3")
            typed = until("const e = document.querySelector('.dtnb-field[data-field=nodes] input'); e.value = '3'; e.dispatchEvent(new Event('input', { bubbles: true })); e.dispatchEvent(new Event('change', { bubbles: true }))", "document.querySelector('pre.dtnb-script')?.innerText.includes('--nodes=3')")
            p.run_cell(2)
            p.wait_done([2])
            busy = float(p.page.locator(".jp-OutputArea-output pre").last.inner_text())
            p.run_cell(1)
            p.page.wait_for_function("() => !document.querySelector('.dtnb-pad')", timeout=60_000)
            rounds.append(dict(form=form, known=known, cards=cards, pane=pane, typed=typed, busy=busy))
    data["load"].append(os.getloadavg()[0])
    return data | dict(first=rounds[0], later=rounds[1:])

def _late(*_): raise TimeoutError(f"not done after {LIMIT} s")

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _late)   # not killed from outside, so that it can stop what it has started
    signal.alarm(LIMIT)
    os.environ["DTNB_HOME"] = f"{sys.argv[1]}/launchpad-home"   # its 500 jobs are nobody else's
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet): data = measure(Path(sys.argv[1]))
    print(json.dumps(data))
