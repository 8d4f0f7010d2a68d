"The clusters that other tests use: they are real, they are private, and nothing of them is left."
import os, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

import pytest
from conftest import alive, wait_until

from slurm import SSH, Cluster
from slurm.cluster import missing
from slurm.machines import below, stat
from slurm.ssh import missing as missing_ssh

HERE = Path(__file__).parent
needs_slurm = pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {missing()}")
needs_accounting = pytest.mark.skipif(bool(missing(True)), reason=f"Slurm's accounting is not installed: {missing(True)}")
needs_ssh = pytest.mark.skipif(bool(missing_ssh()), reason=f"sshd is not installed: {missing_ssh()}")


@pytest.fixture(scope="module")
def c():
    with Cluster(preempt_signal=True, conf=dict(SlurmdTimeout=6, MessageTimeout=3)) as c:
        yield c


def etc(): return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in Path("/etc").rglob("*")}


def listeners(pids):
    "The addresses at which processes accept TCP connections, as /proc/net/tcp has them: 0100007F is 127.0.0.1"
    inodes = set()
    for p in pids:
        for fd in Path(f"/proc/{p}/fd").iterdir():
            try: inodes.add(os.readlink(fd))
            except OSError: continue
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {r[1].split(":")[0] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in inodes}


def read(path): return path.read_text() if path.exists() else ""


# --- life and death

@needs_slurm
def test_nothing_is_left(tmp_path):
    before = etc()
    with Cluster() as c:
        assert c.folder.stat().st_mode & 0o777 == 0o700
        job = c.submit("setsid sleep 301 & srun sleep 300", "-N2", "-o", tmp_path / "out")
        c.wait(job, "RUNNING")
        wait_until(lambda: all(any(b"sleep" in Path(f"/proc/{p}/cmdline").read_bytes() for p in c.node_pids(n)) for n in c.nodes))
        pids = [c.machines.supervisor.pid, *below(c.machines.supervisor.pid)]
        daemons = [p for p in pids if Path(f"/proc/{p}/comm").read_text().strip() in ("slurmctld", "slurmd", "munged")]
        assert len(daemons) == 4
        assert listeners(daemons) == {bytes(map(int, reversed(a.split(".")))).hex().upper() for a in (c.address, *c.listen)}
    assert not alive(pids) and not c.folder.exists()
    assert etc() == before


OWNER = "import sys, time\nfrom slurm import *\nwith {0} as c:\n    {1}\n    print(c.machines.folder, c.machines.supervisor.pid, flush=True)\n    time.sleep(100)"


def owner(cluster, do="pass"):
    p = subprocess.Popen([sys.executable, "-c", OWNER.format(cluster, do)], env=os.environ | dict(PYTHONPATH=str(HERE.parent)), stdout=subprocess.PIPE, text=True)
    folder, supervisor = p.stdout.readline().split()
    return p, Path(folder), int(supervisor)


@pytest.mark.parametrize("cluster", [pytest.param("Cluster()", marks=needs_slurm), pytest.param("SSH()", marks=needs_ssh)])
def test_it_ends_with_its_owner(cluster):
    p, folder, supervisor = owner(cluster, "c.wait(c.submit('setsid sleep 301 & srun sleep 300', '-N2', '-o', '/dev/null'), 'RUNNING')" if "Cluster" in cluster else "c.run('n1', 'nohup sleep 300 >/dev/null 2>&1 &')")
    pids = [supervisor, *below(supervisor)]
    assert folder.exists() and len(pids) > 4
    p.kill()
    p.wait()
    wait_until(lambda: not alive(pids) and not folder.exists(), what="the end of all processes, and of the folder,")


@needs_slurm
def test_it_ends_with_its_supervisor():
    with Cluster() as c:
        c.wait(c.submit("sleep 300", "-o", "/dev/null"), "RUNNING")
        pids = below(c.machines.supervisor.pid)
        os.kill(c.machines.supervisor.pid, signal.SIGKILL)
        wait_until(lambda: not alive(pids), what="the end of all processes")
    assert not c.folder.exists()


@needs_slurm
def test_a_daemon_that_does_not_start_says_why():
    with pytest.raises(RuntimeError, match="slurmctld ended"): Cluster(conf=dict(SelectType="select/nonsense")).start()


PLAIN_USER = """
from slurm import *
for kw in {0}, dict({0}, namespaces=False):
    with Cluster(**kw) as c:
        assert sorted(c.run('srun', '-N2', 'printenv', 'SLURMD_NODENAME').stdout.split()) == sorted(c.nodes)
        if c.isolated: assert sorted(c.run('srun', '-N2', 'hostname').stdout.split()) == c.nodes
    assert not c.folder.exists()
if {1}:
    with SSH() as s: assert s.run('n1', 'id', '-u').stdout == '12345\\n'
    assert not s.machines.folder.exists()
print('good')
"""


