"Faults of the kernel itself, and of folders that it may not write to. Each trial has a kernel of its own, a real one or a plain process, which is the same to a session; returns seconds and what was said."
import contextlib, ctypes, os, re, signal, subprocess, sys, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from dtnb.job import runtime_dir
from dtnb.session import Session, running
from test_session import plain


def gone(pids, job_id):
    wait_until(lambda: not alive(pids), 12, f"the end of {alive(pids)}")
    assert not [n for n in os.listdir(runtime_dir() / "g") if n.startswith(job_id[-30:])]


# ---- it restarts, it is killed

@contextlib.contextmanager
def real_kernel():
    "Its manager, and a function that runs a cell and returns what it shows"
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(env=os.environ | dict(IPYTHONDIR=str(Path(os.environ["DTNB_HOME"]).with_name("ipython"))))
    def run(code):
        said = []
        reply = client.execute_interactive(code, timeout=60, output_hook=lambda m: said.append(m["content"].get("text", "")))["content"]
        return plain("".join(said) + (reply["evalue"] if reply["status"] == "error" else ""))
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)


def session_after_restart():
    "A detached cell runs on, and its error is there after `%dist attach`; the next cell works"
    with real_kernel() as (manager, client, run):
        run("%load_ext dtnb\n%dist start -n 2")
        job, = [j for j in dtnb.jobs() if j.spec.companion]
        run("%%distributed\nkept = rank\nimport time")
        run("%%distributed --detach\nfor i in range(5):\n    print('step', i, flush=True)\n    time.sleep(1)\ndist.barrier()")
        t = time.monotonic()
        manager.restart_kernel(now=False)
        client.wait_for_ready(timeout=60)
        assert "2 ranks of an earlier kernel are waiting" in run("%load_ext dtnb")
        assert "2 ranks (gloo on CPU) are back" in (said := run("%dist attach"))
        t = time.monotonic() - t
        assert "ranks 0-1 │ 2.0" in run("%%distributed\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()") and "rank 1 │ 1" in run("%%distributed\nkept")
        run("from dtnb.launchers.local import keeper\nkeeper().zygote.wait_ready()")   # before that, an end of the kernel takes long: see `session_after_shutdown`
        pids = job_processes(job)
    gone(pids, job.id)
    return t, said


def session_after_shutdown():
    "A kernel that is shut down takes its ranks with it, also when its zygote is busy and does not let go of it"
    with real_kernel() as (manager, client, run):
        run("%load_ext dtnb\n%dist start -n 2")
        job, = [j for j in dtnb.jobs() if j.spec.companion]
        zygote, pids = int(run("from dtnb.launchers.local import keeper\nprint(keeper().zygote.process.pid)")), job_processes(job)
        os.kill(zygote, signal.SIGSTOP)
        t = time.monotonic()
    try: gone(pids, job.id)
    finally:
        os.kill(zygote, signal.SIGCONT)
        job.cancel()
    return time.monotonic() - t, job.view.reason


def killed_kernel(code, end="os.kill(os.getpid(), signal.SIGKILL)"):
    "Run `code` in a process that ends with `end`; the ids that it prints, the first of them its job's, and when it ended"
    code = f"import dtnb, os, signal, time\nfrom conftest import job_processes\nfrom dtnb.session import Session\n{code}\n{end}"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120, env=os.environ | dict(PYTHONPATH=os.pathsep.join(sys.path)))
    job_id, *pids = done.stdout.split()
    return job_id, {int(p) for p in pids}, time.monotonic()


def session_after_sigkill():
    "Everything ends after the lease, also while ranks wait for each other, and the record says why"
    job_id, pids, t = killed_kernel("s = Session(2, lease=5)\ns.send('dist.recv(torch.zeros(1), src=1 - rank)')\nprint(s.id, *job_processes(s.job), flush=True)\ntime.sleep(.5)")
    assert len(alive(pids)) >= 5
    job = dtnb.attach(job_id)
    with pytest.raises(dtnb.JobCancelledError, match="no kernel has used it for 5 s") as said: job.result(timeout=40)
    t = time.monotonic() - t
    gone(pids, job_id)
    return t, str(said.value)


def session_of_blocked_ranks():
    "A cell whose rank 1 fails after its kernel was killed: another kernel gets the ranks at once, and by an interrupt it gets rank 0 out of its wait"
    job_id, pids, t = killed_kernel("s = Session(2)\ns.run('kept = rank')\ns.send('import time\\nif rank == 1:\\n    time.sleep(2)\\n    raise ValueError\\ndist.all_reduce(torch.ones(1))')\n"
                                    "print(s.id, *job_processes(s.job), flush=True)\ntime.sleep(.5)")
    wait_until(lambda: job_id in [j.id for j in running()], what="the guard knows that the kernel is gone")
    try: s = Session.attach(job_id, timeout=15)
    except dtnb.DtnbError:
        dtnb.attach(job_id).cancel()
        raise
    with s:
        t = time.monotonic() - t
        time.sleep(2)
        cell = s.send("kept")
        with pytest.raises(dtnb.JobTimeoutError, match="still runs on rank 0"): cell.wait(2)
        cell.cancel()
        assert s.run("one = torch.ones(1)\ndist.all_reduce(one)\n(one.item(), kept)", timeout=30).result() == {0: (2.0, 0), 1: (2.0, 1)}
        pids |= job_processes(s.job)
    gone(pids, job_id)
    return t, f"attached after {t:.1f} s"


