"Recording traces on real ranks: every way to ask, the same steps on all of them, and what becomes of it when something goes wrong."
import gzip, json, os, re, signal, subprocess, sys, textwrap, time
from pathlib import Path

import pytest

import dtnb
from conftest import wait_until
from dtnb.event import EventReader
from dtnb.launchers.local import Local
from dtnb.session import Session
from dtnb.trace.convert import read_trace
from dtnb.trace.recordings import recordings
from dtnb.view import tracing
from slurm import SSH
from slurm.ssh import missing as missing_ssh
from test_session import heard, notebook, own_home

SETUP = """
import time, torch, dtnb, tqdm
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = DDP(torch.nn.Linear(16, 4))
opt = torch.optim.SGD(model.parameters(), lr=.01)
loader = DataLoader(TensorDataset(torch.randn(4000, 16)), batch_size=4)
def step(x):
    model(x).pow(2).mean().backward(); opt.step(); opt.zero_grad()
    time.sleep(.005)
def train(n, show=iter):
    for i, (x,) in zip(range(n), show(loader)): step(x)
def counted(n):
    for i in dtnb.track(range(n)): step(torch.ones(4, 16))
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with own_home(tmp_path_factory): s = Session(2)
    s.run(SETUP)
    yield s
    s.close()


@pytest.fixture
def s(kept):
    "The session that these tests share, with fresh ranks if the last one broke it"
    try: kept.run(SETUP, timeout=20)
    except dtnb.DtnbError:
        kept.restart()
        kept.run(SETUP)
    return kept


def stages(session, name, ranks=(0, 1), seconds=60):
    "What the ranks have said last of a recording, when it is over"
    def over():
        said = recordings(session.job.view).get(str(name), {})
        return said if set(said) == set(ranks) and all(x["stage"] in ("done", "failed") for x in said.values()) else None
    return wait_until(over, seconds, f"the end of recording {name}")


def traces(session, name):
    "Columns by rank; all ranks must have recorded, and the raw files must be ordinary ones"
    said = stages(session, name)
    assert {x["stage"] for x in said.values()} == {"done"}, said
    found = {r: read_trace(session.paths.columns(r, name)) for r in said}
    wait_until(lambda: not any(list(session.paths.rank(r).glob(".trace*")) for r in found), 60, "the raw files")   # they are packed after the columns
    for r, c in found.items():
        with gzip.open(session.paths.trace(r, name)) as f: raw = json.load(f)
        assert raw["dtnb"]["rank"] == r == c.meta["rank"] and raw["dtnb"]["run"] == f"{session.id}/{name}" and raw["distributedInfo"]["world_size"] == 2
        assert raw["dtnb"]["marks"] == sorted(raw["dtnb"]["marks"]) and not list(session.paths.rank(r).glob(".trace*"))
    return found


def numbers(c): return [n for n, _, _ in c.meta["steps"]]
def calls(c, name): return sum(c.names[i].text == name for i in c.name.tolist())


WAYS = dict(optimizer=(3, "train(9)", [2, 3, 4]),                                   # found when it steps for the second time
            tqdm=(3, "train(9, tqdm.tqdm)", [1, 2, 3]),
            track=(2, "counted(8)", [1, 2]),
            epochs=(2, "for epoch in tqdm.trange(2): counted(3)", [1, 2]),
            shown_epochs=(3, "for epoch in dtnb.track(range(2)): train(5)", [2, 3, 4]),   # each round has several steps of an optimizer
            by_hand=(3, "with tqdm.tqdm(total=7) as bar:\n    for i in range(7): step(torch.ones(4, 16)); bar.update(1)", [1, 2, 3]),
            all_of_it=(-1, "counted(3)", [0, 1, 2]),
            no_step=(-1, "torch.ones(8, 8) @ torch.ones(8, 8)", []),
            block=(0, "with dtnb.profile(steps=2) as p: counted(8)\np.path.name", [1, 2]),
            said=(0, "with dtnb.profile(steps=2, warmup=0) as p:\n    for i in range(6): step(torch.ones(4, 16)); p.step()", [0, 1]),
            memory=(0, "with dtnb.profile(memory=True, stacks=True, shapes=True): counted(2)", [0, 1]))

@pytest.mark.parametrize("way", WAYS)
def test_the_steps_that_are_recorded(s, way):
    asked, code, steps = WAYS[way]
    cell = s.send(code, trace=asked)
    assert cell.wait(60) == "done", cell.exception()
    for r, c in traces(s, cell.number).items():
        assert numbers(c) == (steps or [0]) and c.meta["steps_by"] == ("marks" if steps else "whole"), (r, c.meta["steps"])
        if steps: assert calls(c, "aten::linear") == calls(c, "Optimizer.step#SGD.step") == len(steps)
        assert sum("all_reduce" in op for _, _, op, _ in c.meta["flight"]) == len(steps) and c.meta["clock"] == dict(offset=0, rtt=0, how="one host")
        assert bool(c.memory) == (way == "memory") and any(x.cat == "python_function" for x in c.names) == (way == "memory")
        assert any("Input Dims" in text for text in c.args_table) == (way == "memory")
        if way in ("tqdm", "track"): assert c.meta["plain"] > .005 and c.meta["traced"] > .005
    timeline = s.timeline(cell.number)
    assert timeline.ranks == [0, 1] and (not steps or timeline.matched_by == "the flight recorder")


def packers(session):
    "Processes that pack traces of this session"
    def is_one(p):
        try: return b"dtnb.trace.recordings" in (p / "cmdline").read_bytes() and str(session.paths.root).encode() in (p / "environ").read_bytes()
        except OSError: return False
    return [p.name for p in Path("/proc").glob("[0-9]*") if is_one(p)]


def test_workers_that_begin_while_it_is_written(s):
    "They have what the rank had open then, and stay"
    cell = s.send("for i in dtnb.track(range(9)):\n    step(torch.ones(4, 16))\n    if i == 3:\n        time.sleep(.5)\n        workers = iter(DataLoader(range(8), num_workers=1, persistent_workers=True))", trace=2)
    wait_until(lambda: len(packers(s)) == 2, what="the packers")
    assert cell.wait(60) == "done", cell.exception()
    assert numbers(traces(s, cell.number)[1]) == [1, 2]
    wait_until(lambda: not packers(s), 30, "the end of the packers")
    assert s.run("workers._workers[0].is_alive()").result() == {0: True, 1: True}
    s.run("del workers")


def test_two_recordings_in_a_cell_and_one_inside_another(s):
    cell = s.send("for i in range(2):\n    with dtnb.profile():\n        counted(2)\n        with dtnb.profile(steps=1): counted(1)")
    cell.wait(60)
    for name in (str(cell.number), f"{cell.number}.2"):
        assert {tuple(numbers(c)) for c in traces(s, name).values()} == {(0, 1, 2)} if name.endswith(".2") is False else True
    assert s.timeline().traces[0].meta["run"].endswith(f"/{cell.number}.2")


def test_ranks_agree_on_the_steps_of_a_loop_that_runs(s):
    "Asked in the middle: the same steps on both, though one is asked later, and the loop goes on"
    cell = s.send("import time\nif rank: time.sleep(.2)\nfor epoch in dtnb.track(range(4)): counted(100)")
    wait_until(lambda: s.listen() or (cell.reader.poll().ranks[0].inner or None), what="the loop")
    name = s.trace(4)
    with pytest.raises(dtnb.DtnbError, match="records a trace already"): s.trace(1)
    asked = s.timeline()
    assert len(numbers(asked.traces[0])) == 4 and [f.endswith(f"trace-{name}.dtt") for f in asked.files] == [True, True], asked.files   # not the one before it, and nobody packs for the ranks
    assert cell.wait(60) == "done", cell.exception()
    found = traces(s, name)
    assert len({tuple(numbers(c)) for c in found.values()}) == 1 and len(numbers(found[0])) == 4 and min(numbers(found[0])) > 2
    assert all(calls(c, "aten::linear") == 4 and c.meta["plain"] for c in found.values())
    assert s.timeline(name).matched_by == "the flight recorder"
    with pytest.raises(dtnb.DtnbError, match="no cell is running"): s.trace(3)


def test_asked_of_a_cell_without_steps(s):
    "It is given up after a while, and said; the cell and the session go on"
    s.run("import dtnb.rank.profile as p, dtnb.rank.recording as r\np.PATIENCE = r.PATIENCE = 1")
    cell = s.send("for i in range(40): time.sleep(.1)")
    wait_until(lambda: s.ask_all(s.ranks, "busy").get(0, {}).get("cell") == cell.number, what="the cell")
    said = stages(s, s.trace(2))
    assert {x["stage"] for x in said.values()} == {"failed"} and "no step has ended" in said[0]["why"]
    assert cell.wait(60) == "done"
    assert s.run("rank").result() == {0: 0, 1: 1}
    s.run("p.PATIENCE = r.PATIENCE = 60")


def test_too_few_steps(s):
    "It is said how many there were, and the next recording knows nothing of it"
    cell = s.send("step(torch.ones(4, 16))", trace=2)
    assert cell.wait(60) == "done" and "over after 1 step," in stages(s, cell.number)[0]["why"]
    cell = s.send("counted(4)", trace=2)
    assert cell.wait(60) == "done" and len(numbers(traces(s, cell.number)[0])) == 2
    assert "disableProfiler" not in cell.text(0), cell.text(0)


def test_an_error_and_an_interrupt_leave_the_trace_so_far(s):
    cell = s.send("for i in dtnb.track(range(20)):\n    step(torch.ones(4, 16))\n    if i == 3: 1 / 0", trace=10)
    assert cell.wait(60) == "failed" and "ZeroDivisionError" in str(cell.exception())
    assert {tuple(numbers(c)) for c in traces(s, cell.number).values()} == {(1, 2)}
    s.run(SETUP, timeout=30)
    cell = s.send("for i in dtnb.track(range(2000)):\n    step(torch.ones(4, 16))\n    if i == 3: print('three', flush=True)", trace=1000)
    heard(cell, 0, "three")
    cell.cancel()
    assert all(len(numbers(c)) >= 2 for c in traces(s, cell.number).values())
    assert s.run("rank").result() == {0: 0, 1: 1}


def test_a_hang_while_it_records(s):
    "Rank 1 never comes to its step; the cell is given up, both traces are there, and the next cell runs"
    cell = s.send("for i in dtnb.track(range(9)):\n    if i == 3:\n        print('three', flush=True)\n        if rank: time.sleep(1000)\n        else: dist.barrier()\n    step(torch.ones(4, 16))", trace=6)
    heard(cell, 1, "three")
    assert "tracing 2/6 steps" == wait_until(lambda: s.listen() or cell.reader.poll() and (said if "2/6" in (said := tracing(cell.view)) else None), what="the view")
    cell.cancel()
    assert {tuple(numbers(c)) for c in traces(s, cell.number).values()} == {(1, 2)}
    assert s.run("rank", timeout=30).result() == {0: 0, 1: 1}


def test_a_recording_of_everything_ends_by_itself(s):
    "With no step to stop at, in the middle of the cell's own code"
    s.run("import dtnb.rank.recording as r\nr.LIMIT = .5")
    cell = s.send("end = time.monotonic() + 3\nwhile time.monotonic() < end: torch.ones(64, 64) @ torch.ones(64, 64); time.sleep(.01)", trace=-1)
    assert cell.wait(60) == "done"
    said = stages(s, cell.number)
    assert all("it ended after 0.5 s" in x["why"] and x["stage"] == "done" for x in said.values()), said
    assert all(c.end.max() < 2.5e9 for c in traces(s, cell.number).values())
    s.run("r.LIMIT, r.HEAVY = 60.0, 20 << 20")
    cell = s.send("held = [bytearray(1 << 20) for i in range(40)]\ncounted(200)\ndel held", trace=-1)
    assert cell.wait(60) == "done" and all("GiB of events" in x["why"] for x in stages(s, cell.number).values())
    s.run("r.HEAVY = 2 << 30")


def test_another_profiler_is_left_alone(s):
    cell = s.send("with torch.profiler.profile() as mine:\n    with dtnb.profile(): counted(2)\nlen(mine.events()) > 10")
    assert cell.result(60) == {0: True, 1: True}
    assert all("another profiler is on" in x["why"] for x in stages(s, cell.number).values())
    with pytest.raises(dtnb.DtnbError, match="another profiler"): s.timeline(cell.number)


def test_a_full_disk(s):
    "A file that can't grow: the trace is lost and said, nothing else is, and nothing of it stays"
    cell = s.send("import resource\nold = resource.getrlimit(resource.RLIMIT_FSIZE)\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))\ncounted(12)\n'all of it'", trace=-1)
    assert cell.result(60) == {0: "all of it", 1: "all of it"}
    said = stages(s, cell.number)
    assert {x["stage"] for x in said.values()} == {"failed"} and all("is the disk full?" in x["why"] for x in said.values()), said
    assert not [p for r in s.ranks for p in s.paths.rank(r).glob(f"*trace-{cell.number}.*")]
    s.run("resource.setrlimit(resource.RLIMIT_FSIZE, old)")
    cell = s.send("counted(2)", trace=-1)
    cell.wait(60)
    assert len(traces(s, cell.number)) == 2


def test_phases_without_the_users_help(s):
    "data, forward, backward, optimizer, and comm where a rank waits for another"
    cell = s.send("""class Slow(TensorDataset):
    def __getitem__(self, i): time.sleep(.01); return super().__getitem__(i)
