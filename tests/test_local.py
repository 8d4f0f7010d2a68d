"Local jobs: the contract, faults, and what user code may do to us."
import json, os, signal, socket, stat, subprocess, sys, threading, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from contract import LauncherContract, place, sleeps
from dtnb.event import EventReader
from dtnb.launchers import local
from dtnb.launchers.local import Local, keeper


def run(fn, *args, nproc=2, **kwargs): return dtnb.launch(fn, *args, on=Local(nproc=nproc), **kwargs)


class TestContract(LauncherContract):
    def make(self, nproc=2, **options): return Local(nproc=nproc, **options)


class TestContractOfOneRank:
    def test_world_of_one(self):
        got = run(place, nproc=1).result(timeout=60)
        assert (got["RANK"], got["WORLD_SIZE"], got["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")

    def test_failure(self):
        def fail(): raise KeyError("gone")
        with pytest.raises(dtnb.RankFailedError, match="rank 0 on .*: KeyError: 'gone'"): run(fail, nproc=1).result(timeout=60)


# ---- the kernel's past does not matter

def test_after_an_accelerator_in_this_process():
    "notebook_launcher itself would ask for a kernel restart"
    code = """
import dtnb
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
def train():
    from accelerate import Accelerator
    a = Accelerator()
    import torch
    return a.num_processes, a.reduce(torch.ones(1)).item()
print(dtnb.launch(train, on=dtnb.Local(nproc=2)).results(60), accelerator.num_processes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{0: (2, 2.0), 1: (2, 2.0)} 1\n", done.stderr


# ---- many

def test_twenty_in_a_row_and_four_at_once():
    def double(i): return 2 * i
    for i in range(20): assert run(double, i).result(1, timeout=60) == 2 * i
    jobs = [run(double, i) for i in range(4)]
    assert [j.results(120) for j in jobs] == [{0: 2 * i, 1: 2 * i} for i in range(4)]


# ---- failure and death

def test_workers_of_a_dataloader_end_with_the_job():
    def train():
        import os, torch, torch.distributed as dist
        from torch.utils.data import DataLoader
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 100
            def __getitem__(self, i):
                import time
                print("worker", os.getpid(), flush=True)
                time.sleep(.05 if i < 2 else 600)
                return i
        dist.init_process_group("gloo")
        batches = iter(DataLoader(Slow(), num_workers=2, batch_size=1))
        next(batches), next(batches)                          # one of each worker
        dist.barrier()
        if dist.get_rank() == 1: raise ValueError("after the first batch")
        dist.all_reduce(torch.ones(1))
    job = run(train)
    with pytest.raises(dtnb.RankFailedError, match="rank 1 .*after the first batch"): job.result(timeout=60)
    workers = {int(line.split()[1]) for r in (0, 1) for line in job.logs(r).splitlines() if line.startswith("worker")}
    assert len(workers) >= 4
    wait_until(lambda: not alive(workers | job_processes(job)), what="the workers' end")


def started(job):
    wait_until(lambda: all(r.state == "running" for r in job.view.ranks.values()) and "child" in job.logs(0) and "child" in job.logs(1), what="all ranks running")
    return job_processes(job)


def test_killed_driver(decoy):
    job = run(sleeps)
    pids = started(job)
    guard = EventReader(job.paths.launcher).read()[0].get("guard")
    rank = job.view.ranks[0].pid
    driver = int(Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert driver != guard
    os.kill(driver, signal.SIGKILL)
    assert job.wait(30) == "failed"
    with pytest.raises(dtnb.DtnbError, match="the process that starts the ranks: its process was killed by SIGKILL"): job.result()
    wait_until(lambda: not alive(pids), what="the end of all")


def test_killed_guard(decoy):
    job = run(sleeps)
    pids = started(job)
    guard = EventReader(job.paths.launcher).read()[0].get("guard")
    os.kill(guard, signal.SIGKILL)
    assert job.wait(30) == "lost"
    with pytest.raises(dtnb.DtnbError, match="guard .* is gone without a last word"): job.result()
    wait_until(lambda: not alive(pids), what="the end of the ranks and their children")


def test_launching_process_dies_and_another_sees_it_all(home):
    "A kernel restart: the job goes on, attach shows it from the start"
    code = """
import dtnb, os, time
def train():
    import time
    print("from the start", flush=True)
    for i in dtnb.track(range(40)): time.sleep(.05)
    return "kept"
print(dtnb.launch(train, on=dtnb.Local(nproc=2)).id, flush=True)
job = dtnb.jobs()[-1]
while job.state != "running": time.sleep(.05)
os.kill(os.getpid(), 9)
"""
    first = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert first.returncode == -9, first.stderr
    job = dtnb.attach(first.stdout.strip())
    assert job.wait(60) == "done"
    assert job.results() == {0: "kept", 1: "kept"} and "from the start" in job.logs(1)
    assert [r.bar.n for r in job.view.ranks.values()] == [40, 40]


def test_nonsense_on_the_control_channel():
    "Who talks nonsense is hung up on; a listener that never reads costs nothing; the job goes on"
    from dtnb.channel import connect
    def train():
        import time
        for i in dtnb.track(range(400)): time.sleep(.005)
        return "went on"
    job = run(train)
    address = wait_until(lambda: (said := EventReader(job.paths.launcher).read()) and said[0].get("address"))
    sleeper = connect(address)
    sleeper.send(dict(op="watch"))
    for bad in (b"\x00\x00\x00\x05hello", b"\xff" * 100, b"\x00\x00\x00\x0f" + b'{"op": "hello"}'):
        talker = connect(address)
        talker.sock.sendall(bad)
        talker.close()
    assert job.result(timeout=60) == "went on"
    sleeper.close()


# ---- hostile text and sizes

HOSTILE = "$HOME `id` $(id) EOM\nEOM\n'\"\\ %s {x} 🙂 \x00 é"


def test_hostile_text_arrives_as_it_is():
    big = HOSTILE + "x" * 163_000
    closure = os.urandom(4_000_000)
    def back(text):
        import hashlib
        print(text)
        return text, hashlib.sha256(closure).hexdigest(), big
    import hashlib
    job = run(back, HOSTILE)
    assert job.result(1, timeout=60) == (HOSTILE, hashlib.sha256(closure).hexdigest(), big)
    assert job.logs(0) == HOSTILE + "\n"


def test_source_of_163_kilobytes():
    text = "# $HOME `id` 🙂\n" * 10_000 + "def long(): return 'end of a long source'\n"
    scope = {"__name__": "__main__"}
    exec(compile(text, "<long>", "exec"), scope)
    assert run(scope["long"]).result(timeout=60) == "end of a long source"


def test_a_megabyte_of_stderr_without_newline_does_not_block():
    def loud():
        import os, sys, time
        os.write(2, b"e" * 1_000_000)
        sys.stderr.write("x" * 1_000_000)
        os.system("head -c 1000000 /dev/zero | tr '\\0' s")
        return "not blocked"
    job = run(loud)
    assert job.result(timeout=60) == "not blocked"
    text = job.logs(0)
    assert (text.count("e"), text.count("x"), text.count("s")) == (1_000_000, 1_000_000, 1_000_000)


def test_output_of_native_code_while_the_gil_is_held():
    def native():
        import ctypes
        libc = ctypes.PyDLL(None)                  # calls do not release the GIL
        line = b"n" * 1023 + b"\n"
        for _ in range(4000): libc.write(1, line, len(line))
        return "not blocked"
    job = run(native)
    assert job.result(timeout=60) == "not blocked"
    assert job.paths.output(0).stat().st_size == 4000 * 1024


def test_a_busy_default_port_changes_nothing():
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 29500))
        s.listen()
        def sums():
            import torch, torch.distributed as dist
            dist.init_process_group("gloo")
            x = torch.ones(1)
            dist.all_reduce(x)
            return x.item()
        assert run(sums).results(60) == {0: 2.0, 1: 2.0}


def test_all_sockets_listen_on_loopback_only():
    def listening():
        import glob, os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.barrier()
        mine = set()
        def inodes(pid):
            out = set()
            for f in glob.glob(f"/proc/{pid}/fd/*"):
                try: out.add(os.readlink(f))
                except OSError: pass
            return out
        guard = os.getsid(os.getppid())
        from dtnb.processes import descendants
        for pid in (guard, *descendants(guard)): mine |= inodes(pid)
        found = []
        for name in ("tcp", "tcp6"):
            for row in open(f"/proc/net/{name}").read().splitlines()[1:]:
                f = row.split()
                if f[3] == "0A" and f"socket:[{f[9]}]" in mine: found.append(f[1])
        dist.barrier()
        return found
    found = run(listening).result(timeout=60)
    assert found and all(a.startswith(("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")) for a in found), found


# ---- refused before anything starts

LOCK = threading.Lock()


def test_refused_with_the_variables_name(tmp_path, home):
    lock = threading.Lock()
    handle = open(tmp_path / "x", "w")
    def closes_over(): return lock
    def has_default(key=lambda v, inner=lock: v): return key
    def takes(config): return config
    for fn, args, words in [(closes_over, (), "closure variable 'lock'"), (has_default, (), "default of 'key' -> default of 'inner'"),
                            (takes, (dict(log=[handle]),), r"argument 0 of takes\['log'\]\[0\] is a TextIOWrapper")]:
        with pytest.raises(dtnb.LaunchError, match=words): run(fn, *args)
    assert dtnb.jobs() == []


def test_lambda_defaults_that_can_travel_do():
    def f(key=lambda v: v + 1): return key(1)
    assert run(f).result(timeout=60) == 2


def test_too_big_names_the_parts():
    data = bytes(70_000_000)
    def f(): return len(data)
    with pytest.raises(dtnb.LaunchError, match="closure variable 'data' is 70 MB"): run(f)
    assert dtnb.launch(f, on=Local(nproc=1, max_payload_mb=100)).result(timeout=60) == 70_000_000


@pytest.mark.parametrize("nproc,words", [(0, "at least 1, not 0"), (-1, "at least 1"), (2.0, "whole number"), (True, "whole number"), (100_000, "8 a core")])
def test_impossible_nproc(nproc, words):
    with pytest.raises(dtnb.LaunchError, match=words): dtnb.launch(place, on=Local(nproc=nproc))


def test_not_a_function():
    with pytest.raises(TypeError, match="pass the function itself"): run(place())if "RANK" in os.environ else dtnb.launch(3, on=Local(nproc=2))


# ---- GPUs (the machine's are made up; the locks are real)

def test_more_ranks_than_gpus(monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda env=None: ["0", "1"])
    with pytest.raises(dtnb.LaunchError, match="asked for 3 ranks, but there are 2 GPUs"): Local(nproc=3).shape()
    with pytest.raises(dtnb.LaunchError, match="GPU 7 is not here"): Local(nproc=1, gpus=[7]).shape()


def test_two_jobs_on_one_gpu(monkeypatch):
    monkeypatch.setattr(local, "visible_gpus", lambda env=None: [f"test-{os.getpid()}"])
    first = dtnb.launch(sleeps, on=Local(nproc=1))
    with pytest.raises(dtnb.LaunchError, match=f"in use by job {first.id}"): dtnb.launch(place, on=Local(nproc=1))
    first.cancel()
    assert wait_until(lambda: retry(lambda: dtnb.launch(place, on=Local(nproc=1)))).result(timeout=60)["RANK"] == "0"
    (local.runtime_dir() / f"gpu-test-{os.getpid()}.lock").unlink()


def retry(f):
    try: return f()
    except dtnb.LaunchError: return None


# ---- what the next launch sees

def test_environment_directory_and_packages_of_now(tmp_path, monkeypatch):
    def look():
        import os
        try:
            import dtnb_test_package
            there = dtnb_test_package.VALUE
        except ImportError: there = None
        return os.environ.get("DTNB_TEST_NEW"), os.environ.get("OMP_NUM_THREADS"), os.getcwd(), there
    first = run(look).result(timeout=60)
    before = keeper().zygote
    monkeypatch.setenv("DTNB_TEST_NEW", "seen")
    monkeypatch.chdir(tmp_path)
    assert run(look).result(timeout=60) == ("seen", first[1], str(tmp_path), None)
    assert keeper().zygote is before                                   # nothing that imports depend on has changed
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert run(look).result(timeout=60)[1] == "2"
    assert keeper().zygote is not before
    site = tmp_path / "site-packages"
    package = tmp_path / "src"
    package.mkdir()
    (package / "setup.py").write_text("from setuptools import setup\nsetup(name='dtnb-test-package', version='1.0', py_modules=['dtnb_test_package'])\n")
    (package / "dtnb_test_package.py").write_text("VALUE = 41 + 1\n")
    monkeypatch.syspath_prepend(str(site))
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site), str(package)], check=True, capture_output=True)
    assert run(look).result(timeout=60)[3] == 42


def test_local_modules_are_frozen(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("import beside_helper\ndef value(): return beside_helper.X\n")
    (tmp_path / "beside_helper.py").write_text("X = 'as launched'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside
    def use():
        import time
        time.sleep(1)
        return beside.value()
    job = run(use)
    (tmp_path / "beside.py").write_text("def value(): return 'edited'\n")
    (tmp_path / "beside_helper.py").write_text("X = 'edited'\n")
    assert job.result(timeout=60) == "as launched"


# ---- privacy

def test_folders_are_private_and_hold_no_secrets(monkeypatch, home):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-1234")
    monkeypatch.setenv("HF_TOKEN", "hf_very-secret-5678")
    old = os.umask(0)
    try: job = dtnb.launch(place, on=Local(nproc=2, env=dict(WANDB_API_KEY="wb-very-secret-9")))
    finally: os.umask(old)
    job.results(60)
    for folder, _, files in os.walk(home):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700, folder
        for f in files: assert b"very-secret" not in Path(folder, f).read_bytes(), f
    assert (home / ".gitignore").read_text() == "*\n"


# ---- classes of a notebook in DataLoader workers

@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_notebook_classes_in_dataloader_workers(method):
    source = """
import torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return helper(i)
def helper(i): return i * i
def collate(batch): return sum(batch)
def train(method):
    import multiprocessing
    assert not multiprocessing.current_process().daemon
    loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=method, collate_fn=collate)
    import pickle
    assert type(pickle.loads(pickle.dumps(Squares()))) is Squares
    return list(loader)
