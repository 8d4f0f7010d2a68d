"The command line, as a person in a terminal."
import json, os, re, shutil, signal, subprocess, sys, urllib.error, urllib.request
from pathlib import Path

import pytest

import dtnb
from conftest import alive, job_processes, wait_until
from contract import place, rank_one_raises, sleeps
from dtnb.cli import parser
from dtnb.launchers.local import Local

ROOT = Path(__file__).parent.parent
DTNB = str(Path(sys.executable).parent / "dtnb")


def run(*argv, timeout=120, **env): return subprocess.run([DTNB, *argv], capture_output=True, text=True, timeout=timeout, env=os.environ | env)


@pytest.fixture
def running():
    "A job that runs until it is cancelled"
    job = dtnb.launch(sleeps, on=Local(nproc=2))
    wait_until(lambda: job.state == "running", what="the job runs")
    yield job
    job.cancel()


@pytest.fixture
def started(tmp_path):
    "Starts a command in the background; its output is in the file `log`. What still runs at the end is killed, by its id"
    all_ = []
    def start(*argv, **kw):
        log = tmp_path / f"command-{len(all_)}.log"
        with open(log, "w") as f: p = subprocess.Popen([DTNB, *argv], stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT, **kw)
        p.log = log
        all_.append(p)
        return p
    yield start
    for p in all_:
        if p.poll() is None: p.kill()
        p.wait()


def test_jobs_view_and_prune(tmp_path, running):
    done, failed = (dtnb.launch(f, on=Local(nproc=2)) for f in (place, rank_one_raises))
    done.wait(60), failed.wait(60)
    table = {line.split()[0]: line for line in run("jobs").stdout.splitlines()[1:]}
    assert {i: line.split()[1:4] for i, line in table.items()} == {running.id: ["running", "2", "Local"], done.id: ["done", "2", "Local"], failed.id: ["failed", "2", "Local"]}
    shown = run("view", failed.id).stdout
    assert "rank 1" in shown and "ValueError: bad batch 7" in shown and "in rank_one_raises" in shown, "the traceback is told"
    page = tmp_path / "page.html"
    assert run("view", failed.id, "--html", str(page)).returncode == 0
    assert "bad batch 7" in page.read_text() and "<script" not in page.read_text()
    assert run("view", done.id, "--follow").returncode == 0
    assert "removed 0 ended jobs" in run("jobs", "--prune", "--older", "1").stdout
    said = run("jobs", "--prune").stdout
    assert f"removed {done.id} (done" in said and f"removed {failed.id} (failed" in said and f"kept {running.id}: it is running" in said and "removed 2 ended jobs" in said
    assert [j.id for j in dtnb.jobs()] == [running.id] and running.state == "running"


def test_a_broken_directory_hides_no_job(home):
    done = dtnb.launch(place, on=Local(nproc=2))
    done.wait(60)
    for name, text in [("broken", "{"), ("foreign", json.dumps(dict(job_id="foreign", name="f", launcher="Abacus"))), ("half", None)]:
        (home / "jobs" / name).mkdir(mode=0o700)
        if text: (home / "jobs" / name / "spec.json").write_text(text)
    r = run("jobs")
    assert r.returncode == 0 and done.id in r.stdout
    for name, why in [("broken", "can't be read"), ("foreign", "Abacus"), ("half", "no spec.json")]: assert re.search(rf"^{name} .*{why}", r.stdout, re.M), r.stdout
    assert "removed 1 ended job " in run("jobs", "--prune").stdout
    assert {p.name for p in (home / "jobs").iterdir()} == {"broken", "foreign", "half"}, "what can't be read is not removed, nor is a launch that may just be starting"
    os.utime(home / "jobs" / "half", (0, 0))
    assert "removed half (left over" in run("jobs", "--prune").stdout
    for name in ("broken", "foreign", "half"):
        r = run("view", name)
        assert r.returncode == 2 and len(r.stderr.splitlines()) == 1 and r.stderr.startswith("dtnb: "), r.stderr


