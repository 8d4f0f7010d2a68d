"Jobs on a real Slurm: the launcher's contract, what it refuses, how jobs end there."
import os, subprocess, sys, time
from pathlib import Path

import pytest

import dtnb
from conftest import alive, wait_until
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