@needs_slurm
@pytest.mark.skipif(os.getuid() != 0, reason="all these tests run as a plain user")
def test_as_a_plain_user():
    "With namespaces of its own, where those are allowed, and without"
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")          # a virtual environment of root's may be out of reach
    if python is None: pytest.skip("there is no python3 that another user may run")
    passwd = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0  # whether we can make up a user, with a shell for sshd; else it is nobody
    uid = 12345 if passwd else 65534
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(HERE, Path(home, "slurm"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(home, "passwd").write_text(Path("/etc/passwd").read_text() + f"someone:x:12345:12345::{home}:/bin/sh\n")
        for p in [Path(home), *Path(home).rglob("*")]: os.chown(p, uid, uid)
        become = f"exec setpriv --reuid {uid} --regid {uid} --clear-groups env -i HOME={home} PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 {python} -c \"$0\""
        argv = ["unshare", "-m", "sh", "-ec", f"mount --bind {home}/passwd /etc/passwd; {become}"] if passwd else ["sh", "-ec", become]
        r = subprocess.run([*argv, PLAIN_USER.format("dict()", passwd and not missing_ssh())], cwd=home, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert r.stdout == "good\n", r.stdout + r.stderr


@needs_slurm
def test_two_at_once():
    with Cluster(nodes=1) as a, Cluster(nodes=3, namespaces=False) as b:
        assert a.run("srun", "printenv", "SLURM_CLUSTER_NAME", "SLURM_CONF").stdout != b.run("srun", "printenv", "SLURM_CLUSTER_NAME", "SLURM_CONF").stdout
        assert b.run("srun", "-N3", "true").returncode == 0
        job = a.submit("sleep 300", "-o", "/dev/null")
        assert a.wait(job, "RUNNING") and b.state(job) == ""


@needs_slurm
def test_a_command_by_hand():
    r = subprocess.run([sys.executable, "-m", "slurm", "--nodes", "1", "--gpus", "1", "sh", "-c", "srun --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES; exit 7"],
                       env=os.environ | dict(PYTHONPATH=str(HERE.parent)), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (r.stdout, r.returncode) == ("0\n", 7), r.stderr


# --- what it can do

@needs_slurm
def test_two_nodes(c):
    out = c.run("srun", "-N2", "--ntasks-per-node=2", "bash", "-c", "echo $SLURM_NODEID $(hostname) $(getent ahostsv4 $SLURMD_NODENAME)").stdout.splitlines()
    host = (lambda n: n) if c.isolated else (lambda n: os.uname().nodename)
    assert sorted({line.split()[0]: line.split()[1] for line in out}.items()) == [(str(i), host(n)) for i, n in enumerate(c.nodes)] and len(out) == 4
    assert {line.split()[2] for line in out} == set(c.addresses.values())
    if c.isolated: assert c.run(*c.login, "getent", "hosts", "node2").stdout.split() == [c.addresses["node2"], "node2"]


@needs_slurm
def test_two_jobs_share_a_node_and_not_a_gpu(c, tmp_path):
    jobs = [c.submit(f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/{i}; while [ ! -s {tmp_path}/{1 - i} ]; do sleep .05; done", "-w", c.nodes[0], "-n1", "--gres=gpu:1", "-o", "/dev/null") for i in range(2)]
    for j in jobs: c.wait(j, "COMPLETED")
    assert {read(tmp_path / str(i)) for i in range(2)} == {"0\n", "1\n"}
    assert c.run("sbatch", "--test-only", "--gres=gpu:3", "-N1", "--wrap", "true", check=False).returncode


def low(c, out):
    "A job of `low` that fills the first node, writes down when it is told and when it starts, and is short the second time"
    job = c.submit(f"""#!/bin/bash
#SBATCH -p low -w {c.nodes[0]} -n4 --signal=B:USR2@60 --open-mode=append -o {out}
trap 'echo told' USR2
echo start ${{SLURM_RESTART_COUNT:-0}}
[ ${{SLURM_RESTART_COUNT:-0}} = 1 ] || for i in $(seq 900); do sleep .1; done
""")
    wait_until(lambda: read(out) == "start 0\n")
    return job


@needs_slurm
def test_preemption_and_requeue(c, tmp_path):
    "`high` takes the place of `low`, which starts again when it can, as what is requeued by hand; `main` is left alone"
    main = c.submit("echo ${SLURM_RESTART_COUNT:-0}; [ $SLURM_RESTART_COUNT ] || sleep 300", "-w", c.nodes[1], "-n3", "--open-mode=append", "-o", tmp_path / "main")
    preempted = low(c, tmp_path / "low")
    c.wait(c.submit("true", "-p", "high", "-w", c.nodes[0], "-n4", "-o", "/dev/null"), "COMPLETED")
    assert c.state(main) == "RUNNING" and c.state(preempted) == "PENDING"
    c.run("scontrol", "requeue", main)
    for job in preempted, main: c.wait(job, "COMPLETED")
    assert read(tmp_path / "low").endswith("start 1\n") and read(tmp_path / "main").endswith("\n1\n")


@needs_slurm
def test_what_takes_slurm_its_time(c, tmp_path):
    "A node that loses power is down after a while; a preempted job that has grace gets its own signal, and goes when the controller next looks, which is every 30 s"
    c.run("scontrol", "update", "PartitionName=low", "GraceTime=1")
    preempted, lost = low(c, tmp_path / "low"), c.submit("srun sleep 300", "-w", c.nodes[1], "--no-requeue", "-o", "/dev/null")
    c.wait(lost, "RUNNING")
    pids = c.node_pids(c.nodes[1])
    c.kill_node(c.nodes[1])
    assert not alive(pids)
    high = c.submit("true", "-p", "high", "-w", c.nodes[0], "-n4", "-o", "/dev/null")
    c.wait(lost, "NODE_FAIL", seconds=60)
    assert c.node_state(c.nodes[1]).startswith("DOWN")
    c.start_node(c.nodes[1])
    wait_until(lambda: c.node_state(c.nodes[1]) == "IDLE")
    c.wait(high, "COMPLETED", seconds=60)
    assert read(tmp_path / "low").startswith("start 0\ntold\n")
    c.run("scancel", preempted)


@needs_slurm
def test_the_controller_goes_and_comes(c, tmp_path):
    job = c.submit(f"while [ ! -e {tmp_path}/go ]; do sleep .05; done; srun -N2 echo went on > {tmp_path}/out", "-N2", "-o", "/dev/null")
    c.wait(job, "RUNNING")
    c.stop_controller()
    assert c.run("timeout", "1", "squeue", check=False).returncode
    c.start_controller()
    assert c.state(job) == "RUNNING"
    (tmp_path / "go").touch()
    c.wait(job, "COMPLETED")
    assert read(tmp_path / "out") == "went on\n" * 2


@needs_slurm
def test_a_node_hangs(c):
    job = c.submit("sleep 300", "-w", c.nodes[1], "-o", "/dev/null")
    c.wait(job, "RUNNING")
    c.freeze_node(c.nodes[1])
    wait_until(lambda: {stat(p)[0] for p in c.node_pids(c.nodes[1])} == {"T"})
    c.thaw_node(c.nodes[1])
    c.run("scancel", job)
    c.wait(job, "CANCELLED")


@needs_slurm
def test_a_node_is_taken_out(c):
    job = c.submit("sleep 300", "-w", c.nodes[1], "--no-requeue", "-o", "/dev/null")
    c.wait(job, "RUNNING")
    c.node_down(c.nodes[1])
    c.wait(job, "NODE_FAIL")
    c.node_up(c.nodes[1])
    wait_until(lambda: c.node_state(c.nodes[1]) == "IDLE")


@needs_slurm
def test_folders_of_a_node(tmp_path):
    with Cluster(private=[tmp_path]) as c:
        if not c.isolated: pytest.skip("nodes have no namespaces here")
        c.run("srun", "-N2", "sh", "-c", f"hostname > {tmp_path}/name")
        assert c.run("srun", "-N2", "cat", tmp_path / "name").stdout.split().sort() == c.nodes.sort() and not list(tmp_path.iterdir())


@needs_accounting
def test_accounting(tmp_path):
    with Cluster(accounting=True) as c:
        job = c.submit("exit 3", "-o", "/dev/null")
        wait_until(lambda: c.run("sacct", "-nPX", "-j", job, "-o", "State,ExitCode,Account").stdout == "FAILED|3:0|lab\n", 30)
        r = c.run("sbatch", "-A", "nobodys", "--wrap", "true", check=False)
        assert r.returncode and "Invalid account" in r.stderr
        pids = below(c.machines.supervisor.pid)
    assert not alive(pids) and not c.folder.exists()


# --- ssh

@needs_ssh
def test_ssh_hosts():
    with SSH() as s:
        names = [subprocess.run(["ssh", "-F", s.config, n, "hostname"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60).stdout.strip() for n in s.hosts]
        assert names == (s.hosts if s.machines.isolated else [os.uname().nodename] * 2)
        assert s.run("n2", "exit 3", check=False).returncode == 3
        s.run("n1", "nohup sleep 300 >/dev/null 2>&1 &")
        pids = s.pids("n1")
        assert len(pids) == 2                                                 # what a lost connection leaves on a host is part of it
        s.kill("n1")
        assert not alive(pids) and s.run("n1", "true", check=False).returncode == 255 and s.run("n2", "true").returncode == 0
        s.start("n1")
        assert s.run("n1", "true").returncode == 0
        pids = below(s.machines.supervisor.pid)
    assert not alive(pids) and not s.machines.folder.exists()
