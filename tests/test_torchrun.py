"torchrun on this machine and over ssh; scripts that run without dtnb."
import json, os, shlex, signal, subprocess, sys, textwrap, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from contract import LauncherContract, place, sleeps
from dtnb.event import EventReader
from dtnb.processes import descendants
from dtnb.scripts import classic_script
from slurm import SSH, Cluster
from slurm.cluster import missing as missing_slurm
from slurm.ssh import missing as missing_ssh

needs_ssh = pytest.mark.skipif(bool(missing_ssh()), reason=f"sshd is not installed: {missing_ssh()}")
needs_slurm = pytest.mark.skipif(bool(missing_slurm()), reason=f"Slurm is not installed: {missing_slurm()}")


@pytest.fixture(scope="module")
def ssh():
    with SSH() as s: yield s


def on_hosts(ssh, nproc=1, **options): return dtnb.Torchrun(**dict(hosts=ssh.hosts, ssh_options=["-F", str(ssh.config)], nproc_per_node=nproc) | options)


class TestContract(LauncherContract):
    misspelt, brief = "nproc_per_nide", True
    def make(self, nproc=2, **options): return dtnb.Torchrun(nproc_per_node=nproc, **options)


@needs_ssh
class TestContractOfTwoHosts(LauncherContract):
    misspelt = "nproc_per_nide"

    @pytest.fixture(autouse=True)
    def _hosts(self, ssh): self.ssh = ssh

    def make(self, nproc=2, **options): return on_hosts(self.ssh, nproc // 2, **options)

    def test_variables_and_folder(self):
        "They go there unseen: neither the job's folder nor a command line has them"
        def where():
            import os, pathlib, sys
            lines = [p.read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
            assert os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[0] == os.environ["MASTER_ADDR"] and os.environ["JAX_PROCESS_ID"] == os.environ["RANK"]
            return os.environ["MY_TOKEN"], os.getcwd(), sys.argv[1:], any(b"s3cr" + b"et" in line for line in lines)
        job = dtnb.launch(where, on=self.make(2, env=dict(MY_TOKEN="s3cr" + "et")))
        assert list(job.results(60).values()) == [("s3cr" + "et", os.getcwd(), [], False)] * 2
        assert not any(b"s3cr" + b"et" in p.read_bytes() for p in job.paths.root.rglob("*") if p.is_file() and p.name not in ("result.pkl", "call.pkl"))

    def test_a_host_may_be_done_long_before_another(self):
        "The first keeps the store, without which the agent of the other would stop its ranks"
        def uneven():
            import os, time
            import torch.distributed as dist
            dist.init_process_group("gloo")
            if os.environ["RANK"] != "0": time.sleep(3)
            return dist.distributed_c10d._get_default_store().add("still there", 1)
        assert sorted(self.launch(uneven).results(60).values()) == [1, 2]


# ---- hosts that can't take part

def config(ssh, tmp_path, change=lambda text: text):
    (tmp_path / "config").write_text("Host gone\n  HostName 127.0.0.1\n  Port 1\n" + change(ssh.config.read_text()))
    return ["-F", str(tmp_path / "config")]


def wrapper(path, lines):
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def fails(job, words, seconds=60):
    with pytest.raises(dtnb.LaunchError, match=words): job.result(timeout=seconds)
    wait_until(lambda: not alive([job.spec.starter["pid"]]), what="the end of the supervisor")
    assert job.state == "failed" and dtnb.attach(job.id).state == "failed"


@needs_ssh
def test_a_host_that_nobody_answers_at(ssh, tmp_path):
    fails(dtnb.launch(place, on=on_hosts(ssh, hosts=["n1", "gone"], ssh_options=config(ssh, tmp_path))), r"host gone: ssh: connect to host 127.0.0.1 port 1: Connection refused \(ssh ended with exit code 255\)")


@needs_ssh
def test_a_host_that_refuses_the_key(ssh, tmp_path):
    fails(dtnb.launch(place, on=on_hosts(ssh, ssh_options=config(ssh, tmp_path, lambda text: text.replace("/user_key", "/host_key")))), r"host n[12]: .*Permission denied \(publickey\)")


@needs_ssh
def test_a_host_without_python(ssh): fails(dtnb.launch(place, on=on_hosts(ssh, python="/nowhere/python")), "host n[12]: .*/nowhere/python.*(not found|No such file).*exit code 127")


@needs_ssh
def test_a_host_without_torch(ssh, tmp_path):
    python = wrapper(tmp_path / "python", f"exec {sys.executable} -c 'import sys, runpy; sys.path.insert(0, \"\"); import importlib.util as u; find = u.find_spec; u.find_spec = lambda n, *a: None if n == \"torch\" else find(n, *a)\n"
                     "sys.argv = sys.argv[3:]; runpy.run_module(\"dtnb.launchers.torchrun\", run_name=\"__main__\", alter_sys=True)' \"$@\"")
    fails(dtnb.launch(place, on=on_hosts(ssh, python=python)), "host n[12]: .* has no torch, and so no torchrun")


@needs_ssh
def test_a_host_that_does_not_see_the_folder(ssh, tmp_path):
    python = wrapper(tmp_path / "python", f'exec {sys.executable} "$1" "$2" "$3" "$4" /nowhere/jobs "$6"')
    fails(dtnb.launch(place, on=on_hosts(ssh, python=python)), "host n[12]: it does not see /nowhere/jobs: set DTNB_HOME to a folder that all hosts share")


@needs_ssh
def test_a_host_with_another_version(ssh, tmp_path):
    python = wrapper(tmp_path / "python", f'mkdir "$5/other$6"\nsed \'s/"dtnb": "[^"]*"/"dtnb": "0.0.1"/\' "$5/spec.json" > "$5/other$6/spec.json"\nexec {sys.executable} "$1" "$2" "$3" "$4" "$5/other$6" "$6"')
    fails(dtnb.launch(place, on=on_hosts(ssh, python=python)), "host n[12]: it has dtnb [0-9.]+, but the job comes from dtnb 0.0.1: install the same")


# ---- deaths

def comm(pid):
    try: return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError: return ""


def everything(job, ssh): return job_processes(job) | {job.spec.starter["pid"], *descendants(job.spec.starter["pid"])} | {p for h in ssh.hosts for p in ssh.pids(h)[1:]}


def running(ssh, fn=sleeps):
    job = dtnb.launch(fn, on=on_hosts(ssh))
    wait_until(lambda: "child" in job.logs(0) and "child" in job.logs(1), 60, what="both ranks started a child")
    return job


@needs_ssh
def test_a_connection_that_breaks(ssh):
    job = running(ssh)
    pids = everything(job, ssh)
    for p in [p for p in ssh.pids("n2")[1:] if comm(p) == "sshd"]: os.kill(p, signal.SIGKILL)
    fails(job, "n2")
    wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")


@needs_ssh
def test_a_guard_that_is_killed(ssh):
    job = running(ssh)
    os.kill(EventReader(job.paths.guard(1)).read()[0].get("guard"), signal.SIGKILL)
    fails(job, "host n2")
    os.kill(int(job.logs(1).split()[1]), signal.SIGKILL)   # a detached process of a killed guard stays: a stated limit


@needs_ssh
def test_a_supervisor_that_is_killed(ssh):
    job = running(ssh)
    pids = everything(job, ssh)
    os.kill(job.spec.starter["pid"], signal.SIGKILL)
    with pytest.raises(dtnb.LaunchError, match="has lost the connection to"): job.result(timeout=60)
    wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")


def test_a_supervisor_on_this_machine_that_is_killed():
    job = dtnb.launch(sleeps, on=dtnb.Torchrun(nproc_per_node=2))
    wait_until(lambda: "child" in job.logs(0) and "child" in job.logs(1), 60, what="both ranks started a child")
    pids = job_processes(job)
    os.kill(job.spec.starter["pid"], signal.SIGKILL)
    with pytest.raises(dtnb.LaunchError, match="has lost the connection to"): job.result(timeout=60)
    wait_until(lambda: not alive(pids), what=f"the end of {alive(pids)}")


def test_cancel_before_anything_is_there():
    job = dtnb.launch(sleeps, on=dtnb.Torchrun(nproc_per_node=2))
    assert job.cancel() == "cancelled"
    wait_until(lambda: not alive([job.spec.starter["pid"]]), what="the end of the supervisor")


def test_impossible_options():
    for words, options in [("at least 1, not 0", dict(nproc_per_node=0)), ("8 a core", dict(nproc_per_node=100_000)), ("at least 1, not '2'", dict(hosts=["n1"], nproc_per_node="2"))]:
        with pytest.raises(dtnb.LaunchError, match=words): dtnb.launch(place, on=dtnb.Torchrun(**options))
    for words, options in [("list of names, not 'n1'", dict(hosts="n1")), ("list of names, not ..", dict(hosts=[])), ("is there twice", dict(hosts=["n1", "n1"])), ("no host's name", dict(hosts=["-oProxyCommand=x"]))]:
        with pytest.raises(ValueError, match=words): dtnb.Torchrun(nproc_per_node=1, **options)


def test_no_sessions():
    with pytest.raises(dtnb.LaunchError, match="can't host a session"): dtnb.Session(on=dtnb.Torchrun(nproc_per_node=2))


# ---- scripts, where dtnb can't be imported

HIDDEN = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dtnb": raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""

WIDTH = 4


class Net:
    def __new__(cls):
        import torch
        return torch.nn.Linear(WIDTH, 1)


def batches(n, rank):
    import torch
    torch.manual_seed(rank)
    return [torch.randn(8, WIDTH) for _ in range(n)]


def train(steps, lr=.1):
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    dist.init_process_group("gloo")
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for x in dtnb.track(batches(steps, dist.get_rank())):
        with dtnb.span("step"):
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        dtnb.log(loss=loss)
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    total = torch.cat([p.flatten() for p in model.parameters()])
    dist.all_reduce(total, op=dist.ReduceOp.MAX)
    same = torch.equal(total, torch.cat([p.flatten() for p in model.parameters()]))
    print(f"trained {dist.get_rank()} {dist.get_world_size()} {same} {hasattr(dtnb, '__version__')}\n", end="", flush=True)   # one write: ranks share a pipe
    dist.destroy_process_group()


def without_dtnb(tmp_path):
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDDEN)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "DTNB_HOME")} | dict(PYTHONPATH=str(tmp_path / "hide"), OMP_NUM_THREADS="1")
    assert "No module named 'dtnb'" in subprocess.run([sys.executable, "-c", "import dtnb"], env=env, capture_output=True, text=True).stderr
    return env


