"""What recording five steps costs a training: `python recording.py FOLDER` answers with a line of JSON, one record a recording and rank.

`plain` and `traced` are a step without the profiler and with it; `stall` is what all other steps of the loop took more than a plain one, and `cpu` the same in the main thread's own
processor time, which other programs on the machine don't change. A step is a small transformer under DDP, about 3,800 operations."""
import os, sys
from pathlib import Path

RANKS, STEPS, TRACED, RECORDINGS, LIMIT = 2, 60, 5, 6, 240

SETUP = """
import statistics, time, torch, dtnb
model = torch.nn.parallel.DistributedDataParallel(torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 4))
adam, x = torch.optim.Adam(model.parameters()), torch.randn(8, 16, 32)
def train(steps):
    "Seconds and processor seconds of each step"
    marks = [(time.perf_counter(), time.thread_time())]
    for i in dtnb.track(range(steps)):
        model(x).pow(2).mean().backward(); adam.step(); adam.zero_grad()
        marks.append((time.perf_counter(), time.thread_time()))
    return [[b - a for a, b in zip(m, m[1:])] for m in zip(*marks)]
def over(times, first, traced):
    "A plain step, a traced one, and what the others took beyond a plain one"
    plain = statistics.median(times[first + traced + 5:])
    return plain, statistics.median(times[first:first + traced]), sum(max(0, t - 1.5 * plain) for i, t in enumerate(times) if i and not first <= i < first + traced)
"""

def costs(folder) -> list[dict]:
    from dtnb.session import Session
    found = []
    with Session(RANKS) as s:
        s.run(SETUP)
        s.run("train(20)")
        for _ in range(RECORDINGS):
            cell = s.send(f"wall, cpu = train({STEPS})\n(over(wall, 1, {TRACED}), over(cpu, 1, {TRACED}))", trace=TRACED)
            for rank, (wall, cpu) in cell.result(LIMIT).items(): found.append(dict(rank=rank, plain=wall[0], traced=wall[1], stall=wall[2], cpu=cpu[2]))
            events = sum(len(c) for c in s.timeline(str(cell.number)).traces)
            for f in found[-RANKS:]: f["events"] = events / RANKS
    return found

def section(found) -> str:
    "The part of README.md on recording; begins with its heading"
    from run import spread, table
    rows = [("a step without the profiler, ms", "plain", 1e3, 1), ("a step that is recorded, ms", "traced", 1e3, 1), ("what the rest of the loop takes more, s", "stall", 1, 2), ("of it the main thread's own processor time, s", "cpu", 1, 2), ("events of a recording and rank", "events", 1, 0)]
    return f"""## Recording a trace

{TRACED} steps of a loop of {STEPS}, on {RANKS} ranks, {RECORDINGS} times; a step is a small transformer under DDP. The aim is that all other steps together take less than 0.3 s more: it is the profiler's own stop, which sorts what it has seen (three times as long with `shapes=True`). Writing and packing the file is left to a thread and to another process.

{table(["", "median (least - most)"], [[what, spread([f[k] for f in found], scale, digits)] for what, k, scale, digits in rows])}
"""

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from session import answer
    os.environ.setdefault("DTNB_HOME", str(Path(sys.argv[1], "home")))
    answer(costs, LIMIT)
