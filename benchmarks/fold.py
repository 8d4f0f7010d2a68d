"""How fast a job of many ranks is folded into a view, drawn as rows, and read from its files. Times in seconds, one number a repeat."""
import json, time
from pathlib import Path

from dtnb.event import Event, EventKind
from dtnb.job import JobPaths, JobSpec
from dtnb.reader import JobReader
from dtnb.view import JobView, to_rows

RANKS, RECORDS, REPEATS = 1024, 10, 7


def history(rank) -> list[Event]:
    "What a rank writes in some seconds: two loops, three numbers, two spans, a heartbeat"
    def e(kind, t, **data): return Event(kind, t, 0, rank, 0, data)
    found = [e(EventKind.STATE, 1.0, state="running", pid=100 + rank, host="node-1")]
    for i in range(RECORDS):
        t = 2 + i / 2
        found += [e(EventKind.PROGRESS, t, bar="0", n=i // 5, total=3, desc="epoch", unit="it", depth=0), e(EventKind.PROGRESS, t, bar="1", n=100 * i, total=5000, desc="batch", unit="it", depth=1),
                  e(EventKind.SCALAR, t, values=dict(loss=1 / (1 + i), lr=1e-3, accuracy=.5), step=100 * i), e(EventKind.SPAN, t, phase="forward", totals=dict(data=[i, .1 * i], forward=[i, .3 * i]))]
    return found + [e(EventKind.HEARTBEAT, 7.0, rss=500 << 20)]

def timed(run) -> tuple[float, object]:
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value

def apply_all(events) -> JobView:
    view = JobView(RANKS)
    for e in events: view.apply(e)
    return view

def make_job(root, ranks) -> JobPaths:
    "The files of a job with these ranks' histories"
    paths = JobPaths(Path(root))
    paths.root.mkdir()
    paths.spec.write_text(JobSpec("bench", "train", "Local", nproc_per_node=len(ranks)).to_json())
    paths.launcher.write_text(Event(EventKind.STATE, 1.0, data=dict(state="running")).to_json() + "\n")
    for r, events in enumerate(ranks):
        paths.rank(r).mkdir(parents=True)
        paths.events(r).write_text("".join(e.to_json() + "\n" for e in events))
        paths.output(r).write_text(f"rank {r} is training\n" * 20)
    return paths

def append_one(paths):
    "One new record in every rank's file"
    line = Event(EventKind.HEARTBEAT, 8.0, data=dict(rss=1)).to_json()[:-1]
    for r in range(RANKS):
        with open(paths.events(r), "a") as f: f.write(f'{line},"rank":{r}}}\n')

def costs(root) -> dict[str, list[float]]:
    "Every figure of the fold, and how many events there were"
    ranks = [history(r) for r in range(RANKS)]
    events = [e for at_once in zip(*ranks) for e in at_once]  # as they come: all ranks side by side
    paths, found = make_job(root, ranks), dict(events=[len(events)], bytes=[], apply=[], rows=[], dumps=[], first=[], idle=[], news=[])
    for _ in range(REPEATS):
        seconds, view = timed(lambda: apply_all(events))
        found["apply"].append(seconds)
        seconds, rows = timed(lambda: to_rows(view))
        found["rows"].append(seconds)
        seconds, text = timed(lambda: json.dumps(rows))
        found["dumps"].append(seconds)
        found["bytes"].append(len(text))
        reader = JobReader(paths.root)
        found["first"].append(timed(reader.poll)[0])
        found["idle"].append(timed(reader.poll)[0])
        append_one(paths)
        found["news"].append(timed(reader.poll)[0])
        assert len(reader.view.ranks) == RANKS and reader.view.ranks[RANKS - 1].rss
    return found
