"Sessions: ranks that keep their variables, what happens when they fail, where output goes, and the magics in real kernels."
import contextlib, glob, json, os, re, signal, subprocess, sys, threading, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from dtnb.event import EventReader
from dtnb.processes import descendants
from dtnb.job import runtime_dir
from dtnb.launchers.local import Local, keeper
from dtnb.session import Session


@contextlib.contextmanager
def own_home(tmp_path_factory):
    "What starts before a test's `home` has a DTNB_HOME too"
    with pytest.MonkeyPatch.context() as m:
        m.setenv("DTNB_HOME", str(tmp_path_factory.mktemp("module") / "home"))
        yield


@pytest.fixture(scope="module", autouse=True)
def long_cell(tmp_path_factory):
    "A cell of 35 s, which runs beside the other tests; its kernel keeps it, longer than its lease"
    with own_home(tmp_path_factory): s = Session(2, lease=2)
    yield s.send("import time\nbegan = time.monotonic()\ntime.sleep(35)\ndist.barrier()\ntime.monotonic() - began")
    s.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    with own_home(tmp_path_factory): s = Session(2)
    yield s
    s.close()


@pytest.fixture
def s(kept):
    "The session that these tests share, with fresh ranks if the last one broke it"
    try: kept.run("1", timeout=10)
    except dtnb.DtnbError: kept.restart()
    return kept


def plain(text): return re.sub(r"\x1b\[[0-9;]*m", "", text)
def guard(session): return EventReader(session.paths.launcher).read()[0].get("guard")
def everything(session): return {guard(session), *descendants(guard(session)), *job_processes(session.job)}


def heard(cell, rank, text, seconds=30):
    "Until a rank's output of this cell has `text`"
    wait_until(lambda: cell.session.listen() or text in cell.text(rank), seconds, f"{text!r} in {cell} of rank {rank}")


def fails(session, code, ranks=None, seconds=30):
    "The error of a cell that must fail soon, and the cell"
    cell = session.send(code, ranks)
    cell.wait(seconds)
    assert cell.state == "failed", {r: cell.text(r) for r in cell.ranks}
    return cell.exception(), cell


def in_main(source, name):
    "What a notebook would have defined"
    scope = {"__name__": "__main__"}
    exec(source, scope)
    return scope[name]


# ---- start and end

def test_a_cell_right_after_the_start():
    "The engines may be registered before they are connected"
    with Session(2) as s:
        assert s.run("rank * 2 + world_size", timeout=30).result(30) == {0: 2, 1: 4}
        pids = everything(s)
        assert len(pids) >= 5
    wait_until(lambda: not alive(pids), what="the end of all")


def test_twenty_starts_and_stops_leave_nothing(decoy):
    shm, pids, names = set(os.listdir("/dev/shm")), set(), set()
    for i in range(20):
        with Session(2) as s:
            pids |= everything(s)
            names |= {s.id[-30:], f"{s.id[-30:]}.d"}
            assert names & set(os.listdir(runtime_dir() / "g"))
            assert s.run(f"{i} + rank", timeout=30).result(30) == {0: i, 1: i + 1}
    wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")
    assert not [j.id for j in dtnb.jobs() if j.state != "done" or j.paths.tmp.exists()] and len(dtnb.jobs()) == 20
    assert not names & set(os.listdir(runtime_dir() / "g"))
    wait_until(lambda: not set(os.listdir("/dev/shm")) - shm, what="an empty /dev/shm")


def test_two_kernels_start_at_once():
    code = """
import sys
from dtnb.session import Session
for line in sys.stdin:
    with Session(2) as s: print(s.run("rank", timeout=60).result(60), flush=True)
"""
    kernels = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for i in range(10):
            for k in kernels: print(file=k.stdin, flush=True)
            got = [k.stdout.readline() for k in kernels]
            assert got == ["{0: 0, 1: 1}\n"] * 2, (i, got, [k.communicate(timeout=30)[1] for k, g in zip(kernels, got) if not g])
        assert [k.communicate(timeout=60)[1] for k in kernels] == ["", ""]
    finally:
        for k in kernels: k.kill()