def test_follow_until_the_end(running, started, tmp_path):
    p = started("view", running.id, "--follow", "--html", str(tmp_path / "page.html"))
    wait_until(lambda: "running" in p.log.read_text(), what="the job is drawn")
    running.cancel()
    assert p.wait(30) == 0
    said = p.log.read_text()
    assert "cancelled" in said and "cancelled" in (tmp_path / "page.html").read_text()


def test_an_interrupt_ends_the_looking_not_the_job(running, started):
    p = started("view", running.id, "--follow")
    wait_until(lambda: "running" in p.log.read_text(), what="the job is drawn")
    p.send_signal(signal.SIGINT)
    assert p.wait(30) == 130
    said = p.log.read_text()
    assert said.splitlines()[-1] == "dtnb: interrupted; the job goes on" and "Traceback" not in said
    assert running.state == "running"


@pytest.mark.parametrize("argv, words", [
    (["view", "nope"], "dtnb: there is no job 'nope'"), (["view", "../.."], "dtnb: there is no job '../..'"), (["jobs", "--older", "3"], "dtnb: --older goes with --prune"),
    (["demo", "--out", "/proc/nope"], "dtnb: "), (["demo", "--nproc", "1"], "at least 2 ranks"), (["jobs", "--prune", "--older", "-1"], "not a number of days"),
    (["jobs", "--prune", "--older", "soon"], "not a number of days"), (["view"], "required: job"), (["fly"], "invalid choice: 'fly'"), ([], "required")])
def test_errors_are_one_line(argv, words):
    r = run(*argv)
    lines = [l for l in r.stderr.splitlines() if not l.startswith(("usage: ", "    "))]   # argparse shows the usage, too
    assert r.returncode == 2 and len(lines) == 1 and words in lines[0] and r.stdout == "", r.stderr


def test_version_in_both_ways():
    "As a command and as a module"
    module = subprocess.run([sys.executable, "-m", "dtnb.cli", "--version"], capture_output=True, text=True, timeout=60)
    assert module.stdout == run("--version").stdout == f"dtnb {dtnb.__version__}\n"


