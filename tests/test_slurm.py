"Jobs on a real Slurm: the launcher's contract, what it refuses, how jobs end there."
import os, subprocess, sys, time
from pathlib import Path

import pytest

import dtnb
from conftest import SLOW, alive, wait_until
from contract import LauncherContract, place, rank_one_exits, sleeps
from slurm import Cluster
from slurm.cluster import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as c: yield c


@pytest.fixture(autouse=True)
def here(cluster, monkeypatch):
    "Slurm's commands of this process find the cluster; it is empty afterwards"
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    monkeypatch.setenv("DTNB_SQUEUE_SECONDS", ".5")
    yield
    cluster.run("scancel", "-u", os.environ.get("USER", "root"), check=False)
    wait_until(lambda: not cluster.run("squeue", "-h").stdout.strip(), 40, "an empty queue")


class OnSlurm(LauncherContract):
    def gone(self, job, pids=()):
        wait_until(lambda: not alive(set(pids)), what=f"the end of {alive(pids)}")
        wait_until(lambda: not dtnb_processes(job), 40, what=f"the end of {job}'s processes")


def dtnb_processes(job):
    "Processes of this job on any node: they have its folder in their environment or in their arguments"
    found = []
    for p in Path("/proc").iterdir():
        if not p.name.isdigit(): continue
        try: text = (p / "environ").read_bytes() + (p / "cmdline").read_bytes()
        except OSError: continue
        if job.id.encode() in text and int(p.name) != os.getpid(): found.append(int(p.name))
    return found