def test_a_session_listens_on_loopback_only(s):
    "The store, and gloo's pairs in the ranks; controller and guard have no port at all"
    ranks, mine = {r.pid for r in s.job.view.ranks.values()}, {}
    for pid in everything(s):
        for f in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError): mine[os.readlink(f)] = pid
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    found = [(f[1].split(":")[0], mine[f"socket:[{f[9]}]"]) for f in rows if f[3] == "0A" and f"socket:[{f[9]}]" in mine]
    assert {address for address, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    others = [pid for _, pid in found if pid not in ranks]
    assert len(others) == 1 and b"dtnb" in Path(f"/proc/{others[0]}/cmdline").read_bytes()


def test_impossible_sessions():
    for words, error, args, kw in [("either nproc or a launcher", ValueError, (2,), dict(on=Local(nproc=2))), ("init must be", ValueError, (2,), dict(init=3)), ("at least 1", dtnb.LaunchError, (0,), {})]:
        with pytest.raises(error, match=words): Session(*args, **kw)
    assert dtnb.jobs() == []


def test_a_session_that_cannot_start_says_why():
    t = time.monotonic()
    with pytest.raises(dtnb.DtnbError, match="no-such-backend"): Session(2, init="no-such-backend", timeout=6)
    assert time.monotonic() - t < 6


def test_no_process_group_unless_wanted():
    with Session(2, init="none") as s:
        assert s.run("dist.is_initialized(), rank, world_size", timeout=30).result() == {0: (False, 0, 2), 1: (False, 1, 2)}
        s.run("dist.init_process_group('gloo')\nx = torch.ones(1) * rank\ndist.all_reduce(x)", timeout=60)
        assert s.pull("x") == {0: 1, 1: 1}


def test_a_killed_kernel_leaves_nothing_after_its_lease():
    code = """
import os, signal
from dtnb.processes import descendants
from dtnb.session import Session
s = Session(2, lease=2)
s.run("import subprocess\\nsubprocess.Popen(['sleep', '600'], start_new_session=True)")
s.send("import time\\ntime.sleep(600)")
print(s.id, *descendants(os.getpid()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120)
    session_id, *pids = done.stdout.split()
    pids = {int(p) for p in pids}
    assert len(pids) >= 8 and len(alive(pids)) >= 7                     # its zygote may go at once; the ranks have two seconds
    wait_until(lambda: not alive(pids), 30, "the end of all")
    job = dtnb.attach(session_id)
    with pytest.raises(dtnb.JobCancelledError, match="no kernel has used it for 2 s"): job.result(timeout=10)
    assert not job.paths.tmp.exists() and not {n for n in os.listdir(runtime_dir() / "g") if n.startswith(session_id[-30:])}


# ---- variables

def test_variables_stay_between_cells(s):
    s.run("a = [rank]\ndef grow(): a.append(len(a)); return a")
    assert s.run("grow()").result() == {0: [0, 1], 1: [1, 1]}
    assert s.run("grow(), _").result() == {0: ([0, 1, 2],) * 2, 1: ([1, 1, 2],) * 2}
    assert s.run("__name__, a is grow()").result() == {0: ("__main__", True), 1: ("__main__", True)}


def test_cells_that_are_sent_ahead_run_in_order(s):
    cells = [s.send(f"print({i})\nseen = globals().get('seen', []) + [{i}]") for i in range(20)]
    assert cells[-1].wait(30) == "done" and s.pull("seen") == {0: list(range(20)), 1: list(range(20))}
    assert [c.text(1) for c in cells] == [f"{i}\n" for i in range(20)]


def test_some_ranks(s):
    s.run("v = None")
    s[1].run("v = 'one'")
    assert s.pull("v") == {0: None, 1: "one"}
    s[0, 1].push(v="both")
    s[-1].push(w="last")
    assert s[:].pull("v") == {0: "both", 1: "both"} and s[1:].pull("w") == {1: "last"} == s[-1].pull("w")
    assert s[0].run("rank").result() == {0: 0} and s[[0, 1]].ranks == (0, 1) and s.send("1", 1).ranks == (1,)
    for odd in (2, -3, (0, 5), slice(5, 9)):
        with pytest.raises(IndexError, match="it has ranks 0 to 1"): s[odd]
    with pytest.raises(ValueError, match="ranks 1, 7 is not|rank 7 is not"): s.send("1", (1, 7))


def test_big_arrays_there_and_back(s):
    import numpy as np, torch
    a, t = np.arange(12_500_000, dtype=float), torch.arange(25_000_000, dtype=torch.float32)
    s.push(a=a, t=t)
    assert s.run("a.shape, str(a.dtype), float(a[-1]), tuple(t.shape), str(t.dtype), t[-1].item()").result() == dict.fromkeys((0, 1), ((12_500_000,), "float64", 12_499_999.0, (25_000_000,), "torch.float32", t[-1].item()))
    s.run("a[0] = t[0] = rank + 7\ndist.barrier()")
    assert s.run("a[0], t[0].item()").result() == {0: (7.0, 7.0), 1: (8.0, 8.0)}
    assert a[0] == 0 and t[0] == 0
    got = s.pull("a", "t", ranks=1)
    assert got["a"][1][0] == 8 and (got["a"][1][1:] == a[1:]).all() and got["t"][1][0] == 8 and torch.equal(got["t"][1][1:], t[1:])
    got["a"][1][5] = -1                                                  # what came back is ours
    assert s.run("float(a[5])").result()[1] == 5
    s.run("del a, t")


def test_tensors_of_every_kind(s):
    import torch
    given = dict(bf16=torch.randn(3, 5).to(torch.bfloat16), half=torch.ones(2).half(), flags=torch.tensor([True, False]), whole=torch.arange(6).reshape(2, 3).T, empty=torch.empty(0, 4),
                 scalar=torch.tensor(3.5), leaf=torch.ones(2, requires_grad=True), complex=torch.tensor([1 + 2j]), parameter=torch.nn.Parameter(torch.ones(2)), fp8=torch.ones(4).to(torch.float8_e4m3fn))
    s.push(given=given)
    back = s.pull("given", ranks=1)[1]
    for name, t in given.items():
        b = back[name]
        assert (type(b), b.dtype, b.shape, b.requires_grad) == (type(t), t.dtype, t.shape, t.requires_grad), name
        assert torch.equal(b.detach().to(torch.complex64), t.detach().to(torch.complex64)), name


def test_a_class_of_the_notebook_travels(s):
    Config = in_main("class Config:\n    def __init__(self, lr): self.lr = lr\n    def double(self): return 2 * self.lr", "Config")
    s.push(config=Config(3))
    assert s.run("config.lr *= rank + 1\nconfig.double()").result() == {0: 6, 1: 12}
    assert s.pull("config", ranks=1)[1].double() == 12
    s.run("class Theirs:\n    def name(self): return 'theirs'\nt = Theirs()")
    assert s.pull("t")[0].name() == "theirs"


def test_what_cannot_travel(s):
    with pytest.raises(dtnb.DtnbError, match="NameError: name 'nowhere' is not defined on rank"): s.pull("nowhere")
    s.run("import threading\nlock = threading.Lock()")
    with pytest.raises(dtnb.DtnbError, match="TypeError: lock of rank . can't be sent: cannot pickle"): s.pull("lock")
    with pytest.raises(TypeError, match="mine can't be sent"): s.push(mine=threading.Lock())
    with pytest.raises(ValueError, match="needs the name"): s.pull()
    assert s.run("rank").result() == {0: 0, 1: 1}


def test_who_knows_shapes(s):
    s.run("import os\nw = torch.ones(2, 3 + rank)\nn, text, _private = rank, 'short', 1\nmodel = torch.nn.Linear(3, 4)")
    assert s.who()[1]["w"] == dict(type="Tensor", shape="(2, 4)", dtype="float32", device="cpu") and s.who()[0]["n"]["value"] == "0"
    assert s.who()[0]["model"]["shape"] == "16 parameters" and not {"os", "_private", "torch", "dist", "rank"} & set(s.who()[0])


def test_who_with_a_lazy_module(s):
    "Its parameters have no number yet"
    s.run("lazy = torch.nn.LazyLinear(3)")
    try: assert s.who()[0]["lazy"]["type"] == "LazyLinear"
    finally: s.run("del lazy")


# ---- failure

def test_plain_error_of_one_rank(s):
    error, cell = fails(s, "print('before', rank)\nvalue = rank\nif rank == 1:\n    raise ValueError('bad batch 7')\nprint('after', rank)")
    assert (error.rank, error.message) == (1, "ValueError: bad batch 7 (line 4 of the cell)") and "raise ValueError" in plain(error.traceback)
    assert str(error) == f"rank 1 on {error.host}: ValueError: bad batch 7 (line 4 of the cell)"
    assert plain("".join(error._render_traceback_())).count("ValueError: bad batch 7") == 2                   # the head, and the rank's own traceback
    assert cell.text(0) == "before 0\nafter 0\n" and cell.text(1) == "before 1\n"
    assert s.run("value").result() == {0: 0, 1: 1}
    import pickle
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_same_error_everywhere_is_raised_once(s):
    with pytest.raises(dtnb.CellFailedError, match=r"ZeroDivisionError: division by zero \(line 1 of the cell\)\nrank .: ZeroDivisionError"): s.run("1 / 0")
    with pytest.raises(dtnb.CellFailedError, match=r"SystemExit: 2"): s.run("import sys\nsys.exit(2)")
    with pytest.raises(dtnb.CellFailedError, match="AssertionError"): s.run("assert rank > 5")
    assert s.run("rank").result() == {0: 0, 1: 1}


def test_the_line_of_an_error_is_one_of_its_cell(s):
    "A function of an earlier cell, and a cell magic, have lines of their own"
    s.run("a = 1\nb = 2\ndef divides():\n    c = 1\n    return 1 / 0")
    for code, right in [("x = 1\ndivides()", 2), ("%%time\nx = 1\n1 / 0", 3), ("import json\n\njson.loads('{')", 3)]:
        error, _ = fails(s, code)
        assert "of the cell" not in error.message or f"(line {right} of the cell)" in error.message, error.message


def test_a_cell_that_ends_with_exit(s):
    "`exit()` is a notebook's word for: stop the kernel. The ranks stay, or it is said what became of them"
    with contextlib.suppress(dtnb.CellFailedError): s.run("kept = 5\nexit()", timeout=20)
    time.sleep(1)
    assert s.run("kept", timeout=20).result(20) == {0: 5, 1: 5}


@pytest.mark.parametrize("waits", ["dist.barrier()", "dist.all_reduce(torch.ones(1))"])
def test_error_while_the_others_wait(s, waits):
    t, before = time.monotonic(), everything(s)
    error, cell = fails(s, f"print('I am', rank)\nif rank == 1: raise ValueError('not here')\n{waits}")
    assert time.monotonic() - t < 10
    assert (error.rank, error.message) == (1, "ValueError: not here (line 2 of the cell)")
    assert "rank 0: waited in" in str(error) and "(line 3 of the cell)" in str(error) and "new process group" in str(error)
    assert cell.text(0) == "I am 0\n" and cell.text(1) == "I am 1\n" and cell.pending == []
    assert s.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()", timeout=30).result() == {0: 2.0, 1: 2.0}
    s.restart()
    wait_until(lambda: not alive(before), what="the end of the first ranks")


LOADER = """
import os, signal, time
from torch.utils.data import DataLoader
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 100
    def __getitem__(self, i):
        print("worker", os.getpid(), flush=True)
        time.sleep(.05 if i < 2 else 600)
        return i
batches = iter(DataLoader(Slow(), num_workers=2, batch_size=1))
next(batches)
dist.barrier()
"""


@pytest.mark.parametrize("end,words", [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL")])
def test_a_rank_that_dies(s, decoy, end, words):
    pid = s.job.view.ranks[1].pid
    error, cell = fails(s, LOADER + f"if rank == 1:\n    print('last words', flush=True)\n    {end}\ndist.barrier()", seconds=20)
    assert error.rank == 1 and words in error.message and "last words" in cell.text(1)
    workers = {r: {int(line.split()[1]) for line in cell.text(r).splitlines() if line.startswith("worker")} for r in (0, 1)}
    assert len(workers[1]) == 2
    wait_until(lambda: not alive({pid, *workers[1]}), what="the end of the rank and its workers")
    for ranks in (None, 0, 1):
        with pytest.raises(dtnb.DtnbError, match=f"rank 1 is gone: .*{words}.*%dist restart"): s.send("1", ranks)
    with pytest.raises(dtnb.DtnbError, match="rank 1 is gone"): s.push(a=1)
    with pytest.raises(dtnb.DtnbError, match="rank 1 is gone"): s.pull("rank")
    s.restart()
    assert s.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()", timeout=30).result() == {0: 2.0, 1: 2.0}
    wait_until(lambda: not alive(workers[0]), what="the end of the other rank's workers")


@pytest.mark.parametrize("what", [lambda s: s.pull("rank", timeout=6), lambda s: s.push(x=1, timeout=6)], ids=["pull", "push"])
def test_a_rank_that_dies_while_a_value_waits_for_it(s, what):
    cell = s.send("import os, time\ntime.sleep(1)\nif rank == 1: os._exit(3)")
    t = time.monotonic()
    with pytest.raises(dtnb.DtnbError, match="rank 1 is gone: .*exit code 3"): what(s)
    assert time.monotonic() - t < 6
    assert cell.wait(10) == "failed"


def test_a_cell_that_waits_behind_one_that_fails(s):
    first, second = s.send("if rank == 1: raise ValueError('not here')\ndist.barrier()"), s.send("print('second')")
    assert first.wait(30) == "failed" and "rank 0: waited in" in str(first.exception())
    assert second.wait(10) == "done" and second.text(0) == "second\n"


def test_a_rank_that_will_not_stop(s):
    "It holds the GIL: nobody hears the interrupt, and no thread beside it answers"
    cell, behind = s.send("print('adding', flush=True)\nsum(range(10 ** 13))", 0), s.send("print('behind')")
    heard(cell, 0, "adding")
    assert cell.cancel(3) == "failed" and cell.stuck and "did not stop" in str(cell.exception())
    assert behind.wait(6) == "failed"
    with pytest.raises(dtnb.DtnbError, match="rank 0 is still in cell .*%dist restart"): s.send("1")
    s.restart()
    assert s.run("rank").result(30) == {0: 0, 1: 1}


def test_ranks_die_at_different_times(s):
    "A rank that goes on is waited for; both deaths are told"
    error, cell = fails(s, "import os, time\nif rank == 1: os._exit(4)\ntime.sleep(1.5)\nprint('went on', flush=True)\nos._exit(5)")
    assert (error.rank, cell.text(0)) == (1, "went on\n") and "exit code 4" in error.message and re.search("rank 0: .*exit code 5", str(error))


def test_a_death_in_the_first_cell_is_always_heard_of(s):
    "Whoever else reads the guard's word at that moment"
    for _ in range(6):
        s.restart()
        error, _ = fails(s, "import os\nif rank == 1: os._exit(3)", seconds=6)
        assert error.rank == 1 and "exit code 3" in error.message


def test_a_rank_that_dies_between_cells(s):
    os.kill(s.job.view.ranks[0].pid, signal.SIGKILL)
    wait_until(lambda: s.hear() or s.dead, what="the death is heard of")
    with pytest.raises(dtnb.DtnbError, match="rank 0 is gone: .*SIGKILL.*%dist restart"): s.run("1")


def test_syntax_errors_are_told_before_anything_is_sent(s):
    sent = next(s.numbers)
    for code in ("x = 1\nfor", "print('a'", "return 5 +", "  x\n y"):
        with pytest.raises(SyntaxError): s.send(code)
    with pytest.raises(SyntaxError) as caught: s.send("x = 1\nfor")
    assert caught.value.lineno == 2
    assert next(s.numbers) == sent + 1


def test_input_is_refused(s):
    with pytest.raises(dtnb.CellFailedError, match=r"input\(\) can't ask in a rank.*%dist push"): s.run("answer = input('how many? ')", timeout=20)
    with pytest.raises(dtnb.CellFailedError, match="can't ask in a rank"): s.run("import getpass\ngetpass.getpass()", timeout=20)


def test_a_timeout_of_the_caller(s):
    with pytest.raises(dtnb.JobTimeoutError, match="cell .* still runs on ranks 0-1 after 0.3 s; it goes on"): s.run("import time\ntime.sleep(1.5)\ncame = 'to its end'", timeout=.3)
    assert s.run("came", timeout=20).result() == {0: "to its end", 1: "to its end"}


def test_a_cell_that_runs_while_its_session_is_closed():
    "Whoever waits for it hears of the end"
    s = Session(2)
    cell = s.send("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    heard(cell, 0, "begun")
    threading.Timer(1, s.close).start()
    with pytest.raises(dtnb.DtnbError): cell.result(20)
    assert cell.state == "failed"
    for what in (lambda: s.send("1"), lambda: s.pull("x"), lambda: s.push(x=1), lambda: s.ask(0, "who")):
        with pytest.raises(dtnb.DtnbError, match="this session has ended"): what()
    s.close()


# ---- interrupts

@pytest.mark.parametrize("busy", ["time.sleep(600)", "while True: pass", "for i in range(6000): time.sleep(.1)", "import asyncio; await asyncio.sleep(600)"])
def test_interrupt(s, busy):
    cell = s.send(f"import time\nkept = [rank]\nprint('begun', flush=True)\n{busy}")
    for r in (0, 1): heard(cell, r, "begun")
    t = time.monotonic()
    s.interrupt()
    assert cell.wait(8) == "failed" and time.monotonic() - t < 8
    assert cell.exception().told["type"] in ("KeyboardInterrupt", "CancelledError") and set(cell.failures) == {0, 1}
    assert s.run("kept").result() == {0: [0], 1: [1]}
    assert s.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()", timeout=30).result() == {0: 2.0, 1: 2.0}


def test_interrupts_between_cells_do_nothing(s):
    s.run("kept = 1")
    for _ in range(5): s.interrupt(); time.sleep(.05)
    assert s.run("kept").result() == {0: 1, 1: 1}


def test_interrupts_at_any_moment(s):
    "Before a cell has begun, in it, and after its end: it is interrupted or not, but no rank is lost"
    for i in range(60):
        cell = s.send("for _ in range(2000): pass")
        time.sleep(i % 12 / 1500)
        s.interrupt()
        cell.wait(10)
        assert not cell.exception() or cell.exception().told["type"] in ("KeyboardInterrupt", "CancelledError"), str(cell.exception())
    assert s.run("rank", timeout=10).result() == {0: 0, 1: 1} and not s.dead


def test_cancel_of_a_cell(s):
    cell = s.send("print('begun', flush=True)\nimport time\ntime.sleep(600)")
    heard(cell, 1, "begun")
    assert cell.cancel() == "failed" and s.run("rank").result() == {0: 0, 1: 1}


# ---- output

def test_four_ranks_with_thousands_of_lines():
    with Session(4) as s:
        cell = s.run("for i in range(5000): print(rank, i, flush=True)", timeout=120)
        for r in range(4): assert cell.text(r) == "".join(f"{r} {i}\n" for i in range(5000)), r


def test_streams_are_kept_apart_and_in_order(s):
    cell = s.run("import sys\nfor i in range(500):\n    print('out', i)\n    print('err', i, file=sys.stderr)")
    assert cell.text(0, "stdout") == "".join(f"out {i}\n" for i in range(500)) and cell.text(0, "stderr") == "".join(f"err {i}\n" for i in range(500))
    assert cell.text(0) == "".join(f"out {i}\nerr {i}\n" for i in range(500))


def test_output_of_native_code_belongs_to_its_cell(s):
    s.run("import ctypes, os, subprocess\nlibc = ctypes.CDLL(None)")
    cells = [(i, s.run(f"n = os.write(1, b'w{i}\\n')\nn = os.system('echo s{i}')\nn = libc.puts(b'c{i}'), libc.fflush(None)\nn = subprocess.run(['echo', 'p{i}'])\nn = os.write(2, b'e{i}\\n')")) for i in range(20)]
    for i, cell in cells:
        for r in (0, 1): assert cell.text(r, "stdout") == f"w{i}\ns{i}\nc{i}\np{i}\n" and cell.text(r, "stderr") == f"e{i}\n", (i, r)


def test_late_prints_stay_with_their_cell(s):
    first = s.run("import threading, time\ndef later(): time.sleep(1); print('late'); time.sleep(.5); print('later')\nthreading.Thread(target=later).start()\nprint('early')")
    second = s.run("print('second')\ntime.sleep(1.2)\nprint('end')")
    heard(first, 0, "later\n")
    heard(first, 1, "later\n")
    assert [c.text(r) for c in (first, second) for r in (0, 1)] == ["early\nlate\nlater\n"] * 2 + ["second\nend\n"] * 2


def test_bytes_and_long_lines(s):
    cell = s.run("import sys\nn = sys.stdout.buffer.write('é ☃\\n'.encode())\nsys.stdout.buffer.flush()\nn = sys.stderr.buffer.write(b'e\\n')")
    assert cell.text(0, "stdout") == "é ☃\n" and cell.text(0, "stderr") == "e\n"
    assert s.run("print('x' * 200_000, end='')").text(1) == "x" * 200_000
    assert s.run("import time\nfor i in range(20):\n    print('é☃x' * 20_000, end='', flush=True)\n    time.sleep(.03)").text(1) == "é☃x" * 400_000
    assert s.run("print('a\\0b\\udc80 🙂')").text(0) == "a\0b\\udc80 🙂\n"
    with pytest.raises(dtnb.CellFailedError, match=r"write\(\) argument must be str, not int"): s.run("import sys\nsys.stdout.write(3)")


def test_a_line_without_end_is_heard_of_soon(s):
    cell = s.send("import time\nprint('half a line', end='')\ntime.sleep(4)")
    t = time.monotonic()
    heard(cell, 0, "half a line")
    assert time.monotonic() - t < 3.5 and cell.pending
    cell.wait(20)


def test_prints_of_children(s):
    forked = s.run("import os\nprint('parent waits', end=' ')\npid = os.fork()\nif pid == 0:\n    print('child'); os._exit(0)\nn = os.waitpid(pid, 0)\nprint('and goes on')")
    for r in (0, 1): assert sorted(forked.text(r).split()) == sorted("parent waits and goes on child".split())
    loader = s.run("class Says(torch.utils.data.Dataset):\n    def __len__(self): return 4\n    def __getitem__(self, i): print('item', i, flush=True); return i\nn = list(torch.utils.data.DataLoader(Says(), num_workers=2))", timeout=60)
    for r in (0, 1): assert sorted(loader.text(r).splitlines()) == [f"item {i}" for i in range(4)]


def test_displays_come_in_order_with_prints(s):
    cell = s.run("from IPython.display import display, HTML, clear_output\nprint('one')\ndisplay(HTML(f'<b>{rank}</b>'))\nprint('two')\nrank")
    assert [(i.kind, i.text or i.content["data"].get("text/html") or i.content["data"]["text/plain"]) for i in cell.outputs[1]] == [("stdout", "one\n"), ("display_data", "<b>1</b>"), ("stdout", "two\n"), ("execute_result", "1")]
    assert s.run("print('gone')\nclear_output()\nprint('stays')").text(0) == "stays\n"


def test_a_display_of_megabytes_while_a_thread_prints(s):
    cell = s.run("from IPython.display import display, HTML\nimport threading\nt = threading.Thread(target=lambda: [print('line', i) for i in range(3000)])\nt.start()\ndisplay(HTML('x' * 3_000_000))\nt.join()", timeout=30)
    for r in (0, 1):
        assert [i.content["data"]["text/html"] for i in cell.outputs[r] if i.content] == ["x" * 3_000_000]
        assert cell.text(r) == "".join(f"line {i}\n" for i in range(3000))


def test_progress_of_a_cell(s):
    cell = s.run("import dtnb, time\nfor i in dtnb.track(range(30), desc='batch'):\n    dtnb.log(loss=1 / (i + 1))\n    time.sleep(.01)")
    cell.reader.poll()
    for r in (0, 1): assert (cell.view.ranks[r].bar.desc, cell.view.ranks[r].bar.n, cell.view.ranks[r].scalars["loss"].last) == ("batch", 30, 1 / 30)
    later = s.run("print('no bar')")
    later.reader.poll()
    assert later.view.ranks[1].bar is None and later.view.state == "done"


def test_modules_beside_the_notebook(tmp_path, monkeypatch):
    "Ranks import them as they are now, and again after an edit"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside.py").write_text("def value(): return 'first'\n")
    with Session(2) as s:
        assert s.run("import os, beside\nos.getcwd(), beside.value()", timeout=30).result() == {r: (str(tmp_path), "first") for r in (0, 1)}
        (tmp_path / "beside.py").write_text("def value(): return 'as it was edited'\n")
        assert s.run("import importlib\nimportlib.reload(beside).value()").result()[1] == "as it was edited"


# ---- what people type

@pytest.mark.parametrize("code,value,text", [
    ("import asyncio\nawait asyncio.sleep(.05)\n'awaited'", "awaited", None), ("async def f(): return 4\nawait f()", 4, None), ("!echo hello $RANK", None, "hello 0"),
    ("got = !echo there\nlist(got)", ["there"], None), ("%timeit -n1 -r1 1 + 1", None, "per loop"), ("%%time\nx = 3\nx + 1", 4, "Wall time"), ("x = 5", None, ""), ("x = 5\nx + 1;", None, ""), ("rank", 0, None),
    ("import inspect\ndef f(): return 41 + 1\ninspect.getsource(f)", "def f(): return 41 + 1\n", None), ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A", True, None), ("", None, ""),
    ("%%capture held\nprint('hidden')", None, ""), ("import tqdm\nfor i in tqdm.tqdm(range(3)): pass", None, "3/3"), ("import logging\nlogging.getLogger('x').warning('careful')", None, "careful")])
def test_cells_are_those_of_a_notebook(s, code, value, text):
    cell = s.run(code, timeout=30)
    assert cell.result(20)[0] == value
    assert text is None or (text in cell.text(0) if text else not cell.text(0)), cell.outputs


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_classes_of_a_cell_in_dataloader_workers(s, method):
    "The classes come from one cell, the loader from the next"
    s.run("class Squares(torch.utils.data.Dataset):\n    def __len__(self): return 8\n    def __getitem__(self, i): return helper(i)\ndef helper(i): return i * i\ndef collate(batch): return sum(batch)", 0)
    assert s.run(f"list(torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context='{method}', collate_fn=collate))", 0, timeout=120).result(20) == {0: [14, 126]}


def test_figures_of_ranks(s):
    cell = s.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([0, rank])\nplt.show()", timeout=60)
    for r in (0, 1): assert [i.kind for i in cell.outputs[r] if "image/png" in i.content.get("data", {})] == ["display_data"], cell.outputs[r]


# ---- completion

def test_completion_runs_none_of_the_users_code(s):
    s.run("asked = []\nclass Model:\n    def __init__(self): self.weights_of_mine = 3\n    @property\n    def costly(self): asked.append(1); return 3\n    def __getattr__(self, name): asked.append(name); raise AttributeError(name)\n"
          "    def __dir__(self): asked.append('dir'); return []\nmodel = Model()\nconfig = dict(lr=1, layers=2)")
    def complete(code): return s.ask(0, "complete", code=code, cursor=len(code))
    assert complete("x = mod")["matches"][0] == "model" and complete("x = mod")["start"] == 4
    assert complete("model.cos")["matches"] == ["costly"] and complete("model.weights")["matches"] == ["weights_of_mine"] and complete("model.costly.")["matches"] == []
    assert complete("config['l")["matches"] == ["layers", "lr"] and "all_reduce" in complete("dist.all_red")["matches"]
    assert "costly" not in (s.ask(0, "describe", name="model.costly") or "") and s.ask(0, "describe", name="nowhere") is None
    assert s.run("asked").result() == {0: [], 1: []}


def test_no_completion_while_a_cell_runs(s):
    cell = s.send("import time\nprint('begun', flush=True)\ntime.sleep(2)")
    heard(cell, 0, "begun")
    assert s.ask(0, "complete", code="ti", cursor=2) is None and s.ask(0, "describe", name="time") is None and "line 3 of the cell" in str(s.where(0))
    assert cell.wait(20) == "done" and "time" in s.ask(0, "complete", code="ti", cursor=2)["matches"]


# ---- in real kernels

def notebook(cwd, cells):
    "Run a notebook's cells in a kernel of its own; the text of all that each put out, without colours"
    import nbformat
    from dtnb.cli import client_for
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = client_for(nb, cwd)
    client.allow_errors, client.timeout = True, 120
    client.execute(cleanup_kc=True)
    return [plain("".join(_said(o) for o in c.outputs)) for c in nb.cells]


def _said(o):
    if o.output_type == "stream": return o.text
    if o.output_type == "error": return f"<{o.ename}: {o.evalue}>\n" + "\n".join(o.traceback)
    return "<figure>\n" if "image/png" in o.data else o.data.get("text/plain", "") + "\n"


STATE = "{k: sorted(v) for k, v in get_ipython().magics_manager.magics.items()}, len(get_ipython().input_transformers_cleanup), len(get_ipython().Completer.custom_matchers), 'object_inspect_mime' in vars(get_ipython())"
BOOK = dict(
    before=f"before = {STATE}; x = \"the notebook's\"; data = [1, 2, 3]",
    load="%load_ext dtnb", nothing="%dist status",
    first="%%distributed\nx = 'of the ranks'\nprint('hello')\nprint('I am', rank)", mine="x, 'rank' in globals(), 'dist' in globals()",
    magics="list(get_ipython().magics_manager.magics['line'].keys() & {'px', 'autopx', 'pxresult'})",
    again="%%distributed\nprint(x)\nrank * 2",
    pull="%%distributed --name step --ranks 1 --pull y\ny = rank * 10", pulled="y",
    push="%%distributed --push data --pull total,least\ntotal, least = sum(data) + rank, min(data)", pushed="total, least",
    detach="%%distributed --detach\nimport time\ntime.sleep(1)\nprint('from afar')\nrank + 1", meanwhile="handle = _\nstate = str(handle.state)", result="state, handle.result(30)",
    quiet="%%distributed --quiet\nprint('not shown')", ranks="%%distributed --ranks 0\nprint('only', rank)", both="%%rank [0,1]\nprint('both')", one="%%rank 1\nprint('one', rank)",
    status="%dist status", who="%dist who", dist_push="%dist push data", dist_pull="%dist pull data", dist_pulled="data",
    figures="%%distributed\nimport matplotlib.pyplot as plt\nplt.plot([0, rank])\nplt.show()",
    fails="%%distributed\nprint('before')\nif rank == 1: 1 / 0", after="%%distributed\nprint('goes on')",
    syntax="%%distributed\nx = 1\nfor", odd_push="%%distributed --push nowhere\n1", odd_option="%%distributed --rnaks 1\n1", odd_word="%dist strat", odd_rank="%%rank 7\n1", second="%dist start -n 2",
    timer="import os, signal, threading\nthreading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()",
    interrupted="%%distributed\nkept = 1\nimport time\ntime.sleep(600)", kept="%%distributed\nprint('kept', kept)",
    auto="%dist auto on", auto_cell="there = rank\nprint('auto', there)", auto_local="%%local\nprint(x, 'there' in globals())", auto_magic="%dist status", auto_off="%dist auto off", auto_after="x, 'there' in globals()",
    waits="%%distributed\nif rank == 1: raise KeyError('gone')\ndist.barrier()", healed="%%distributed\ndist.barrier()\nprint('healed')",
    dies="%%distributed\nimport os\nif rank == 1: os._exit(3)", refused="%%distributed\n1", restart="%dist restart", restarted="%%distributed\nprint('fresh', 'kept' in globals())",
    stop="%dist stop", stopped="%dist status", unload="%unload_ext dtnb", unloaded="%%distributed\n1", same=f"before == ({STATE})")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    "What every cell of BOOK put out"
    with own_home(tmp_path_factory): return dict(zip(BOOK, notebook(tmp_path_factory.mktemp("book"), BOOK.values())))


@pytest.mark.parametrize("cell,pattern", dict(
    load="^$", nothing="no ranks are running: %dist start", first=r"^2 ranks \(gloo on CPU\) ready in .*s\nranks 0-1 │ hello\nrank 0    │ I am 0\nrank 1    │ I am 1\n$",
    mine=r"""^\("the notebook's", False, False\)\n$""", magics=r"^\[\]", again=r"^ranks 0-1 │ of the ranks\nrank 0 │ 0\nrank 1 │ 2\n$", pull=r"y: \{rank: value\} of rank 1\n$", pulled=r"^\{1: 10\}\n$",
    pushed=r"^\(\{0: 6, 1: 7\}, \{0: 1, 1: 1\}\)\n$", detach="Cell\\(", meanwhile="^$", result=r"^\('running', \{0: 1, 1: 2\}\)\n$", quiet="^$", ranks="^only 0\n$", both="^ranks 0-1 │ both\n$", one="^one 1\n$",
    status=r"^2 ranks, Local, since .*\n  rank 0  waits for a cell\n  rank 1  waits for a cell\n$", who=r"data +list len 3\nleast +int = 1\n", dist_push="^$", dist_pull="data: ", dist_pulled=r"^\{0: \[1, 2, 3\], 1: \[1, 2, 3\]\}",
    figures="^(?!.*<figure>[^$]*<figure>[^$]*<figure>)[^$]*rank 0\n<figure>\nrank 1\n<figure>\n$", fails=r"before\n<CellFailedError: .*rank 1 of 2 failed|before\n<CellFailedError", after="^ranks 0-1 │ goes on\n$",
    syntax=r"SyntaxError", odd_push="'nowhere' is not a variable of this notebook", odd_option="--rnaks", odd_word="%dist has no 'strat'", odd_rank="rank 7 is not in this session: it has ranks 0 to 1", second="2 ranks are running: %dist stop",
    interrupted="interrupted: the ranks have stopped, their variables are kept", kept="^ranks 0-1 │ kept 1\n$",
    auto="every cell runs on the ranks now", auto_cell="^rank 0 │ auto 0\nrank 1 │ auto 1\n$", auto_local="^the notebook's False\n$", auto_magic="every cell runs on the ranks", auto_off="cells run in the notebook again", auto_after="the notebook's\", False",
    waits=r"KeyError[^$]*rank 0: waited in barrier[^$]*new process group", healed="^ranks 0-1 │ healed\n$", dies="exit code 3", refused="rank 1 is gone: .*%dist restart gives you fresh ones", restart=r"2 ranks \(gloo on CPU\) ready in .* earlier variables are gone", restarted="^ranks 0-1 │ fresh False\n$",
    stop="the ranks are gone", stopped="no ranks are running", unload="^$", unloaded="UsageError: Cell magic `%%distributed` not found", same="^True\n$").items())
def test_magics(book, cell, pattern): assert re.search(pattern, book[cell]), book[cell]


def test_a_failure_is_shown_once_with_rank_and_line(book):
    shown = book["fails"].partition(">\n")[2]
    assert "rank 1 of 2 failed: ZeroDivisionError: division by zero (line 3 of the cell)" in shown
    assert shown.count("1 / 0") == 1 and "session.py" not in shown and "magic.py" not in shown


def test_what_a_person_can_mend_is_shown_without_our_own_lines(book):
    for cell in ("syntax", "odd_push", "odd_option", "odd_word", "refused", "interrupted", "second"): assert "session.py" not in book[cell] and "magic.py" not in book[cell], book[cell]


def test_magics_of_nbdistributed(tmp_path):
    cells = dict(load="%load_ext dtnb", init="%dist_init -n 2", set="mine = rank * 2", cell="print(mine, gpu_id)\nmine", sync="%sync", status="%dist_status", off="%dist_mode -d", here="'mine' in globals()", on="%dist_mode -e",
                 there="'mine' in globals()", off_again="%dist_mode -d", shutdown="%dist_shutdown", over="%dist_status")
    said = dict(zip(cells, notebook(tmp_path, cells.values())))
    for cell, pattern in dict(init=r"2 ranks \(gloo on CPU\) ready\. Every cell runs on them", set="^$", cell="rank 0 │ 0 None\n[^$]*rank 1 │ 2", sync="all ranks are here", status="2 ranks, Local", off="every cell runs on the ranks: no",
                              here="^False\n$", on="ranks: yes", there="ranks 0-1 │ True", shutdown="the ranks are gone", over="no ranks are running").items(): assert re.search(pattern, said[cell]), (cell, said[cell])


# ---- at last

def test_a_long_cell(long_cell):
    "Longer than any time-out of sockets, heartbeats and hubs"
    assert all(35 <= t < 60 for t in long_cell.result(60).values())
    assert long_cell.session.run("rank", timeout=30).result() == {0: 0, 1: 1}


def test_a_question_mark_in_a_cell(s):
    "What a pager would show is output of the cell"
    cell = s.run("def trains(model, *, lr=.1):\n    'Some words'\ntrains?", timeout=30)
    shown = [i.content["data"]["text/plain"] for i in cell.outputs[1] if i.kind == "display_data"]
    assert len(shown) == 1 and "model, *, lr=0.1" in plain(shown[0]) and "Some words" in shown[0]


def test_a_lesson_without_a_page(tmp_path):
    "`jupyter execute`, then a page of it: everything is there as text"
    lesson = Path(__file__).parent.parent / "nbs" / "course" / "90_from_elsewhere.ipynb"
    run = lambda *a: subprocess.run([sys.executable, "-m", *a], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)
    run("jupyter", "execute", str(lesson), f"--output={tmp_path}/done.ipynb")
    run("jupyter", "nbconvert", "--to", "html", "done.ipynb")
    assert "ranks 0-1" in (tmp_path / "done.html").read_text()
    mimes = {m for c in json.loads((tmp_path / "done.ipynb").read_text())["cells"] for o in c.get("outputs", ()) for m in o.get("data", ())}
    assert mimes <= {"text/plain", "text/html", "image/png"}, "only what VS Code, Colab and GitHub show, too"


def test_the_kernels_interrupt_in_a_collective(tmp_path):
    "The stop button of a notebook: ranks that wait for each other are freed, and the next cell runs"
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(env=os.environ | dict(IPYTHONDIR=str(tmp_path)))
    try:
        assert client.execute_interactive("%load_ext dtnb\n%dist start -n 2", timeout=60, output_hook=lambda m: None)["content"]["status"] == "ok"
        asked = client.execute("%%distributed\nkept = rank\nprint('waiting', flush=True)\ndist.recv(torch.zeros(1), src=1 - rank)")
        time.sleep(3)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=30)
        assert reply["parent_header"]["msg_id"] == asked and reply["content"]["ename"] == "Interrupted"
        said = []
        assert client.execute_interactive("%%distributed\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item(), kept)", timeout=60, output_hook=lambda m: said.append(m["content"].get("text", "")))["content"]["status"] == "ok"
        assert "rank 1 │ 2.0 1" in plain("".join(said))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def test_ranks_outlive_a_kernel_restart(tmp_path):
    "Their variables are there, what they printed meanwhile is shown, and what they still print, too"
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(env=os.environ | dict(IPYTHONDIR=str(tmp_path)))
    def run(code):
        said = []
        reply = client.execute_interactive(code, timeout=60, output_hook=lambda m: said.append(m["content"].get("text", "")))
        assert reply["content"]["status"] == "ok", reply["content"]
        return plain("".join(said))
    try:
        assert "waiting" not in run("%load_ext dtnb")
        run("%dist start -n 2")
        run("%%distributed\nkept = torch.ones(2) * rank\nimport time")
        run("%%distributed --detach\nfor i in range(4):\n    print('step', i, flush=True)\n    time.sleep(1.5)")
        manager.restart_kernel(now=False)
        client.wait_for_ready(timeout=60)
        assert "2 ranks of an earlier kernel are waiting" in run("%load_ext dtnb")
        time.sleep(2)
        said = run("%dist attach")
        assert "2 ranks (gloo on CPU) are back" in said and "step" in said and "step 0" not in said
        assert "ranks 0-1 │ 1.0" in run("%%distributed\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item() * .5") and "rank 1 │ tensor([1., 1.])" in run("%%distributed\nkept")
        job, = [j for j in dtnb.jobs() if j.spec.companion]
        assert not job.state.ended
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)
    wait_until(lambda: job.state.ended, 20, "a kernel that is shut down takes its ranks with it")


def test_attach_after_a_killed_kernel():
    "Also if one of its ranks had died and was started anew"
    code = "import os, signal\nfrom dtnb.session import Session\ns = Session(2)\ns.restart([1])\ns.run('kept = rank + 40')\nprint(s.id, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    with pytest.raises(dtnb.DtnbError, match="is not a session that waits"): Session.attach("no-such-one")
    s = Session.attach(done.stdout.strip())
    try:
        assert s.run("kept", timeout=30).result() == {0: 40, 1: 41}
        with pytest.raises(dtnb.DtnbError, match="no ranks are waiting"): Session.attach()
        s.restart()
        assert s.run("dist.get_world_size()", timeout=30).result() == {0: 2, 1: 2}
    finally: s.close()


def test_attach_to_ranks_of_which_one_has_died():
    "While no kernel was there: it is told, and can be started anew"
    code = "import os, signal\nfrom dtnb.session import Session\ns = Session(2)\ns.run('kept = rank + 40')\ns.send('import os, time\\ntime.sleep(2)\\nif rank == 0: os._exit(5)')\nprint(s.id, flush=True)\nimport time\ntime.sleep(.5)\nos.kill(os.getpid(), signal.SIGKILL)"
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()
    time.sleep(3)
    with Session.attach(left) as s:
        with pytest.raises(dtnb.DtnbError, match="rank 0 is gone: its process ended with exit code 5.*%dist restart --ranks 0"): s.run("1")
        s.restart([0])
        assert s.run("dist.barrier()\nglobals().get('kept')", timeout=30).result() == {0: None, 1: 41}


def test_completion_and_inspection_in_a_kernel(tmp_path):
    "What an editor asks, answered from rank 0 in a cell for the ranks, and from the kernel elsewhere"
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(env=os.environ | dict(IPYTHONDIR=str(tmp_path)))
    run = lambda code: client.execute_interactive(code, timeout=60, output_hook=lambda m: None)["content"]
    try:
        assert run("%load_ext dtnb\n%dist start -n 2\nweights = 'of the kernel'")["status"] == "ok"
        assert run("%%distributed\nweights = torch.zeros(2, 3)\nclass Slow:\n    @property\n    def asked(self): raise SystemError('a property was evaluated')\nslow = Slow()")["status"] == "ok"
        def inspect(code): return client.inspect(code, len(code), reply=True, timeout=30)["content"]["data"].get("text/plain", "")
        def complete(code): return client.complete(code, len(code), reply=True, timeout=30)["content"]["matches"]
        assert "(2, 3)" in inspect("%%distributed\nweights") and "of the kernel" in plain(inspect("weights"))
        assert "weights" in complete("%%distributed\nweig") and "asked" in complete("%%rank 0\nslow.as")
        assert "slow" not in complete("slo")
        run("%dist auto on")
        assert "weights" in complete("y = weig") and "(2, 3)" in inspect("weights")
        assert run("%unload_ext dtnb")["status"] == "ok" and "of the kernel" in plain(inspect("weights"))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


@contextlib.contextmanager
def memory_limit(mib):
    "This process and its children in a control group of their own; skips where that can't be made"
    groups = dict(l.split(":", 2)[1:] for l in Path("/proc/self/cgroup").read_text().splitlines())
    base, limit = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if "memory" in groups else ("/sys/fs/cgroup", "memory.max")
    back, here = Path(base + (groups.get("memory") or groups.get("") or "/")), Path(base) / f"dtnb-test-{os.getpid()}"
    try:
        here.mkdir()
        (here / limit).write_text(str(mib << 20))
    except OSError as err:
        with contextlib.suppress(OSError): here.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here ({err}): it takes root and a writable /sys/fs/cgroup")
    try:
        (here / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        for pid in (here / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError): (back / "cgroup.procs").write_text(pid)
        here.rmdir()


def test_out_of_memory_is_told_from_a_kill():
    code = "x = []\nif rank == 1:\n    while True: x.append(b'x' * 50_000_000)\ndist.barrier()"
    with memory_limit(1500):
        keeper().close()
        with Session(2) as s: error, _ = fails(s, code)
        keeper().close()
    assert error.rank == 1 and "memory ran out, and the system chose it" in str(error), str(error)
    with Session(2) as s:
        error, _ = fails(s, "import os\nif rank == 1: os.kill(os.getpid(), 9)\ndist.barrier()")
        assert error.rank == 1 and "memory ran out, and" not in str(error)


# ---- stopping at once

def test_a_cell_is_stopped_right_after_it_was_sent(s):
    "Before it has begun, too; one that waits behind another does not stop that one"
    s.run("import time", timeout=30)
    for _ in range(20):
        cell = s.send("time.sleep(50)")
        assert cell.cancel() == "failed" and not cell.stuck and cell.exception().told["type"] == "KeyboardInterrupt", str(cell.exception())
    first, second = s.send("time.sleep(3)\n'slept'"), s.send("ran = True")
    second.stop()
    assert first.result(30) == {0: "slept", 1: "slept"}
    assert second.wait(30) == "failed" and s.run("'ran' in globals()", timeout=30).result() == {0: False, 1: False}


# ---- more ranks, or fewer

def test_resize_keeps_the_variables_of_those_that_stay():
    with Session(2) as s:
        s.run("kept = rank * 10\ngroup = dist.new_group([0, 1])", timeout=30)
        cell = s.send("import time\ntime.sleep(60)")
        with pytest.raises(dtnb.DtnbError, match="ranks 0-1 still run a cell"): s.resize(3)
        cell.cancel()
        before = everything(s)
        assert s.resize(4) == ["group (ProcessGroup) still holds the old one: make it again with dist.new_group"]
        whole = "import os\ntotal = torch.ones(1)\ndist.all_reduce(total)\n(world_size, int(total), dist.get_world_size(), os.environ['WORLD_SIZE'], globals().get('kept'))"
        assert s.run(whole, timeout=30).result() == {r: (4, 4, 4, "4", {0: 0, 1: 10}.get(r)) for r in range(4)}
        assert s.run("print('from', rank)", timeout=30).text(3) == "from 3\n" and "4 ranks" in repr(s) and s.ranks == (0, 1, 2, 3)
        s.run("kept = rank", timeout=30)
        with pytest.raises(dtnb.LaunchError, match="asked for 1000 ranks on"): s.resize(1000)
        with pytest.raises(dtnb.CellFailedError, match="rank 3 .*exit code 3"): s.run("import os\nif rank == 3: os._exit(3)\ndist.barrier()", timeout=30)
        with pytest.raises(dtnb.DtnbError, match="rank 3 is gone"): s.resize(5)
        with pytest.raises(ValueError, match="at least 1 rank"): s.resize(0)
        s.resize(3)                                          # the dead one has no place any more
        assert s.run(whole, timeout=30).result() == {r: (3, 3, 3, "3", r) for r in range(3)}
        s.resize(1)
        assert s.run(whole, timeout=30).result() == {0: (1, 1, 1, "1", 0)}
        with pytest.raises(ValueError, match="rank 1 is not in this session"): s.run("1", ranks=[1])
        s.resize(2)
        assert s.run(whole, timeout=30).result() == {0: (2, 2, 2, "2", 0), 1: (2, 2, 2, "2", None)}
        assert s.run("print('again', rank)", timeout=30).text(1) == "again 1\n"
        s.restart()
        assert s.run("world_size", timeout=30).result() == {0: 2, 1: 2}
        pids = before | everything(s)
    wait_until(lambda: not alive(pids), what="the end of all")


def test_attach_after_a_resize():
    code = "import os, signal\nfrom dtnb.session import Session\ns = Session(3)\ns.resize(2)\ns.run('kept = rank + 40')\nprint(s.id, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    with Session.attach(left.stdout.strip()) as s:
        assert s.run("(kept, world_size)", timeout=30).result() == {0: (40, 2), 1: (41, 2)}
        s.resize(3)
        assert s.run("dist.barrier()\nworld_size", timeout=30).result() == {0: 3, 1: 3, 2: 3}