def test_a_reader_that_goes_away(home):
    "The pipe has no reader when the table is written: no complaint, and the status that a shell would give"
    dtnb.launch(place, on=Local(nproc=2)).wait(60)
    reader, writer = os.pipe()
    os.close(reader)
    r = subprocess.run([DTNB, "jobs"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (r.returncode, r.stderr) == (141, "")


def test_a_terminal_without_check_marks(home):
    dtnb.launch(place, on=Local(nproc=2)).wait(60)
    r = run("view", dtnb.jobs()[0].id, PYTHONIOENCODING="ascii")
    assert r.returncode == 0 and "done" in r.stdout


def test_doctor_finishes_and_says_what_to_do(tmp_path):
    r = run("doctor", DTNB_HOME=str(tmp_path / "not-yet"))
    assert r.returncode == 0, r.stdout
    for word in ("Python", "packages", "torch", "gloo", "DTNB_HOME", "loopback", "GPUs", "open files", "/dev/shm", "JupyterLab", "Slurm", "Ray", "Kubernetes"): assert word in r.stdout
    assert not (tmp_path / "not-yet").exists(), "the doctor only looks"


def test_doctor_names_what_is_required_and_missing(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    r = run("doctor", DTNB_HOME=str(tmp_path / "open"))
    assert r.returncode == 1 and "chmod 700" in r.stdout and r.stdout.rstrip().endswith("dtnb cannot work yet: DTNB_HOME")
    assert run("doctor", DTNB_HOME="/proc/nope").returncode == 1


def test_demo_leaves_a_page(tmp_path):
    r = run("demo", "--out", str(tmp_path / "out"), timeout=300)
    assert r.returncode == 0, r.stderr
    assert "rank 0: accuracy 0.9" in r.stdout and "rank 1: accuracy 0.9" in r.stdout
    assert "train · running" in r.stderr and "train · done · 100%" in r.stderr, "progress was seen while it ran"
    page = (tmp_path / "out" / "demo.html").read_text()
    assert "100%" in page and "Quick start" in page and "model not found" not in page
    assert "<script" not in page and not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", page), "the page needs no network"
    nb = json.loads((tmp_path / "out" / "quickstart.ipynb").read_text())
    assert "widgets" not in nb["metadata"] and all(c["execution_count"] for c in nb["cells"] if c["cell_type"] == "code")


def test_a_demo_that_fails_says_so_and_shows_nothing_old(tmp_path):
    r = run("demo", "--out", str(tmp_path / "out"), "--nproc", "100000", timeout=300)
    assert r.returncode == 1 and r.stderr.startswith("dtnb: the notebook failed: LaunchError: asked for 100000 ranks") and len(r.stderr.splitlines()) == 1, r.stderr
    assert "accuracy" not in r.stdout and "LaunchError" in (tmp_path / "out" / "demo.html").read_text()


def test_an_interrupted_demo_leaves_nothing_running(tmp_path, started, monkeypatch):
    out = tmp_path / "out"
    p = started("demo", "--out", str(out))
    monkeypatch.setenv("DTNB_HOME", str(out / ".dtnb"))
    wait_until(lambda: out.exists() and any(j.state == "running" for j in dtnb.jobs()), 60, "the demo's job runs")
    second = run("demo", "--out", str(out))
    assert second.returncode == 2 and "another demo is running" in second.stderr
    job, = dtnb.jobs()
    pids = job_processes(job)
    assert len(pids) >= 3, "guard and two ranks"
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 130
    said = p.log.read_text()
    assert said.splitlines()[-1] == "dtnb: interrupted; its jobs are stopped" and "Traceback" not in said
    assert job.state == "cancelled"
    wait_until(lambda: not alive(pids), what="the demo's processes ended")


def test_lab_listens_on_loopback_and_keeps_its_token(tmp_path, started):
    private = {f"JUPYTER_{k}_DIR": str(tmp_path / k) for k in ("CONFIG", "DATA", "RUNTIME")}
    p = started("lab", env=os.environ | private | dict(BROWSER="true"), cwd=tmp_path)
    def address():
        assert p.poll() is None, p.log.read_text()
        return re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)", p.log.read_text())
    url, token = wait_until(address, 60, "an address with a token").groups()
    assert "0.0.0.0" not in p.log.read_text()
    def status(path):
        try: return urllib.request.urlopen(url + path, timeout=20).status
        except urllib.error.HTTPError as err: return err.code
        except urllib.error.URLError: return None      # Jupyter prints its address before it listens
    wait_until(lambda: status("/api"), 60, "an answer")
    assert status(f"/api/contents/01_quickstart.ipynb?content=0&token={token}") == 200
    assert status("/api/contents") == 403
    p.send_signal(signal.SIGTERM)
    p.wait(30)


def test_the_course_travels_with_the_package(tmp_path):
    "As from a wheel: no clone around it (that a wheel holds the file is asked in test_architecture)"
    shutil.copytree(ROOT / "dtnb", tmp_path / "site" / "dtnb", ignore=shutil.ignore_patterns("__pycache__", "course"))
    ask = [sys.executable, "-c", "import dtnb.cli; print(dtnb.cli.course())"]
    env = os.environ | dict(PYTHONPATH=str(tmp_path / "site"))
    assert "came without its course" in subprocess.run(ask, capture_output=True, text=True, cwd=tmp_path, env=env).stderr
    shutil.copytree(ROOT / "nbs" / "course", tmp_path / "site" / "dtnb" / "static" / "course")
    there = subprocess.run(ask, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert there.stdout.strip() == str(tmp_path / "site" / "dtnb" / "static" / "course")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_shown_commands_exist(page):
    "Every `make …` and `dtnb …`, with its options, is one that there is"
    text = (ROOT / page).read_text()
    shown = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M) + re.findall(r"`([^`\n]+)`", text))   # blocks, and words in the prose
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    made = set(re.findall(r"^make ([a-z]+)", shown, re.M))
    assert made and made <= targets
    sub = next(a for a in parser()._actions if a.choices and "demo" in a.choices).choices
    for command, rest in re.findall(r"^dtnb ([a-z]+)(.*)", shown, re.M):
        assert command in sub, command
        for option in re.findall(r"--[a-z]+", rest): assert option in sub[command]._option_string_actions, f"dtnb {command} {option}"
