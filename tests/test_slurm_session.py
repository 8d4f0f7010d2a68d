"Sessions on a real Slurm of two nodes: as on one machine, and what only a cluster can do to them."
import contextlib, glob, json, os, re, signal, subprocess, sys, threading, time
from pathlib import Path

import pytest

import dtnb
from conftest import SLOW, alive, wait_until
from dtnb.event import EventReader
from dtnb.job import DtnbError
from dtnb.launchers.slurm import read_record
from slurm import Cluster
from slurm.cluster import missing
from test_slurm import dtnb_processes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")
FOUR = dict(nodes=2, nproc_per_node=2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster() as c, pytest.MonkeyPatch.context() as m:
        for k, v in dict(SLURM_CONF=c.env["SLURM_CONF"], DTNB_SQUEUE_SECONDS=".5", DTNB_HOME=str(tmp_path_factory.mktemp("module") / "home")).items(): m.setenv(k, v)
        yield c


@pytest.fixture(autouse=True)
def here(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("DTNB_SQUEUE_SECONDS", ".5")


@pytest.fixture(scope="module")
def kept(cluster):
    s = dtnb.Session(on=dtnb.Slurm(**FOUR))
    yield s
    s.close()
    assert s.job.state == "done", s.job.view.reason
    wait_until(lambda: not dtnb_processes(s.job), 40, "the end of all")


@pytest.fixture
def s(kept):
    "The session that these tests share, with fresh ranks if the last one broke it"
    try: kept.run("1", timeout=30)
    except DtnbError: kept.restart()
    return kept


def number(session): return read_record(session.paths)["id"]

def fails(session, code, seconds=60):
    "The error of a cell that must fail, and the cell"
    cell = session.send(code)
    cell.wait(seconds)
    assert cell.state == "failed", {r: cell.text(r) for r in cell.ranks}
    return cell.exception(), cell


# ---- as on one machine

def test_state_between_cells_on_two_nodes(s):
    cell = s.run("import socket\nx = torch.ones(1) * rank\nprint(socket.gethostname(), local_rank)\ndist.all_reduce(x)")
    assert [cell.text(r) for r in s.ranks] == ["node1 0\n", "node1 1\n", "node2 0\n", "node2 1\n"]
    assert s.run("x.item(), world_size").result() == dict.fromkeys(range(4), (6.0, 4))
    with pytest.raises(dtnb.LaunchError, match="Slurm can't change the number of ranks"): s.resize(2)
    assert not s.dead and s[2, 3].run("rank").result() == {2: 2, 3: 3}


def test_arrays_there_and_back(s):
    import numpy as np
    a = np.arange(2_000_000, dtype=float)
    s.push(a=a)
    assert s.run("float(a[-1])").result() == dict.fromkeys(range(4), 1_999_999.0)
    assert all(np.array_equal(a, got) for got in s.pull("a").values())
    assert s.who()[3]["a"]["shape"] == "(2000000,)"


def test_steps_are_recorded_on_both_nodes(s):
    "While a cell runs, as `%dist trace` does; the nodes' clocks are measured"
    cell = s.send("import dtnb, time\nfor i in dtnb.track(range(2000)):\n    dist.all_reduce(torch.ones(10))\n    time.sleep(.01)")
    wait_until(lambda: s.listen() or all(v.bars for v in cell.view.ranks.values()), 60, "progress of all")
    t = s.timeline(s.trace(2), 60)
    assert len(t.traces) == 4 and "the clocks were measured" in t.clock_note, t.clock_note
    cell.cancel(30)


def test_a_rank_raises_while_others_wait(s):
    "The others are freed, also on the other node, and the next collective works with the variables that are there"
    s.run("kept = rank * 10")
    error, cell = fails(s, "if rank == 3: raise ValueError('bad batch 7')\ndist.all_reduce(torch.ones(1))")
    assert str(error).startswith("rank 3 on node2: ValueError: bad batch 7") and "ranks 0-2: waited in all_reduce" in str(error) and "variables are kept" in str(error)
    assert s.run("y = torch.ones(1)\ndist.all_reduce(y)\ny.item(), kept").result() == {r: (4.0, 10 * r) for r in range(4)}


def test_where_a_rank_waits_and_the_interrupt(s):
    cell = s.send("import time\nif rank == 2: time.sleep(600)\ndist.barrier()")
    wait_until(lambda: (w := s.where(0)) is not None and w.waits and w.function == "barrier", what="rank 0 in the barrier")
    wait_until(lambda: "line 2 of the cell" in str(s.where(2)), what="rank 2 asleep")
    assert not s.where(2).waits
    assert cell.cancel(30) == "failed" and cell.exception().told["type"] == "KeyboardInterrupt" and not s.dead
    assert s.run("z = torch.ones(1)\ndist.all_reduce(z)\nz.item()", timeout=60).result() == dict.fromkeys(range(4), 4.0)


def test_a_dead_rank_is_named_and_started_anew(s):
    s.run("v = rank")
    error, _ = fails(s, "import os, signal\nif rank == 3: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")
    assert error.rank == 3 and error.host == "node2" and "SIGKILL" in error.message
    with pytest.raises(DtnbError, match="rank 3 is gone.*%dist restart --ranks 3 only these"): s.run("1")
    s.restart([3])
    assert s.run("u = torch.ones(1)\ndist.all_reduce(u)\nu.item(), 'v' in globals()").result() == {r: (4.0, r != 3) for r in range(4)}


def test_all_ranks_die_and_are_started_anew_in_the_same_job(s):
    before = number(s)
    cell = s.send("import os\nos._exit(5)")
    assert cell.wait(60) == "failed" and "exit code 5" in cell.exception().message
    wait_until(lambda: s.hear() or set(s.dead) == set(s.ranks), what="four deaths")
    assert s.restart() == [] and number(s) == before and not s.ended
    assert s.run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item()", timeout=60).result() == dict.fromkeys(range(4), 4.0)


def test_what_crosses_the_network_is_encrypted_and_listens_to_the_nodes_only(s, cluster):
    "Every port of the session is on a node's own address or on the loopback; keys are in files of this user only, and in no process's arguments or variables"
    mine, own = {}, set(cluster.addresses.values())
    ours = [p for p in dtnb_processes(s.job) if "python" in os.readlink(f"/proc/{p}/exe")]    # srun listens everywhere, as always
    assert len(ours) >= 10                                                                    # guards, gates, store, controller, ranks
    for pid in ours:
        for f in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError): mine[os.readlink(f)] = pid
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = {".".join(str(b) for b in bytes.fromhex(f[1].split(":")[0][-8:])[::-1]) for f in rows if f[3] == "0A" and f"socket:[{f[9]}]" in mine}
    assert own & listening and listening <= own | {"127.0.0.1"}, {a: [Path(f'/proc/{p}/cmdline').read_text() for p in ours] for a in listening}
    gates = [json.loads(p.read_text()) for p in sorted((s.paths.tmp / "gates").iterdir())]
    assert [(g["rank"], g["nproc"], g["address"].split(":")[1].strip("/")) for g in gates] == [(2 * i, 2, cluster.addresses[n]) for i, n in enumerate(cluster.nodes)]
    info = json.loads((s.paths.tmp / "ipp" / "security" / "ipcontroller-client.json").read_text())
    secrets = [g[k] for g in gates for k in ("server", "secret")] + [info["curve_serverkey"]]
    assert all(len(k) == 40 for k in secrets)
    for p in (*(s.paths.tmp / "gates").iterdir(), *(s.paths.tmp / "ipp" / "security").glob("*.json"), s.paths.tmp, s.paths.root): assert not p.stat().st_mode & 0o077, p
    for pid in ours:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text(errors="replace")
            assert not [k for k in secrets if k in text]
    import zmq
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:                # a plain client, who knows where the controller is
        stranger.linger = 0
        stranger.connect(f"{info['interface']}:{info['registration']}")
        stranger.send_multipart([b"", b"connection_request"])
        assert not stranger.poll(1000)
    import socket
    host, _, port = gates[1]["address"].removeprefix("tcp://").partition(":")
    with socket.create_connection((host, int(port)), 10) as stranger, pytest.raises(OSError):   # one that says hello with more than memory can hold is hung up on
        stranger.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x06" + (1 << 40).to_bytes(8, "big"))
        for _ in range(256): stranger.sendall(bytes(1 << 20))
    assert s.run("rank").result() == {r: r for r in s.ranks}


# ---- the start

def test_pending_is_shown_and_the_interrupt_cancels(cluster, monkeypatch):
    blocker = cluster.submit("sleep 600", "-N2", "--exclusive", "-w", "node1,node2") if not cluster.run("squeue", "-h").stdout.strip() else None
    told = []
    def waiting(self, words):
        told.append(words)
        if "waits for resources" in words or "others are before it" in words: threading.Timer(.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    monkeypatch.setattr(dtnb.Session, "waiting", waiting)
    with pytest.raises(KeyboardInterrupt): dtnb.Session(on=dtnb.Slurm(**FOUR, exclusive=True))
    (job,) = [j for j in dtnb.jobs() if j.spec.keep_siblings]
    assert job.state == "cancelled" and re.match(r"job \d+: (waits for resources|others are before it)", told[-1]), told
    wait_until(lambda: cluster.state(read_record(job.paths)["id"]) in ("CANCELLED", ""), what="the end in Slurm")
    if blocker: cluster.run("scancel", blocker)


def test_a_process_that_ends_takes_its_session_out_of_the_queue(cluster):
    "As a kernel does that is shut down while it waits"
    code = "import threading, dtnb, dtnb.api\ncame = threading.Event()\ndtnb.Session.waiting = lambda self, words: came.set()\nthreading.Thread(target=lambda: dtnb.Session(on=dtnb.Slurm(begin='now+600', job_name='left')), daemon=True).start()\nassert came.wait(60)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    (job,) = [j for j in dtnb.jobs() if j.spec.options.get("job_name") == "left"]
    assert done.returncode == 0 and cluster.state(read_record(job.paths)["id"]) in ("CANCELLED", ""), done.stderr


def test_a_host_that_is_not_reached_is_named(s):
    "One where nobody answers, as behind a firewall"
    import socket
    from dtnb.wire import dial, doors
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        first, second = doors(s.paths.tmp, 2)
        with pytest.raises(dtnb.LaunchError, match=rf"{socket.gethostname()} does not reach the ranks on node2: nothing answered at tcp://127.0.0.1:\d+ in 2 s"): dial([first, second | dict(address=f"tcp://127.0.0.1:{deaf.getsockname()[1]}")], patience=2)


def test_one_node_and_gpus_by_the_magic(cluster, tmp_path):
    "In a real kernel: start, a cell, status, restart; Slurm's end is said, and no local ranks take its place"
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(env=os.environ | dict(IPYTHONDIR=str(tmp_path)))
    def run(code, until=None):
        "What a cell shows; with `until`, it is interrupted when it has shown that"
        said = []
        def show(m):
            said.append("".join(m["content"].get("traceback", [])) + m["content"].get("text", "") + str(m["content"].get("data", {}).get("text/plain", "")))
            if until and until in said[-1]: manager.interrupt_kernel()
        client.execute_interactive(code, timeout=120, output_hook=show)
        return re.sub(r"\x1b\[[0-9;]*m", "", "".join(said))
    try:
        assert "belongs to no option" in run("%load_ext dtnb\n%dist start --on slurm 7")
        assert "has no option 'gpus_per_nod': did you mean 'gpus_per_node'" in run("%dist start --on slurm --gpus-per-nod 2")
        assert "Slurm takes no 'nproc': give nodes and nproc_per_node" in run("%dist start -n 2 --on slurm")
        assert "this process is in no allocation" in run("%dist start --on srun")
        assert "interrupted: no ranks were started" in (said := run("%dist start --on slurm --begin now+600 --job-name later", until="waits for its begin time")), said
        assert not cluster.run("squeue", "-h", "-n", "later").stdout.strip()
        assert "2 ranks (gloo on CPU) ready" in (said := run("%dist start --on slurm --gpus-per-node 2 --nodelist=node2 --time 0:30:00 --job-name 'my ranks'")), said
        assert "node2 2" in run("%%distributed\nimport os, socket\nprint(socket.gethostname(), len(os.environ['CUDA_VISIBLE_DEVICES'].split(',')))")
        assert "2 ranks, Slurm, since" in run("%dist status")
        assert "2 ranks (gloo on CPU) ready" in run("%dist restart")
        (job,) = cluster.run("squeue", "-h", "-n", "my ranks", "-o", "%i").stdout.split()
        cluster.run("scancel", job)
        said = ""
        def ended():
            nonlocal said
            return "CANCELLED: cancelled outside dtnb (scancel)" in (said := run("%dist status"))
        wait_until(ended, 60, "the end is said")
        assert "this session has ended (CANCELLED" in run("%%distributed\n1") and len([p for p in Path(os.environ["DTNB_HOME"], "jobs").iterdir()]) == 2
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


# ---- the end

@pytest.mark.skipif(not SLOW, reason="the magics' test and the allocation's cancel from outside, too: make test-all")
def test_scancel_from_outside(cluster):
    with dtnb.Session(on=dtnb.Slurm(nodes=2)) as s:
        cell = s.send("import time\ntime.sleep(600)")
        cluster.run("scancel", number(s))
        assert cell.wait(60) == "failed" and "CANCELLED: cancelled outside dtnb (scancel)" in str(cell.exception())
        with pytest.raises(DtnbError, match="this session has ended .CANCELLED"): s.run("1")
        wait_until(lambda: not dtnb_processes(s.job), 40, "the end of all")
        assert s.job.state == "cancelled"


def test_a_node_goes_down(monkeypatch):
    with Cluster(conf=dict(SlurmdTimeout=6, MessageTimeout=3)) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        s = dtnb.Session(on=dtnb.Slurm(nodes=2))
        try:
            cell = s.send("dist.barrier()\nimport time\nwhile rank > 0: time.sleep(1)\ndist.barrier()")
            wait_until(lambda: (w := s.where(0)) is not None and w.waits, what="rank 0 waits")
            c.kill_node("node2")
            assert cell.wait(60) == "failed" and ("node2 does not answer any more" in str(cell.exception()) or "NODE_FAIL" in str(cell.exception())), cell.exception()
            with pytest.raises(DtnbError): s.run("1")
            wait_until(lambda: s.listen() or "NODE_FAIL: a node failed" in s.ended, 90, "Slurm's word")
            wait_until(lambda: not dtnb_processes(s.job), 40, "the end of all")
        finally: s.close()


def test_attach_after_the_kernel_was_killed():
    code = """
import os, signal, dtnb
s = dtnb.Session(on=dtnb.Slurm(nodes=2, nproc_per_node=2), lease=300)
s.run("a = rank * 2")
cell = s.send("import time\\nprint('before', flush=True)\\ntime.sleep(3)\\nprint('late')\\ndist.barrier()")
while 'before' not in cell.text(3): s.listen()
print(s.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=180)
    s = dtnb.Session.attach(done.stdout.strip())
    try:
        wait_until(lambda: s.listen() or any("late" in c.text(3) for c in s.cells.values()), 30, "what was printed meanwhile")
        assert s.run("b = torch.ones(1)\ndist.all_reduce(b)\na, b.item()", timeout=60).result() == {r: (2 * r, 4.0) for r in range(4)}
    finally: s.close()
    assert s.job.state == "done"
    wait_until(lambda: not dtnb_processes(s.job), 40, "the end of all")


@pytest.mark.skipif(not SLOW, reason="a minute: make test-all")
def test_a_kernel_that_was_killed_in_the_queue(cluster):
    "Its session starts all the same, and waits for another kernel"
    code = "import os, signal, dtnb, dtnb.api\ndef waiting(self, words):\n    if 'waits for its begin time' in words: os.kill(os.getpid(), signal.SIGKILL)\ndtnb.Session.waiting = waiting\ndtnb.Session(on=dtnb.Slurm(nodes=2, begin='now+10'))"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == -signal.SIGKILL
    from dtnb.session import running
    wait_until(running, 120, "a session that waits")
    with dtnb.Session.attach() as s: assert s.run("world_size").result() == {0: 2, 1: 2}


def test_a_lease_ends_the_job(cluster):
    s = dtnb.Session(on=dtnb.Slurm(nodes=2), lease=2)
    s.outlives = True
    for channel in (s.control, s.live): channel.sock.shutdown(2)               # as a killed kernel does
    assert s.job.wait(60) == "cancelled" and s.job.view.reason == "no kernel has used it for 2 s"
    wait_until(lambda: not dtnb_processes(s.job), 40, "the end of all")
    wait_until(lambda: cluster.state(number(s)) in ("COMPLETED", ""), what="an orderly end in Slurm")


@pytest.mark.skipif(not SLOW, reason="two minutes: make test-all")
def test_the_time_limit_ends_it():
    with dtnb.Session(on=dtnb.Slurm(nodes=2, time=1)) as s:
        cell = s.send("import time\ntime.sleep(600)")
        assert cell.wait(180) == "failed" and "TIMEOUT: it was over its time limit" in str(cell.exception())


@pytest.mark.skipif(not SLOW, reason="half a minute: make test-all")
def test_a_node_that_hangs(cluster):
    with dtnb.Session(on=dtnb.Slurm(**FOUR)) as s:
        cell = s.send("import time\ntime.sleep(600)", ranks=(2, 3))
        cluster.freeze_node("node2")
        try: assert cell.wait(60) == "failed" and "does not answer any more" in str(cell.exception())
        finally: cluster.thaw_node("node2")


# ---- in an allocation

def test_inside_an_allocation(cluster):
    "The notebook's own: guards by `srun --overlap`; the allocation stays, and its end is the session's"
    closes = """
with dtnb.Session(on=dtnb.Slurm(allocation="here", nodes=1)) as s: s.run("1")
print(s.job.state, s.job.view.reason, subprocess.run(["squeue", "-h", "-j", os.environ["SLURM_JOB_ID"], "-o", "%T"], capture_output=True, text=True).stdout.strip(), flush=True)
"""
    code = """
import os, subprocess
import dtnb
from dtnb.launchers.launcher import launcher_named
try: dtnb.Slurm(allocation="here", nodes=3).shape()
except dtnb.LaunchError as err: print(err, flush=True)
""" + closes * SLOW + """
s = dtnb.Session(on=launcher_named("srun", nproc_per_node=2))
print(s.run("import socket\\nx = torch.ones(1)\\ndist.all_reduce(x)\\nsocket.gethostname(), x.item()").result(), flush=True)
cell = s.send("import time\\ntime.sleep(600)")
subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]])
cell.wait(90)
print(repr(str(cell.exception())), flush=True)
s.close()
"""
    p = subprocess.Popen([*cluster.login, "salloc", "-N2", "--no-shell", "-J", "outer"], env=os.environ | cluster.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (job,) = re.findall(r"Granted job allocation (\d+)", p.communicate(timeout=60)[0])
    said = subprocess.run([*cluster.login, sys.executable, "-c", code], env=os.environ | cluster.env | dict(SLURM_JOB_ID=job, SLURM_NNODES="2"), capture_output=True, text=True, timeout=240)
    first, *closed, second, last = said.stdout.splitlines()
    assert first == f"asked for 3 nodes, but allocation {job} has 2" and closed == ["done closed RUNNING"] * SLOW, said
    assert second == str({r: (f"node{1 + r // 2}", 4.0) for r in range(4)}) and "CANCELLED: cancelled outside dtnb (scancel)" in last, said
