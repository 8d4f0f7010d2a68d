"Traces: anyone's JSON as columns, beside an independent reading of the same file."
import gzip, json, re, subprocess, sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from cuda_trace import traces
from dtnb.trace.columns import pack, unpack
from dtnb.trace.convert import convert, read_trace

ROOT = Path(__file__).parent.parent
STACKS = """
import json, sys, time, torch
from torch.profiler import profile
torch.set_num_threads(1)
x, marks = torch.ones(8, 8), []
with profile(with_stack=True, record_shapes=True) as prof:
    for i in range(3):
        marks.append(time.time_ns())
        (x @ x).sum()
    marks.append(time.time_ns())
    prof.add_metadata_json("dtnb", json.dumps(dict(rank=2, world_size=4, run="r7", marks=marks, first_step=12, plain=.01, traced=.02, clock=dict(offset=5, rtt=100, how="ping"), flight=[["0", 1, "all_reduce", marks[0]]])))
prof.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    "Traces of torch.profiler: two ranks with gloo, and one with Python's stacks and dtnb's marks"
    folder = tmp_path_factory.mktemp("real")
    both = [subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for argv in ((ROOT / "benchmarks/make_trace.py", folder, "--ranks", "2", "--events", "9000"), ("-c", STACKS, folder / "stacks.json"))]
    for p in both: assert (p.communicate(timeout=200), p.returncode)[1] == 0
    return folder


def written(path, trace, zipped=True):
    "A trace as a file"
    data = trace if isinstance(trace, bytes) else json.dumps(trace).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def plain(path):
    "What Python's own parser finds: base, and (name, track) -> starts and durations in ns"
    data = Path(path).read_bytes()
    trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=Decimal)
    found = defaultdict(list)
    for e in trace["traceEvents"]:
        if e.get("ph") == "X" and e.get("cat") != "Trace": found[e["name"], str(e["pid"]), str(e["tid"])].append((trace["baseTimeNanoseconds"] + int(e["ts"] * 1000), int(e["dur"] * 1000)))
    return trace, {k: sorted(v) for k, v in found.items()}


def ours(c):
    found, tracks = defaultdict(list), c.per_event()[0]
    for n, t, ts, dur in zip(c.name, tracks, c.ts, c.dur): found[c.names[n].text, c.tracks[t].pid, c.tracks[t].tid].append((c.t0 + int(ts), int(dur)))
    return {k: sorted(v) for k, v in found.items()}


def in_order(c):
    "Rows are slices, sorted, and never overlap themselves"
    assert sum(n for _, _, n in c.rows) == len(c)
    for i in range(len(c.rows)): assert (c.ts[c.row(i)][1:] >= c.end[c.row(i)][:-1]).all()


def test_a_real_trace_agrees_with_its_json(real):
    for rank in range(2):
        path = real / f"rank{rank}.json.gz"
        (trace, expected), c = plain(path), read_trace(path)
        assert len(c) > 8000 and ours(c) == expected
        in_order(c)
        steps = sorted((int(k[0].split("#")[1]), *v[0]) for k, v in expected.items() if k[0].startswith("ProfilerStep#"))
        assert len(steps) > 1 and [[n, c.t0 + at, dur] for n, at, dur in c.meta["steps"]] == [list(s) for s in steps]
        assert {k: c.meta[k] for k in ("rank", "world_size", "backend", "host", "steps_by", "device", "source")} == dict(rank=rank, world_size=2, backend="gloo", host=trace["host_name"], steps_by="ProfilerStep", device="cpu", source=path.name)
        kinds = {t.tid: t.kind for t in c.tracks}
        assert kinds == {tid: "main" if pid == tid else "comm" for (_, pid, tid) in expected}
        top = max(e["args"]["Total Allocated"] for e in trace["traceEvents"] if e["name"] == "[memory]")
        assert max(c.memory["cpu"][1]) == top and len(c.memory["cpu"][0]) <= 4096


def test_arguments_are_the_files_own_without_ids(real):
    path = real / "rank0.json.gz"
    (trace, _), c = plain(path), read_trace(path)
    want = Counter((e["name"], tuple(map(str, e["args"].get("Input Dims", [])))) for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "cpu_op")
    texts = [json.loads(t or "{}") for t in c.args_table]
    assert Counter((c.names[n].text, tuple(map(str, texts[a].get("Input Dims", [])))) for n, a in zip(c.name, c.args) if c.names[n].cat == "cpu_op") == want
    assert len(c.args_table) < 2000 and {k for t in texts for k in t} == {"Input Dims", "Input type", "Input Strides", "Concrete Inputs"}


def test_stacks_marks_and_what_dtnb_recorded(real):
    path = real / "stacks.json"
    (trace, expected), c = plain(path), read_trace(path)
    assert ours(c) == expected
    in_order(c)
    assert any(x.cat == "python_function" for x in c.names) and max(d for _, d, _ in c.rows) > 3
    own = json.loads(json.dumps(trace["dtnb"], default=float))
    marks = own["marks"]
    assert [[n, c.t0 + at, dur] for n, at, dur in c.meta["steps"]] == [[12 + i, a, b - a] for i, (a, b) in enumerate(zip(marks, marks[1:]))] and c.meta["steps_by"] == "marks"
    assert {k: c.meta[k] for k in ("rank", "world_size", "run", "plain", "traced", "clock", "flight")} == {k: own[k] for k in ("rank", "world_size", "run", "plain", "traced", "clock", "flight")}
    mm = [(c.t0 + int(ts), c.t0 + int(ts + dur)) for n, ts, dur in zip(c.name, c.ts, c.dur) if c.names[n].text == "aten::mm"]
    assert len(mm) == 3 and all(a <= start and end <= b for (start, end), a, b in zip(sorted(mm), marks, marks[1:]))


def test_the_size_of_pieces_changes_nothing(real):
    whole = pack(read_trace(real / "rank1.json.gz"))
    for piece in (1000, 50_000): assert pack(read_trace(real / "rank1.json.gz", piece)) == whole


def test_cuda_and_nccl(tmp_path):
    for rank, trace in enumerate(traces(2, steps=4)):
        path = written(tmp_path / "t.json.gz", trace)
        c = read_trace(path)
        assert ours(c) == plain(path)[1]
        in_order(c)
        assert {t.label: t.kind for t in c.tracks} == {"main": "main", "pt_autograd_0": "autograd", "stream 20": "comm", "stream 7": "gpu", "profiler": "other"}
        assert (c.meta["backend"], c.meta["device"], c.meta["rank"], [s[0] for s in c.meta["steps"]], list(c.memory)) == ("nccl", "cuda", rank, [1, 2, 3, 4], ["cuda:0"])
        args = {c.names[n].text: json.loads(c.args_table[a] or "{}") for n, a in zip(c.name, c.args)}
        assert args["Memcpy HtoD (Pageable -> Device)"]["bytes"] == 65536
        nccl = next(v for k, v in args.items() if k.startswith("ncclDevKernel_AllReduce"))
        assert nccl["Collective name"] == "allreduce" and nccl["grid"] == [128, 1, 1] and not {"correlation", "External id"} & set(nccl)


X = dict(ph="X", name="a", cat="cpu_op", pid=1, tid=1, ts=10, dur=5)
JAX = dict(displayTimeUnit="ns", metadata={"highres-ticks": True}, traceEvents=[dict(ph="M", pid=701, name="process_name", args=dict(name="/host:CPU")), dict(ph="M", pid=701, tid=5, name="thread_name", args=dict(name="python")), dict(ph="M", pid=2, name="process_name", args=dict(name="/device:GPU:0")),
    dict(ph="M", pid=2, tid=13, name="thread_name", args=dict(name="Stream #13(Compute)")), *(dict(ph="X", pid=701, tid=5, ts=100.5 * i, dur=90, name="train", args=dict(step_num=str(i))) for i in range(3)), dict(ph="X", pid=2, tid=13, ts=20, dur=1e-06, name="fusion.1", args=dict(hlo_op="fusion.1", run_id="77")), {}])
FAULTS = {
    "control characters": (b'[{"ph":"X","name":"a\x01\nb","ts":1,"dur":2}]', [("a\x01\nb", 1000, 2000)]),
    "a single backslash": (b'[{"ph":"X","name":"C:\\work\\\\x","ts":1,"dur":2}]', [("C:\\work\\x", 1000, 2000)]),
    "inf and nan": (b'[{"ph":"X","name":"a","ts":1,"dur":2,"args":{"x":inf,"y":-nan,"z":[NaN,1.5]}}]', [("a", 1000, 2000)]),
    "not UTF-8": (b'[{"ph":"X","name":"a\xff","ts":1,"dur":2}]', [("a\ufffd", 1000, 2000)]),
    "times as text": (b'[{"ph":"X","name":"a","ts":"1.5","dur":"0.25"}]', [("a", 1500, 250)]),
    "Unix times": (b'[{"ph":"X","name":"a","ts":1790857026000000.125,"dur":2},{"ph":"X","name":"b","ts":1790857026000000.126,"dur":1}]', [("a", 1790857026000000125, 2000), ("b", 1790857026000000126, 1000)]),
    "whole Unix times": (b'[{"ph":"X","name":"a","ts":1790857026000123,"dur":2}]', [("a", 1790857026000123000, 2000)]),
    "no end of a bare list": (b'[{"ph":"X","name":"a","ts":1,"dur":2},\n', [("a", 1000, 2000)]),
    "missing fields": (b'{"traceEvents":[{"ph":"X"},{"ph":"X","ts":3},{"name":"x"},null,{},{"ph":"X","ts":null,"dur":1}],"x":1}', [("", 3000, 0)]),
    "begin and end": (b'[{"ph":"B","name":"a","tid":1,"ts":1},{"ph":"B","name":"b","tid":1,"ts":2},{"ph":"E","tid":2,"ts":2},{"ph":"E","tid":1,"ts":4},{"ph":"B","name":"open","tid":3,"ts":3},{"ph":"E","tid":1,"ts":5}]', [("a", 1000, 4000), ("b", 2000, 2000), ("open", 3000, 2000)]),
    "a negative duration": (b'[{"ph":"X","name":"a","ts":1,"dur":-2}]', [("a", 1000, 0)]),
    "numbers out of all range": (b'[{"ph":"X","name":"a","ts":1,"dur":2},{"ph":"X","name":"b","ts":1e300,"dur":2}]', [("a", 1000, 2000)]),
    "faults, and floats beside the events": (b'{"dtnb":{"plain":0.5,"clock":{"offset":1.5}},"traceEvents":[{"ph":"X","name":"a\x01","ts":1,"dur":2}]}', [("a\x01", 1000, 2000)]),
    "something after the events": (b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":2}],"stackFrames":[{"a":1}, {"a":2}]}', [("a", 1000, 2000)]),
    "a mark before it": (b'\xef\xbb\xbf {"traceEvents" : [{"ph":"X","name":"a","ts":1,"dur":2}]}', [("a", 1000, 2000)]),
}

@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_files_are_read(tmp_path, fault):
    text, expected = FAULTS[fault]
    for piece in (4 << 20, 30):
        c = read_trace(written(tmp_path / "a.json", text, zipped=False), piece)
        assert sorted((c.names[n].text, c.t0 + int(ts), int(dur)) for n, ts, dur in zip(c.name, c.ts, c.dur)) == expected
        for text_of_args in c.args_table[1:]: json.loads(text_of_args, parse_constant=lambda x: pytest.fail(f"a browser cannot read {x}"))
        in_order(c)
        assert len(unpack(pack(c))) == len(c)


def test_string_pids_and_numbers_are_one_track(tmp_path):
    c = read_trace(written(tmp_path / "a.json.gz", [X, X | dict(pid="1", tid="1", ts=20), X | dict(pid="Spans", tid="x", ts=30)]))
    assert [(t.pid, t.tid) for t in c.tracks] in ([("1", "1"), ("Spans", "x")], [("Spans", "x"), ("1", "1")]) and sorted(n for _, _, n in c.rows) == [1, 2]


def test_jax(tmp_path):
    c = read_trace(written(tmp_path / "vm.trace.json.gz", JAX))
    assert {t.label: t.kind for t in c.tracks} == {"main": "main", "Stream #13(Compute)": "gpu"}
    assert (c.meta["steps_by"], c.meta["steps"], c.meta["device"]) == ("StepTraceAnnotation", [[i, 100_500 * i, 90_000] for i in range(3)], "cuda")
    assert '{"hlo_op":"fusion.1"}' in c.args_table
    (pb := tmp_path / "vm.xplane.pb").write_bytes(b"\n\x05")
    with pytest.raises(ValueError, match=r"vm\.xplane\.pb is XLA's own format.*\.trace\.json\.gz"): read_trace(pb)


def test_steps_without_marks(tmp_path):
    def steps(*events, **more):
        c = read_trace(written(tmp_path / "a.json.gz", dict(traceEvents=[X | dict(ts=0, dur=1), X | dict(ts=99, dur=1), *events], **more)))
        return c.meta["steps_by"], c.meta["steps"]
    optimizer = [X | dict(name=name, ts=ts, dur=5) for i in (1, 2) for name, ts in (("Optimizer.step#Adam.step", 30 * i - 1), ("Optimizer.step#Wrapper.step", 30 * i))]
    assert steps(*optimizer) == ("optimizer", [[0, 0, 35_000], [1, 35_000, 30_000]])
    assert steps(*optimizer, dtnb=dict(first_step=7))[1][0] == [7, 0, 35_000]
    assert steps(*(X | dict(name="enumerate(DataLoader)#_It.__next__", ts=ts) for ts in (10, 50))) == ("dataloader", [[0, 10_000, 40_000], [1, 50_000, 50_000]])
    assert steps() == ("whole", [[0, 0, 100_000]])
    assert steps(X | dict(name="ProfilerStep#3", ts=10), X | dict(name="ProfilerStep#3", cat="gpu_user_annotation", pid=0, tid=7, ts=12, dur=50)) == ("ProfilerStep", [[3, 10_000, 5_000]])


def test_rows_of_what_overlaps(tmp_path):
    draw = np.random.default_rng(0)
    spans = [X | dict(ts=int(a), dur=int(d)) for a, d in zip(draw.integers(0, 300, 400), draw.integers(0, 30, 400))]
    c = read_trace(written(tmp_path / "a.json.gz", spans))
    in_order(c)
    assert sorted(zip(c.ts + c.t0, c.dur)) == sorted((e["ts"] * 1000, e["dur"] * 1000) for e in spans)


def test_memory_keeps_its_peaks(tmp_path):
    peak = {1234: 10**9, 40_000: 2 * 10**9}
    moments = [dict(ph="i", name="[memory]", ts=i, args={"Total Allocated": peak.get(i, i % 1000), "Device Type": kind, "Device Id": number}) for i in range(50_000) for kind, number in ([(0, -1)] if i % 2 else [(1, 3)])]
    c = read_trace(written(tmp_path / "a.json.gz", [X | dict(ts=0), *moments]))
    assert set(c.memory) == {"cpu", "cuda:3"}
    for at, total in c.memory.values(): assert len(at) == len(total) <= 4096 and at == sorted(at)
    assert set(peak.items()) <= {(t // 1000, n) for t, n in zip(*c.memory["cuda:3"])}
    changes = [dict(ph="i", name="[memory]", ts=i, args={"Bytes": b, "Device Type": 0, "Device Id": -1}) for i, b in enumerate([5, 7, -5])]
    assert read_trace(written(tmp_path / "b.json.gz", [X | dict(ts=0), *changes])).memory == dict(cpu=([0, 1000, 2000], [5, 12, 7]))   # an older torch says changes only


def test_very_many_and_very_long_arguments(tmp_path):
    events = [X | dict(ts=i, dur=1, args=dict(n=i)) for i in range(66_000)] + [X | dict(ts=70_000, args=dict(stack="x" * 10_000)), X | dict(ts=0.5, dur=0.1, args=dict(n=5))]
    c = read_trace(written(tmp_path / "a.json.gz", events, zipped=False))
    assert len(c.args_table) == 65_536 and len(set(c.args_table)) == 65_536
    texts = {int(ts): c.args_table[a] for ts, a in zip(c.ts, c.args)}
    assert (texts[5000], texts[65_534_000], texts[65_535_000], texts[500]) == ('{"n":5}', '{"n":65534}', "", '{"n":5}')
    assert max(len(t) for t in read_trace(written(tmp_path / "b.json.gz", events[-2:])).args_table) < 1000


BAD = {
    "a cut .gz": ("a.json.gz", lambda whole: gzip.compress(whole)[:-20], "ends too early"),
    "a damaged .gz": ("a.json.gz", lambda whole: gzip.compress(whole)[:40] + b"\0" * 40 + gzip.compress(whole)[80:], "damaged"),
    "a cut .json": ("a.json", lambda whole: whole[:-200], "ends too early"),
    "a cut .json at an event's end": ("a.json", lambda whole: whole[:whole.rindex(b"},") + 1], "ends too early"),
    "no JSON": ("a.json", lambda whole: b"hello", "not JSON"),
    "a notebook": ("a.ipynb", lambda whole: b'{"cells": [], "metadata": {}}', "no traceEvents"),
    "a pickle": ("a.pkl", lambda whole: b"\x80\x04\x95\x10", "not JSON"),
    "nothing in it": ("a.json", lambda whole: b"", "is empty"),
    "no events": ("a.json", lambda whole: b'{"traceEvents": []}', "0 events"),
    "numbers": ("a.json", lambda whole: b"[1, 2, 3]", "0 events"),
    "only names": ("a.json", lambda whole: b'[{"ph": "M", "name": "thread_name", "args": {"name": "a"}}]', "0 events"),
    "newer columns": ("a.dtt", lambda whole: b"DTNBCOL2" + b"\0" * 50, "another version"),
    "damaged columns": ("a.dtt", lambda whole: b"DTNBCOL1" + b"\0" * 50, "damaged"),
    "an open nest": ("a.json", lambda whole: b"[" * 100_000, "a.json"),
}

@pytest.mark.parametrize("bad", BAD)
def test_bad_files_say_what_to_do(tmp_path, bad):
    name, made, words = BAD[bad]
    (path := tmp_path / name).write_bytes(made(json.dumps(traces(1, 1)[0]).encode()))
    with pytest.raises(ValueError, match=words) as err: read_trace(path)
    assert str(path) in str(err.value)
    with pytest.raises(ValueError): convert(path, tmp_path / "out.dtt")
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_folders_and_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no trace .*x.json"): read_trace(tmp_path / "x.json")
    with pytest.raises(ValueError, match="is a folder.*none"): read_trace(tmp_path)
    (tmp_path / "plugins").mkdir()
    written(tmp_path / "plugins" / "vm.trace.json.gz", JAX)
    with pytest.raises(ValueError, match="is a folder.*such as plugins/vm.trace.json.gz"): read_trace(tmp_path)


def test_the_command_converts_and_says_what_it_cannot(tmp_path):
    good = [written(tmp_path / f"rank{r}.json.gz", t) for r, t in enumerate(traces(2, 1))]
    code = "import sys; from dtnb.trace.convert import main; n = main(sys.argv[1:]); assert not {'torch', 'pandas', 'IPython'} & set(sys.modules); sys.exit(n)"
    p = subprocess.run([sys.executable, "-c", code, *good, tmp_path / "none.json"], capture_output=True, text=True)
    assert p.returncode == 1 and p.stdout.split() == [str(tmp_path / f"rank{r}.dtt") for r in range(2)] and p.stderr == f"there is no trace {tmp_path / 'none.json'}\n"
    for path in good: assert pack(read_trace(path)) == pack(read_trace(path.with_name(path.name[:5] + ".dtt")))
    p = subprocess.run([sys.executable, "-m", "dtnb.trace.convert", good[0]], capture_output=True, text=True)
    assert (p.returncode, p.stdout, p.stderr) == (0, f"{tmp_path / 'rank0.dtt'}\n", "")


def test_memory_does_not_grow_with_the_file(tmp_path):
    "A trace of 80 MB takes little more than a tiny one"
    args = dict(stack="frame " * 120)
    event = json.dumps(X | dict(ts=12345, args=args))
    big = tmp_path / "big.json"
    with big.open("w") as f:
        f.write('{"traceEvents": [')
        for i in range(100): f.write(("" if not i else ",\n") + ",\n".join(event.replace("12345", str(1000 * i + k)) for k in range(1000)))
        f.write("]}")
    small = written(tmp_path / "small.json", [X], zipped=False)
    code = "import sys; from dtnb.trace.convert import main; assert main(sys.argv[1:]) == 0; print(open('/proc/self/status').read())"
    few, many = (int(re.search(r"VmHWM:\s*(\d+) kB", subprocess.run([sys.executable, "-c", code, f], capture_output=True, text=True, check=True).stdout)[1]) // 1024 for f in (small, big))
    assert big.stat().st_size > 75 << 20 and many - few < 60, f"{few} MB for a tiny trace, {many} MB for a big one"