for x, in DataLoader(Slow(torch.randn(160, 16)), batch_size=8): step(x)
if rank == 0: print('waits', flush=True); dist.barrier()
else: time.sleep(2.5); dist.barrier()""")
    seen = set()
    def look():
        s.listen()
        seen.update((r, v.phase) for r, v in cell.reader.poll().ranks.items())
        return not cell.pending
    wait_until(look, 60, what="the end")
    assert cell.wait(30) == "done", cell.exception()
    assert {(0, "data"), (1, "data"), (0, "comm")} <= seen, seen
    spans = cell.reader.poll().ranks[1].spans
    assert {k: n for k, (n, _) in spans.items()} == dict(data=21, forward=19, backward=20, optimizer=20, comm=spans.get("comm", [0])[0]) or {k: n for k, (n, _) in spans.items()} == dict(data=21, forward=19, backward=20, optimizer=20)
    assert spans["data"][1] > 1.5 and cell.reader.poll().ranks[0].spans["comm"][1] > 1


def test_compiled_code_has_no_more_breaks(s):
    "The model is one graph; torch breaks an optimizer's step itself, as often as without our hooks; worker processes report nothing"
    cell = s.send("""import torch._dynamo, torch.optim.optimizer as optimizer
small = torch.nn.Linear(4, 4)
@torch.compile(backend='eager', fullgraph=True)
def fast(x): return small(x).sum()
def breaks():
    torch._dynamo.reset(), torch._dynamo.utils.counters.clear()
    sgd = torch.optim.SGD(small.parameters(), lr=.1)
    update = torch.compile(sgd.step, backend='eager')
    for x, in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4, num_workers=1):
        fast(x).backward(); update()
    return sum(torch._dynamo.utils.counters['graph_break'].values())