"""
    scope = {"__name__": "__main__"}
    exec(source, scope)
    assert run(scope["train"], method).result(timeout=120) == [14, 126]


# ---- progress of code that does not know us

def test_track_log_and_span():
    def train():
        import time
        for epoch in dtnb.track(range(2), desc="epoch"):
            for i in dtnb.track([0] * 30, desc="batch"):
                with dtnb.span("data"): time.sleep(.01)
                dtnb.log(loss=1.0 / (i + 1 + epoch))
    job = run(train)
    job.wait(60)
    rank = job.view.ranks[1]
    assert (rank.bar.desc, rank.bar.n, rank.fraction) == ("epoch", 2, 1.0)
    assert rank.scalars["loss"].last == .5 and rank.spans["data"][0] == 60


def test_no_records_flood():
    def train():
        for epoch in dtnb.track(range(3000)):
            for i in dtnb.track(range(10)): dtnb.log(x=i)
    job = run(train)
    job.wait(60)
    assert len(EventReader(job.paths.events(0)).read()) < 100


def test_two_launches_before_the_zygote_is_warm_keep_their_own_gpus(monkeypatch):
    "Both messages, with their locks, wait in one socket: the end of the first job must not free the second's GPU"
    mine = [f"test-{os.getpid()}-a", f"test-{os.getpid()}-b"]
    monkeypatch.setattr(local, "visible_gpus", lambda env=None: mine)
    keeper().close()
    short, long = dtnb.launch(place, on=Local(nproc=1, gpus=mine[:1])), dtnb.launch(sleeps, on=Local(nproc=1, gpus=mine[1:]))
    short.result(timeout=60)
    wait_until(lambda: long.state == "running", what="the second job runs")
    with pytest.raises(dtnb.LaunchError, match=f"in use by job {long.id}"): dtnb.launch(place, on=Local(nproc=1, gpus=mine[1:]))
    assert wait_until(lambda: retry(lambda: dtnb.launch(place, on=Local(nproc=1, gpus=mine[:1])))).result(timeout=60)
    long.cancel()
    for name in mine: (local.runtime_dir() / f"gpu-{name}.lock").unlink()


def test_a_model_that_outlives_its_process_group():
    "Each round leaves DDP's C++ side the last owner of a group: one rank in three used to hang there (pytorch#56297)"
    def rounds(n):
        import torch
        import torch.distributed as dist
        import torch._dynamo
        def once():
            dist.init_process_group("gloo")
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=.1)
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            dist.destroy_process_group()
        for _ in range(n): once()
        return n
    assert run(rounds, 20).results(120) == {0: 20, 1: 20}


def test_the_zygote_stays_single_threaded():
    "Also after its late imports: a fork of a process with threads may deadlock"
    zygote = keeper().get()
    zygote.wait_ready()
    maps = Path(f"/proc/{zygote.process.pid}/maps")
    wait_until(lambda: "_zmq" in maps.read_text(), 60, "ipyparallel, the last late import, is there")
    assert len(os.listdir(f"/proc/{zygote.process.pid}/task")) == 1


def test_a_refused_connection_of_the_users_own_is_the_cause():
    def connects():
        import socket, time
        if __import__("os").environ["RANK"] == "0": socket.create_connection(("127.0.0.1", 1))
        time.sleep(600)
    job = run(connects)
    with pytest.raises(dtnb.RankFailedError, match="rank 0 on .*: ConnectionRefusedError"): job.result(timeout=60)
    assert not job.view.ranks[0].error["peer_loss"]


def test_a_death_that_its_peer_told_of_first():
    "Native code that gives up closes its connections some time before its process is gone"
    def peer():
        import os, time
        if os.environ["RANK"] == "1": raise RuntimeError("Read error [127.0.0.1]:2280: Connection reset by peer")
        time.sleep(.2)
        os.abort()
    job = run(peer)
    with pytest.raises(dtnb.RankFailedError, match="rank 0 on .*: its process was killed by SIGABRT"): job.result(timeout=60)


def test_who_is_stopped_after_a_lost_peer_is_not_the_cause():
    def peer():
        import os, time
        if os.environ["RANK"] == "1": raise RuntimeError("Connection reset by peer")
        time.sleep(600)
    job = run(peer)
    with pytest.raises(dtnb.RankFailedError, match="rank 1 on .*: RuntimeError: Connection reset"): job.result(timeout=60)