FAILS_LATER = """
def faulty():
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(3)
        raise ValueError("a bad batch")
    dist.all_reduce(torch.ones(1))
job = dtnb.launch(faulty, on=dtnb.Local(nproc=2))
while job.state != "running": time.sleep(.05)
print(job.id, *job_processes(job), flush=True)"""


def job_after_restart(end=""):
    "It goes on; whoever attaches hears how it fails"
    job_id, pids, t = killed_kernel(FAILS_LATER, end)
    job = dtnb.attach(job_id)
    assert not job.state.ended
    with pytest.raises(dtnb.RankFailedError, match="rank 1 on .*: ValueError: a bad batch") as said: job.result(timeout=40)
    t = time.monotonic() - t
    gone(pids, job_id)
    return t, str(said.value)


def job_after_sigkill(): return job_after_restart("os.kill(os.getpid(), signal.SIGKILL)")


# ---- folders that it may not write to

def _obey():
    "In a child that becomes another program: root, too, heeds a folder's mode (drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH)"
    for capability in (1, 2): ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)   # PR_CAPBSET_DROP


OBEYS = """import dtnb, os, sys, time
from dtnb.session import Session
def mode(root, bits):
    for folder, _, _ in os.walk(root): os.chmod(folder, bits)
def told(what):
    t = time.monotonic()
    try: print("value:", what(), flush=True)
    except Exception as err: print(f"{type(err).__name__}: {err}", flush=True)
    print(f"after {time.monotonic() - t} s")
os.makedirs(os.environ["DTNB_HOME"], exist_ok=True)
"""


def obeying(code):
    "What a kernel says that must heed the modes of folders, and the seconds to its first word"
    done = subprocess.run([sys.executable, "-c", OBEYS + code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=180, preexec_fn=_obey)
    assert done.returncode == 0, done.stderr[-3000:]
    return float(re.search(r"after ([\d.]+) s", done.stdout)[1]), re.sub(r"after [\d.]+ s\n", "", done.stdout)


def session_in_read_only_folder():
    "A rank's error is told, the group healed, a dead rank replaced: nothing of it needs the folder"
    t, said = obeying("""s = Session(2)
s.run("kept = rank\\nimport os")
mode(s.paths.root, 0o500)
told(lambda: s.run("if rank == 1: raise ValueError('a bad batch')\\ndist.all_reduce(torch.ones(1))", timeout=30))
told(lambda: s.run("one = torch.ones(1)\\ndist.all_reduce(one)\\n(one.item(), kept)", timeout=30).result())
told(lambda: s.run("if rank == 1: os._exit(3)\\ndist.barrier()", timeout=30))
told(lambda: s.restart([1], timeout=30))
told(lambda: s.run("one = torch.ones(1)\\ndist.all_reduce(one)\\n(one.item(), globals().get('kept'))", timeout=30).result())
mode(s.paths.root, 0o700)
s.close()""")
    assert re.fullmatch(r"""CellFailedError: rank 1 on .*: ValueError: a bad batch.*
rank 0: waited in all_reduce .*
the ranks have a new process group, their variables are kept
value: \{0: \(2.0, 0\), 1: \(2.0, 1\)\}
CellFailedError: rank 1 on .*: its process ended with exit code 3
rank 0: lost a peer
value: .*
value: \{0: \(2.0, 0\), 1: \(2.0, None\)\}
""", said), said
    return t, said


def job_in_read_only_folder():
    "An error is told although `error.json` can't be written, and so is a result that can't"
    t, said = obeying(FAILS_LATER.replace("print(job.id, *job_processes(job), flush=True)", "mode(job.paths.root, 0o500)\ntold(job.result)\nmode(job.paths.root, 0o700)\n") + """
def returns():
    import time
    time.sleep(2)
    return 1
job = dtnb.launch(returns, on=dtnb.Local(nproc=2))
while job.state != "running": time.sleep(.05)
mode(job.paths.root, 0o500)
told(job.result)
mode(job.paths.root, 0o700)""")
    assert re.match(r"\w+Error: .*rank 1 on .*: ValueError: a bad batch", said) and re.search(r"\n\w+Error: .*rank [01] on .*: PermissionError: .*result.pkl", said), said
    return t, said


def _in_read_only_home(what):
    t, said = obeying(f"mode(os.environ['DTNB_HOME'], 0o500)\ntold(lambda: {what})\nmode(os.environ['DTNB_HOME'], 0o700)\nprint(os.listdir(os.environ['DTNB_HOME']))")
    assert re.fullmatch(r"\w+Error: .*Permission denied: '.*'\n\[\]\n", said), said
    return t, said


def session_in_read_only_home(): return _in_read_only_home("Session(2)")
def job_in_read_only_home(): return _in_read_only_home("dtnb.launch(mode, '', 0)")
