"The command line, as a person in a terminal."
import json, os, subprocess, sys, time
from pathlib import Path

import pytest

import dtnb
from conftest import wait_until
from contract import place, rank_one_raises, sleeps
from dtnb.launchers.local import Local

DTNB = str(Path(sys.executable).parent / "dtnb")


def run(*argv, timeout=120): return subprocess.run([DTNB, *argv], capture_output=True, text=True, timeout=timeout)


def test_jobs_view_and_prune(tmp_path):
    done, failed, running = (dtnb.launch(f, on=Local(nproc=2)) for f in (place, rank_one_raises, sleeps))
    done.wait(60), failed.wait(60)
    table = run("jobs").stdout
    assert [line.split()[1] for line in table.splitlines()[1:]][:2] == ["done", "failed"] and "Local" in table
    shown = run("view", failed.id).stdout
    assert "rank 1" in shown and "ValueError: bad batch 7" in shown
    page = tmp_path / "page.html"
    assert run("view", failed.id, "--html", str(page)).returncode == 0
    assert "bad batch 7" in page.read_text() and "<script" not in page.read_text()
    assert run("view", done.id, "--follow").returncode == 0
    assert "removed 2 ended jobs" in run("jobs", "--prune").stdout
    assert [j.id for j in dtnb.jobs()] == [running.id]
    running.cancel()
    assert "removed 0" in run("jobs", "--prune", "--older", "1").stdout


def test_errors_are_one_line():
    r = run("view", "nope")
    assert (r.returncode, len(r.stderr.strip().splitlines())) == (2, 1) and r.stderr.startswith("dtnb: there is no job 'nope'")
    assert run("fly").returncode == 2
    assert run("--version").stdout.startswith("dtnb ")


def test_doctor_finishes_and_says_what_to_do():
    r = run("doctor")
    assert r.returncode == 0, r.stdout
    for word in ("Python", "packages", "DTNB_HOME", "loopback", "gloo", "Slurm", "Ray", "Kubernetes"): assert word in r.stdout


def test_demo_leaves_a_page(tmp_path):
    r = run("demo", "--out", str(tmp_path / "out"), timeout=300)
    assert r.returncode == 0, r.stderr
    assert "rank 0: accuracy 0.9" in r.stdout and "rank 1: accuracy 0.9" in r.stdout
    page = (tmp_path / "out" / "demo.html").read_text()
    assert "100%" in page and "Quick start" in page and "model not found" not in page