ours = breaks()
hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
kept = [dict(h) for h in hooks]
for h in hooks: h.clear()
theirs = breaks()
for h, k in zip(hooks, kept): h.update(k)
len(kept[0]), ours - theirs""")
    assert cell.result(120) == {0: (1, 0), 1: (1, 0)}


# ---- in a real kernel

def test_the_magics(tmp_path):
    cells = dict(load="%load_ext dtnb", start="%dist start -n 2", setup="%%distributed\n" + SETUP, cell="%%distributed --trace=2\ncounted(6)\nprint('printed')", again="%dist timeline", all="%%distributed --trace --quiet\ncounted(2)",
                 two="t = %dist timeline\n[len(t.ranks), t.traces[0].meta['steps_by'], t.matched_by]", odd="%%distributed --trace=many\n1", none="%%distributed --trace=5\n1", idle="%dist trace -n 3",
                 fails="%%distributed --trace\ncounted(1)\n1 / 0", last="%dist timeline nowhere",
                 detach="%%distributed --detach\ncounted(1500)", asked="import time\ntime.sleep(1)\n%dist trace -n 3 --shapes", wait="s = %dist session\ncell = max(s.cells.values(), key=lambda c: c.number)\ncell.wait(60)\nc = s.timeline(cell.number).traces[1]\n[len(c.meta['steps']), any('Input Dims' in text for text in c.args_table)]")
    said = dict(zip(cells, notebook(tmp_path, cells.values())))
    for cell, pattern in dict(cell=r"traced 2 steps on 2 ranks: timeline\(\) shows it[^$]*printed[^$]*Timeline", again="Timeline", all="^$", two=r"\[2, 'marks', 'the flight recorder'\]", odd="--trace=many: give a number of steps",
                              none="no trace of ranks 0, 1: no step has ended", idle="no cell is running", fails=r"traced 1 step on 2 ranks[^$]*ZeroDivisionError", last="there is no recording 'nowhere'", asked=r"recording \d+: the next 3 steps on every rank", wait=r"\[3, True\]").items():
        assert re.search(pattern, said[cell]), (cell, said[cell])


# ---- jobs

def trainer(steps, pause=.005, trace="none", fail=-1):
    import time, torch, torch.distributed as dist, dtnb
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    for i in dtnb.track(range(steps)):
        y = model(torch.ones(4, 8)).sum()
        dist.all_reduce(y.detach())
        time.sleep(pause)
        if i == fail: raise ValueError("as asked")
    return trace


def worker(steps, **more): return trainer(steps, **more)


def test_a_job_records_its_first_steps():
    job = dtnb.launch(worker, 9, on=Local(nproc=2), trace=3)
    assert job.results(60) == {0: "none", 1: "none"}
    timeline = job.timeline()
    assert [numbers(c) for c in timeline.traces] == [[1, 2, 3]] * 2 and timeline.matched_by == "the flight recorder"
    assert re.search("traced 3 steps on 2 ranks", tracing(job.view))


def test_a_function_with_a_parameter_of_that_name():
    "It gets it, as it always did, and nothing is recorded"
    job = dtnb.launch(trainer, 2, on=Local(nproc=1), trace=5)
    assert job.results(60) == {0: 5}
    with pytest.raises(dtnb.DtnbError, match="nothing was traced"): job.timeline()
    with pytest.raises(ValueError, match="trace is True or a number of steps"): dtnb.launch(worker, 2, trace="yes")


def test_a_running_job_is_asked():
    job = dtnb.launch(trainer, 2000, on=Local(nproc=2))
    wait_until(lambda: (b := job.view.ranks[1].bar) and b.n > 10, 60, "steps")
    job.trace(3, shapes=True)
    with pytest.raises(ValueError, match="a number of steps"): job.trace(0)
    wait_until(lambda: recordings(job.view), 30, "an answer")
    timeline = job.timeline()
    assert len({tuple(numbers(c)) for c in timeline.traces}) == 1 and len(numbers(timeline.traces[0])) == 3 and not job.state.ended
    assert all(any("Input Dims" in text for text in c.args_table) for c in timeline.traces)
    job.cancel()
    with pytest.raises(dtnb.LaunchError, match="only the steps of one that runs"): job.trace()


def test_a_job_that_fails_leaves_its_trace():
    job = dtnb.launch(trainer, 50, fail=4, on=Local(nproc=1), trace=None)
    job.wait(60)
    job = dtnb.launch(worker, 50, fail=4, on=Local(nproc=1), trace=True)
    job.wait(60)
    assert "as asked" in str(job.exception())
    assert numbers(job.timeline().traces[0]) == [0, 1, 2, 3]


def test_outside_a_job(home):
    "A script of its own: the trace is below DTNB_HOME"
    code = """
    import dtnb, torch
    with dtnb.profile(steps=2) as p:
        for i in dtnb.track(range(5)): torch.ones(4) + 1
    print(p.path)
    print(dtnb.open_trace(p.path).sentence)
    assert dtnb.track([1]) == [1]
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    path = done.stdout.splitlines()[0]
    assert path.startswith(str(home / "traces")) and numbers(read_trace(path)) == [1, 2] and "profiler_start" not in done.stderr