def torchrun(path, env):
    done = subprocess.run([Path(sys.executable).parent / "torchrun", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nproc-per-node=2", path], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_a_script_of_a_function(tmp_path):
    path = dtnb.script(train, tmp_path / "train.py", args=(20,), kwargs=dict(lr=.05))
    assert torchrun(path, without_dtnb(tmp_path)) == ["trained 0 2 True False", "trained 1 2 True False"]


def test_a_script_of_cells(tmp_path):
    "Definitions in some cells, a cell of %%distributed that uses them"
    cells = ["import dtnb, torch.nn as nn\nfrom dtnb import track\nfrom collections import Counter as C",
             "SIZE = 3\nclass Net(nn.Module):\n    size = SIZE\n    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(SIZE, 1)\n    def forward(self, x): return self.layer(x)",
             "import torch\n@torch.no_grad()\ndef evaluate(model): return model(torch.ones(1, Net.size)).shape"]
    last = """%%distributed --trace
x = torch.ones(2) * (rank + 1)
dist.all_reduce(x)
for step in track(range(2)): words = '''a
b'''
print(f"{x.tolist()} {tuple(evaluate(Net()))} {C(words)[chr(10)]} {device}\\n", end="")
"""
    cells.append(f"dtnb.script({last!r}, {str(tmp_path / 'train.py')!r})")
    code = f"from IPython.core.interactiveshell import InteractiveShell\nfor cell in {cells!r}: InteractiveShell.instance().run_cell(cell, store_history=True).raise_error()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
    assert torchrun(tmp_path / "train.py", without_dtnb(tmp_path)) == ["[3.0, 3.0] (1, 1) 1 cpu"] * 2, (tmp_path / "train.py").read_text()


@needs_slurm
def test_the_classic_script_by_plain_sbatch(tmp_path):
    path, env = dtnb.script(train, tmp_path / "train.py", args=(20,)), without_dtnb(tmp_path)
    text = classic_script([str(path)], nodes=2, nproc_per_node=2, cpus_per_task=2, time=5, output=str(tmp_path / "%x-%j.out"), python=sys.executable, gpus_per_node=2,
                          env=dict(PYTHONPATH=env["PYTHONPATH"], OMP_NUM_THREADS="1"))
    (tmp_path / "job.sh").write_text(text)
    with Cluster(nodes=2) as c:
        job = c.submit((tmp_path / "job.sh").read_text())
        c.wait(job, "COMPLETED", "FAILED", seconds=120)
        out = (tmp_path / f"train-{job}.out").read_text()
        assert c.state(job) == "COMPLETED", out
    assert sorted(line for line in out.splitlines() if line.startswith("trained")) == [f"trained {r} 4 True False" for r in range(4)], out


@needs_ssh
def test_by_hand_in_tmux(ssh, tmp_path):
    if not ssh.machines.isolated: pytest.skip("these hosts' names can't be resolved")
    if subprocess.run(["tmux", "-V"], capture_output=True).returncode: pytest.skip("tmux is not installed")
    path = dtnb.script(train, tmp_path / "train.py", args=(5,))
    path.write_text(path.read_text().replace("from torch", "import sys; sys.stdout = open(__file__ + '.' + __import__('os').environ['RANK'], 'w')\n    from torch", 1))
    text = on_hosts(ssh, env=dict(OMP_NUM_THREADS="1")).render_tmux(str(path))
    (tmp_path / "t").mkdir()
    env = {k: v for k, v in os.environ.items() if k != "TMUX"} | dict(TMUX_TMPDIR=str(tmp_path / "t"))
    try:
        subprocess.run(["bash", "-c", text], env=env, check=True, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        wait_until(lambda: all((f := tmp_path / f"train.py.{r}").exists() and f.read_text() for r in range(2)), 100, what="both ranks trained")
        assert [(tmp_path / f"train.py.{r}").read_text().startswith(f"trained {r} 2 True") for r in range(2)] == [True, True]
    finally: subprocess.run(["tmux", "kill-server"], env=env)