class TestTwoNodes(OnSlurm):
    def make(self, nproc=2, **options): return dtnb.Slurm(nodes=2, nproc_per_node=nproc // 2, **options)


class TestOneTaskARank(OnSlurm):
    brief = True
    def make(self, nproc=2, **options): return dtnb.Slurm(nodes=1, ntasks_per_node=nproc, **options)


# ---- what is refused, in seconds, without a trace

@pytest.mark.parametrize("options, words", [
    (dict(partition="nope"), "there is no partition 'nope': this cluster has main, low, high"),
    (dict(nodes=3), "asked for 3 nodes, but partition main has at most 2"),
    (dict(time="25:00:00"), "asked for 1500 minutes, but partition main has at most 1440"),
    (dict(gpus_per_node=5, nproc_per_node=2), "asked for 5 GPUs a node, but partition main has at most 2"),
    (dict(licenses="nothing:3"), "Slurm refused the job: .*[Ll]icense"),
    (dict(dependency="afterok:wrong"), "Slurm refused the job: .*[Dd]ependency"),
])
def test_what_can_not_run_is_refused(cluster, options, words):
    with pytest.raises(dtnb.LaunchError, match=words): dtnb.launch(place, on=dtnb.Slurm(**options))
    assert not dtnb.jobs() and not cluster.run("squeue", "-h").stdout.strip()


def test_an_unknown_account_is_refused_where_accounts_are_known(monkeypatch):
    if reason := missing(accounting=True): pytest.skip(f"no accounting here: {reason}")
    with Cluster(accounting=True) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        with pytest.raises(dtnb.LaunchError, match="Slurm refused the job: .*[Ii]nvalid account"): dtnb.launch(place, on=dtnb.Slurm(account="nobody"))
        assert not dtnb.jobs()
        job = dtnb.launch(sleeps, on=dtnb.Slurm(account="lab"))
        wait_until(lambda: "child" in job.logs(0), 60, "a start")
        c.run("scancel", read(job)["id"])
        assert job.wait(30) == "cancelled" and "scancel" in job.view.reason


def read(job):
    from dtnb.launchers.slurm import read_record
    return read_record(job.paths)


@pytest.mark.parametrize("name", ["it's \"one\" | two", "x JobState=FAILED", "$(touch /tmp/never) `id`"])
def test_names_may_hold_anything(cluster, name):
    job = dtnb.launch(place, on=dtnb.Slurm(job_name=name))
    assert cluster.run("squeue", "-h", "-j", read(job)["id"], "-o", "%j").stdout.strip() == name
    assert job.wait(60) == "done" and not Path("/tmp/never").exists()


# ---- what becomes of jobs

def digits(epochs=3):
    "Two-layer perceptron on scikit-learn's digits, by DDP"
    import dtnb, torch, torch.distributed as dist
    from sklearn.datasets import load_digits
    dist.init_process_group("gloo")
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    r, n = dist.get_rank(), dist.get_world_size()
    for epoch in dtnb.track(range(epochs), desc="epoch"):
        for i in range(0, len(x) - 64 * n, 64 * n):
            part = slice(i + 64 * r, i + 64 * (r + 1))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
        dtnb.log(loss=loss.item())
    return sum(p.sum().item() for p in model.parameters()), (model(x).argmax(1) == y).float().mean().item()


def test_digits_on_two_nodes_with_two_ranks():
    job = dtnb.launch(digits, epochs=8, on=dtnb.Slurm(nodes=2, nproc_per_node=2))
    got = job.results(120)
    assert len({round(total, 3) for total, _ in got.values()}) == 1 and all(right > .85 for _, right in got.values()), got
    view = job.view
    assert {r.host for r in view.ranks.values()} == {"node1", "node2"} and all(r.bar.n == 8 and r.scalars["loss"].last < 1 for r in view.ranks.values())


def test_the_classic_script(cluster):
    "`style='torchrun'`: the function as a script, torchrun once a node, no dtnb there"
    job = dtnb.launch(speak, "it works", on=dtnb.Slurm(nodes=2, nproc_per_node=2, style="torchrun", time=5, env=dict(OMP_NUM_THREADS="1")))
    assert job.wait(120) == "done", job.logs(0)
    assert [job.logs(0).count(f"rank {r} of 4: it works, 6.0") for r in range(4)] == [1] * 4 and {r.state for r in job.view.ranks.values()} == {"done"}
    with pytest.raises(dtnb.LaunchError, match="has left no result"): job.result()
    job = dtnb.launch(speak, 1 / 3, on=dtnb.Slurm(style="torchrun"))
    assert job.wait(120) == "failed" and "job.logs(0)" in job.view.reason and "TypeError" in job.logs(0)
    with pytest.raises(dtnb.LaunchError, match="can.t become a script: .*write it as a def"): dtnb.launch(lambda: 3, on=dtnb.Slurm(style="torchrun"))


def speak(words):
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    print(f"rank {os.environ['RANK']} of {dist.get_world_size()}: " + words + f", {x.item()}", flush=True)


def test_cpus_are_those_that_were_asked_for(monkeypatch):
    "Where Slurm binds tasks to CPUs, the ranks have those of their task"
    with Cluster(conf=dict(TaskPlugin="task/affinity"), cpus=2) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        def affinity():
            import os
            return len(os.sched_getaffinity(0))
        assert dtnb.launch(affinity, on=dtnb.Slurm(cpus_per_task=1, nproc_per_node=2)).results(60) == {0: 1, 1: 1}


def test_a_rank_that_exits_outside_a_collective_is_named(cluster):
    job = dtnb.launch(rank_one_exits, on=dtnb.Slurm(nodes=2))
    began = time.monotonic()
    with pytest.raises(dtnb.RankFailedError, match="rank 1 on node2: its process ended with exit code 3"): job.result(timeout=60)
    assert time.monotonic() - began < 30
    wait_until(lambda: not dtnb_processes(job), 20, "the end of all")


def test_scancel_outside_dtnb_is_seen(cluster):
    job = dtnb.launch(sleeps, on=dtnb.Slurm(nodes=2))
    wait_until(lambda: all("child" in job.logs(r) for r in range(2)), 60, "a start")
    cluster.run("scancel", read(job)["id"])
    assert job.wait(30) == "cancelled" and job.view.reason == "CANCELLED: cancelled outside dtnb (scancel)"
    wait_until(lambda: not dtnb_processes(job), 20, "the end of all")
    assert dtnb.attach(job.id).state == "cancelled"


def test_cancel_of_a_job_that_waits(cluster):
    first = dtnb.launch(sleeps, on=dtnb.Slurm(nodes=2, exclusive=True))
    wait_until(lambda: first.state == "running", 60, "a start")
    second = dtnb.launch(place, on=dtnb.Slurm(nodes=2, exclusive=True))
    wait_until(lambda: "waits" in second.view.reason or "others are before" in second.view.reason, 20, "a reason")
    assert second.cancel("not needed") == "cancelled" and second.view.reason == "not needed"
    assert first.cancel() == "cancelled"


def test_two_jobs_on_one_node_at_once():
    jobs = [dtnb.launch(digits, epochs=1, on=dtnb.Slurm(nproc_per_node=2, cpus_per_task=2, nodelist="node1")) for _ in range(2)]
    assert [j.wait(120) for j in jobs] == ["done"] * 2 and len({j.results()[0] for j in jobs}) == 1


def resources():
    import os
    return {k: os.environ.get(k) for k in ("CUDA_VISIBLE_DEVICES", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_CONF", "HOSTILE")}


def test_gpus_and_cpus_are_slurms():
    one, two = [dtnb.launch(resources, on=dtnb.Slurm(gpus_per_node=1, cpus_per_task=2, nodelist="node1")).results(60)[0] for _ in range(2)]
    assert one["CUDA_VISIBLE_DEVICES"] in ("0", "1") and one["SLURM_CPUS_PER_TASK"] == "2"


def test_submission_from_inside_a_job_with_hostile_variables(monkeypatch):
    for k, v in dict(SLURM_JOB_ID="1", SLURM_NTASKS="64", SBATCH_PARTITION="nope", SBATCH_TIMELIMIT="0", SQUEUE_FORMAT="%j", SLURM_CLUSTERS="mars", SLURM_NNODES="7", PMIX_RANK="3", SLURM_CPU_BIND="rank", SBATCH_EXPORT="NONE", HOSTILE="kept").items(): monkeypatch.setenv(k, v)
    job = dtnb.launch(resources, on=dtnb.Slurm(nodes=2))
    got = job.results(60)
    assert {g["SLURM_JOB_ID"] for g in got.values()} == {read(job)["id"]} and {g["HOSTILE"] for g in got.values()} == {"kept"}


def test_submission_from_inside_srun(cluster):
    "A kernel that runs in a job of its own, with all that srun put into its environment"
    code = "import dtnb\ndef inner():\n    import os\n    return os.environ['SLURM_JOB_ID'], os.environ['WORLD_SIZE']\nprint(os.environ['SLURM_JOB_ID'], dtnb.launch(inner, on=dtnb.Slurm(nodes=2)).results(90))"
    said = subprocess.run([*cluster.login, "srun", "-N1", "-n1", sys.executable, "-c", "import os\n" + code], env=os.environ | cluster.env | dict(DTNB_HOME=os.environ["DTNB_HOME"]), capture_output=True, text=True, timeout=150).stdout
    outer, _, got = said.strip().splitlines()[-1].partition(" ")
    assert got.count("'2')") == 2 and outer not in got.replace("'2'", ""), said


def test_a_print_is_seen_while_the_rank_sleeps():
    def speaks():
        import time
        print("no newline", end="")
        time.sleep(600)
    job = dtnb.launch(speaks, on=dtnb.Slurm())
    wait_until(lambda: job.state == "running", 60, "a start")
    wait_until(lambda: "no newline" in job.logs(0), 10, "the print")
    job.cancel()


def test_a_module_edited_while_pending_runs_as_it_was(tmp_path, monkeypatch, cluster):
    (tmp_path / "recipe.py").write_text("def answer(): return 'old'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import recipe
    def uses(): return recipe.answer()
    first = dtnb.launch(sleeps, on=dtnb.Slurm(nodes=2, exclusive=True))
    wait_until(lambda: first.state == "running", 60, "a start")
    job = dtnb.launch(uses, on=dtnb.Slurm())
    (tmp_path / "recipe.py").write_text("def answer(): return 'new'\n")
    first.cancel()
    assert job.result(timeout=60) == "old"


# ---- the kernel and the controller go away

def test_a_killed_kernel_leaves_one_job_and_the_next_attaches(cluster):
    code = "import dtnb, os, time\ndef work():\n    import dtnb, time\n    for i in dtnb.track(range(50)): time.sleep(.1)\n    return i\njob = dtnb.launch(work, on=dtnb.Slurm())\nprint(job.id, flush=True)\ntime.sleep(600)"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    job = dtnb.attach(kernel.stdout.readline().strip())
    wait_until(lambda: job.state == "running", 60, "a start")
    kernel.kill()
    kernel.wait()
    assert dtnb.attach(job.id).result(timeout=60) == 49 and len(dtnb.jobs()) == 1


def test_an_sbatch_that_does_not_answer_is_adopted_once(cluster, tmp_path, monkeypatch):
    "It submits, then sleeps longer than we wait"
    import shutil
    real = shutil.which("sbatch")
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\n{real} \"$@\" >/dev/null\nexec sleep 600\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    from dtnb.launchers import slurm
    monkeypatch.setattr(slurm, "PATIENCE", 3)
    def lasts():                                            # longer than sbatch: a job that is over needs no adopting
        import time
        time.sleep(8)
    job = dtnb.launch(lasts, on=dtnb.Slurm(nodes=2))
    assert not read(job).get("id")
    assert job.wait(60) == "done" and read(job)["id"] and len(cluster.run("squeue", "-h", "-t", "all", "-o", "%k").stdout.split(read(job)["token"])) == 2


# ---- saving, preemption, the time limit, nodes and controllers that go

def test_preemption_saves_and_goes_on(monkeypatch):
    "Slurm takes the nodes, gives them back, and every step is done once"
    from test_checkpoint import stepped, train
    with Cluster(preempt_signal=True, grace=30) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        job = dtnb.launch(train, 400, on=dtnb.Slurm(nodes=2, partition="low", exclusive=True, signal_delay_s=5))
        stepped(job, 10)
        first = dtnb.launch(place, on=dtnb.Slurm(nodes=2, partition="high", exclusive=True))
        assert first.wait(120) == "done"
        got = job.results(120)
        assert {w for w, _ in got.values()} == {400.0} and job.view.attempt == 1 and all(len(h) == 1 for _, h in got.values())
        assert "== attempt 2 ==" in job.logs(1) and len(dtnb.jobs()) == 2


def test_a_time_limit_saves_and_goes_on(cluster):
    "A limit of one minute, for a run that needs longer"
    from test_checkpoint import train
    job = dtnb.launch(train, 700, pause=.1, on=dtnb.Slurm(nodes=2, time=1, signal_delay_s=30))
    seen = set()
    wait_until(lambda: seen.add((job.view.attempt, str(job.view.state))) or job.view.attempt == 1 and job.view.state == "running" or job.view.state.ended, 150, "the second attempt")
    assert job.view.attempt == 1 and "begins at step 0" in job.logs(0) and "== attempt 2 ==" in job.logs(0), (seen, job.view.reason)
    assert job.cancel() == "cancelled"


@pytest.mark.skipif(not SLOW, reason="a minute and a half: make test-all")
def test_a_job_over_its_limit_that_can_not_save(cluster):
    job = dtnb.launch(sleeps, on=dtnb.Slurm(time=1))
    assert job.wait(180) == "failed" and job.view.reason == "TIMEOUT: it was over its time limit"
    with pytest.raises(dtnb.LaunchError, match="TIMEOUT"): job.result()


def test_a_node_that_goes_down(monkeypatch):
    with Cluster(conf=dict(SlurmdTimeout=6, MessageTimeout=3)) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        job = dtnb.launch(sleeps, on=dtnb.Slurm(nodes=2, no_requeue=True))
        wait_until(lambda: all("child" in job.logs(r) for r in range(2)), 60, "a start")
        c.kill_node("node2")
        assert job.wait(90) == "failed" and "NODE_FAIL: a node failed" in job.view.reason, job.view.reason
        wait_until(lambda: not dtnb_processes(job), 30, "the end of all")


def test_a_suspended_job_says_so(cluster):
    job = dtnb.launch(sleeps, on=dtnb.Slurm())
    wait_until(lambda: job.state == "running", 60, "a start")
    cluster.run("scontrol", "suspend", read(job)["id"])
    wait_until(lambda: "SUSPENDED" in job.view.reason, 20, "SUSPENDED")
    assert job.state == "running"
    cluster.run("scontrol", "resume", read(job)["id"])
    wait_until(lambda: "SUSPENDED" not in job.view.reason, 20, "the end of it")
    job.cancel()


def test_a_controller_that_is_away_for_a_while():
    "The job runs on, what it says is seen, and nobody calls it lost"
    with pytest.MonkeyPatch.context() as m, Cluster() as c:
        m.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        m.setenv("DTNB_SQUEUE_SECONDS", ".5")
        job = dtnb.launch(digits, epochs=3000, on=dtnb.Slurm(nodes=2))
        wait_until(lambda: (b := job.view.ranks[0].bar) is not None and b.n > 2, 60, "a start")
        c.stop_controller()
        end, before = time.monotonic() + (60 if SLOW else 8), job.view.ranks[0].bar.n
        while time.monotonic() < end:
            assert job.state == "running"
            time.sleep(.5)
        assert job.view.ranks[0].bar.n > before
        c.start_controller()
        assert job.cancel(timeout=60) == "cancelled"


def test_a_list_of_jobs_says_how_each_ended(cluster):
    "Also of one that ended while nobody watched, in the first answer of a new process"
    job = dtnb.launch(sleeps, on=dtnb.Slurm())
    wait_until(lambda: job.state == "running", 60, "a start")
    cluster.run("scancel", "--signal=KILL", "--full", read(job)["id"])
    wait_until(lambda: not cluster.run("squeue", "-h").stdout.strip(), 40, "the end")
    time.sleep(4)                                             # last words may take their time
    said = subprocess.run([str(Path(sys.executable).with_name("dtnb")), "jobs"], capture_output=True, text=True, timeout=60).stdout
    assert "failed" in said or "cancelled" in said, said


def test_a_node_that_dies_under_a_collective_is_named(monkeypatch):
    from test_checkpoint import stepped, train
    with Cluster(conf=dict(SlurmdTimeout=6, MessageTimeout=3)) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        job = dtnb.launch(train, 10_000, on=dtnb.Slurm(nodes=2, no_requeue=True))
        stepped(job, 5)
        assert set(job.view.ranks) == {0, 1}
        c.kill_node("node2")
        assert job.wait(90) == "failed" and ("node2" in job.view.reason or "NODE_FAIL" in job.view.reason), job.view.reason


def threads():
    import torch
    return torch.get_num_threads()


def test_a_rank_has_one_thread_unless_told():
    assert dtnb.launch(threads, on=dtnb.Slurm()).result(timeout=60) == 1
    assert dtnb.launch(threads, on=dtnb.Slurm(env=dict(OMP_NUM_THREADS=2))).result(timeout=60) == 2
    with pytest.raises(dtnb.LaunchError, match="nowhere"): dtnb.launch(threads, on=dtnb.Slurm(python="/nowhere/python")).result(timeout=60)


def test_a_cancel_that_saves_first():
    from test_checkpoint import stepped, train
    job = dtnb.launch(train, 10_000, on=dtnb.Slurm(nodes=2))
    stepped(job, 5)
    assert job.cancel(save=True) == "cancelled" and job.view.reason == "asked to save and end"
    wait_until(lambda: not dtnb_processes(job), 30, "the end of all")
    got = dtnb.resume(job, on=dtnb.Local(nproc=2))
    stepped(got, 1)
    assert "begins at step 0" not in got.logs(0) and got.cancel() == "cancelled"