def test_under_a_torchrun_of_their_own(home, tmp_path):
    "Ranks that dtnb has not started share a folder, and a run"
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import dtnb, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        with dtnb.profile() as p:
            for i in range(3): dist.all_reduce(torch.ones(2)); p.step()
        dist.destroy_process_group()
    """))
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    (folder,) = (home / "traces").iterdir()
    timeline = dtnb.open_trace(folder)
    assert timeline.ranks == [0, 1] and [numbers(c) for c in timeline.traces] == [[0, 1, 2]] * 2 and timeline.matched_by == "the flight recorder"


# ---- several hosts

@pytest.mark.skipif(bool(missing_ssh()), reason=f"sshd is not installed: {missing_ssh()}")
def test_two_hosts():
    "The guards pass the request on, the ranks agree over the store, and the other host's clock is measured"
    with SSH() as ssh:
        job = dtnb.launch(trainer, 3000, on=dtnb.Torchrun(hosts=ssh.hosts, ssh_options=["-F", str(ssh.config)], nproc_per_node=1))
        wait_until(lambda: (b := job.view.ranks[1].bar) and b.n > 10, 90, "steps")
        job.trace(3)
        wait_until(lambda: recordings(job.view), 60, "an answer")
        timeline = job.timeline()
        job.cancel()
    first, other = timeline.traces
    assert numbers(first) == numbers(other) and len(numbers(first)) == 3
    assert first.meta["clock"]["offset"] == 0 and re.search(r"the quickest of \d+ answers", other.meta["clock"]["how"])
    assert abs(other.meta["clock"]["offset"]) <= other.meta["clock"]["rtt"], other.meta["clock"]   # it is the same clock
