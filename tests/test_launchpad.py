"The launchpad without a browser: what the cluster has, with names that hold anything; a controller that is slow or dead; one submission a form."
import os, time
from pathlib import Path

import pytest

import dtnb
from conftest import SLOW, wait_until
from dtnb.form import Form, script_of
from dtnb.job import LaunchError
from dtnb.launchers import discovery
from dtnb.launchers.slurm import read_record
from dtnb.pad import Launchpad, launchpad
from dtnb.payload import CellCall
from dtnb.widgets import cluster as tables
from slurm import Cluster
from slurm.cluster import missing

needs_slurm = pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")
NASTY = 'a | b  "x"\tJobState=FAILED it\'s\n9' + discovery.SEP + "RUNNING" + discovery.END + "\nend"


@pytest.fixture(scope="module")
def slurm():
    with Cluster(conf=dict(EnforcePartLimits="ALL")) as c: yield c


@pytest.fixture
def cluster(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setenv("DTNB_SQUEUE_SECONDS", ".5")
    yield slurm
    slurm.run("scancel", "--me", check=False)
    wait_until(lambda: not slurm.run("squeue", "-h").stdout.strip(), 40, "an empty queue")


def queue(cluster) -> list[str]: return cluster.run("squeue", "-h", "-o", "%i %T").stdout.split("\n")[:-1]
def square(n): return n * n


# ---- what the cluster has

@needs_slurm
def test_the_cluster_is_known(cluster):
    held = cluster.submit("sleep 60", "--output=/dev/null", "-N2", "--exclusive", "--gres=gpu:1", f"--job-name={NASTY}")
    cluster.wait(held, "RUNNING")
    waits = cluster.submit("sleep 60", "--output=/dev/null", "-N2", "--exclusive", "-J", "second")
    asks = discovery.Discoverer(.5)
    known = wait_until(lambda: (k := asks.look()) and len(k.queue) == 2 and all(j.reason != "None" or j.state == "RUNNING" for j in k.queue) and any(n.gpus_used for n in k.nodes) and k, what="a whole picture")
    main = known.partitions["main"]
    assert list(known.partitions) == ["main", "low", "high"] and main.default and (main.nodes, main.cpus, main.memory, main.gpus, main.minutes, main.default_minutes) == (2, 4, 4000, {"": 2}, 1440, 60)
    assert [(n.name, n.cpus_used, n.gpus_used) for n in known.nodes] == [("node1", 4, 2), ("node2", 4, 2)], "exclusive: all that they have"
    by_id = {j.id: j for j in known.queue}
    assert by_id[held].name == NASTY and by_id[held].where == "node[1-2]" and by_id[held].gpus == 1
    assert by_id[waits].reason == "Resources" and discovery.jobs_ahead(by_id[waits], known.waiting) == 0
    said = tables.queue_text(known)
    assert 'a | b  "x" JobState=FAILED it\'s 9' in said and "waits for resources" in said and len(said.splitlines()) == 3, "a name is one line"
    assert "node1" in tables.cluster_text(known) and not asks.trouble()


@needs_slurm
def test_slurms_own_words(cluster):
    taken, words = dtnb.Slurm(time="10").rehearse()
    assert taken and "to start at" in words and "in partition main" in words
    taken, words = dtnb.Slurm(time="3-0").rehearse()
    assert not taken and "Requested time limit is invalid" in words
    assert not queue(cluster), "a rehearsal submits nothing"


def commands(folder, monkeypatch, text):
    "Slurm's commands as a shell script"
    folder.mkdir()
    for name in ("sinfo", "squeue", "scontrol", "sacctmgr", "sbatch"):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_slow_controller_blocks_nobody(tmp_path, monkeypatch):
    "Its commands answer when the test lets them"
    commands(tmp_path / "bin", monkeypatch, f"while [ ! -e {tmp_path}/go ]; do sleep .1; done; exit 0")
    asks = discovery.Discoverer(.5)
    assert asks.look() == discovery.Snapshot() and asks.rounds == 0, "it has not waited for the answer"
    pad = launchpad(square, 3, on=dtnb.Slurm())
    pad.pane = True
    pad.refresh()
    pad.hear(dict(request="set", token=pad.form.token, field="nodes", text="2"))
    wait_until(lambda: asks.trouble().startswith("the controller has not answered for "), what="a word about its silence")
    wait_until(lambda: pad.refresh() or pad.check["words"].startswith("the controller has not answered for "), what="a word in the form")
    assert pad.form.typed["nodes"] == "2" and asks.rounds == 0
    (tmp_path / "go").touch()
    wait_until(lambda: asks.rounds and not asks.trouble(), 40, what="the end of the silence")


def test_a_dead_controller_is_told(tmp_path, monkeypatch):
    commands(tmp_path / "bin", monkeypatch, f"[ -e {tmp_path}/dead ] || exit 0; echo \"$(basename $0): error: Unable to contact slurm controller\" >&2; exit 1")
    asks = discovery.Discoverer(.5)
    wait_until(lambda: asks.look().t, what="an answer")
    (tmp_path / "dead").touch()
    said = wait_until(asks.trouble, what="the trouble")
    assert "(Unable to contact slurm controller); this is as of " in said
    monkeypatch.setenv("PATH", "/nowhere")
    wait_until(lambda: asks.trouble().startswith("Slurm's commands are not on this machine"), what="no commands")


# ---- the form

@needs_slurm
def test_one_form_is_submitted_once(cluster):
    pad = launchpad(square, 3, on=dtnb.Slurm(hold=True))
    click = dict(request="submit", token=pad.form.token)
    for _ in range(3): pad.hear(click)
    wait_until(lambda: pad.job, what="the job")
    pad.hear(click)                                      # a page that was reloaded
    pad.hear(click | dict(token="someone else's"))
    pad._serve()
    assert pad.sent["state"] == "sent" and len(queue(cluster)) == 1 == len(dtnb.jobs())
    other = Launchpad()                                  # another kernel
    other.refresh()
    c, = other._draw_jobs(discovery.Snapshot())["list"]
    assert c["id"] == pad.job.id and c["slurm"] == read_record(pad.job.paths)["id"]
    pad.hear(dict(request="again"))
    wait_until(lambda: pad.form.token != click["token"], what="a new form")
    pad.hear(dict(request="submit", token=pad.form.token))
    wait_until(lambda: len(queue(cluster)) == 2, what="a second job, which was asked for")


@needs_slurm
def test_what_slurm_refuses_can_be_mended(cluster):
    pad = launchpad(square, 3, on=dtnb.Slurm(licenses="nothing:3"))
    first = pad.form.token
    pad.hear(dict(request="submit", token=first))
    wait_until(lambda: pad.sent["state"] == "failed", what="the refusal")
    assert "icense" in pad.sent["words"] and pad.form.token != first and not dtnb.jobs()
    pad.hear(dict(request="set", token=pad.form.token, field="more", text="hold"))
    pad.hear(dict(request="submit", token=pad.form.token))
    wait_until(lambda: len(queue(cluster)) == 1, what="the job")


@needs_slurm
def test_an_edited_script_is_what_runs_and_a_clone_runs_it_again(cluster, tmp_path):
    pad = launchpad(square, 3, on=dtnb.Slurm(time=10))
    own = script_of(pad.form)["text"]
    edited = own.replace("# command", f"echo by hand >> {tmp_path}/mark\n# command").replace("--job-name=square", "--job-name='it is \"mine\"'")
    pad.hear(dict(request="script", token=pad.form.token, text=edited.replace("--nodes=1", "--nodes=2")))
    pad._serve()
    assert "--nodes=2, but 1 is asked for" in script_of(pad.form)["error"]
    with pytest.raises(ValueError, match="--nodes=2, but 1"): pad.form.launcher()
    pad.hear(dict(request="script", token=pad.form.token, text=edited))
    pad.hear(dict(request="submit", token=pad.form.token))
    wait_until(lambda: pad.job, what="the job")
    assert (pad.job.paths.root / "submit.sh").read_text() == edited.replace("JOB_DIR", str(pad.job.paths.root))
    assert read_record(pad.job.paths)["token"] in cluster.run("squeue", "-h", "-t", "all", "-o", "%k").stdout
    assert pad.job.results(timeout=60) == {0: 9} and (tmp_path / "mark").read_text() == "by hand\n"
    clone = Launchpad()                                  # a kernel that has never seen the function
    clone.hear(dict(request="clone", job=pad.job.id))
    wait_until(lambda: clone.form, what="a form")
    assert clone.form.script == edited and clone.form.typed == dict(time="10")
    clone.hear(dict(request="submit", token=clone.form.token))
    wait_until(lambda: clone.job, what="the second job")
    assert clone.job.id != pad.job.id and clone.job.results(timeout=60) == {0: 9}


def test_a_script_that_would_start_nothing_is_refused():
    own = script_of(Form("f", "Slurm"))["text"]
    for text, words in ((own.replace("srun ", "echo "), "no rank would start"), (own.replace("#!/bin/bash\n", ""), "must begin with #!"), (own.replace("ntasks-per-node=1", "ntasks-per-node=4"), "--ntasks-per-node=4, but 1")):
        with pytest.raises(ValueError, match=words): dtnb.Slurm(script=text)


def busy():
    end = time.time() + 4
    while time.time() < end: pass


def test_no_form_is_left_sending(monkeypatch):
    "Whatever goes wrong is told, and the form can be mended and sent"
    pad = launchpad(abs, -3)
    pad.form.set("target", "Local")
    first = pad.form.token
    with monkeypatch.context() as m:
        m.setattr("dtnb.pad.launch_on", lambda *_: {}["no such thing"])
        pad.hear(dict(request="submit", token=first))
        wait_until(lambda: pad.sent["state"] == "failed", what="the fault is told")
    assert "KeyError" in pad.sent["words"] and pad.form.token != first and pad.job is None
    pad.hear(dict(request="submit", token=pad.form.token))
    assert wait_until(lambda: pad.job, what="a job").results(60) == {0: 3, 1: 3}
    assert "no form for" in str(pytest.raises(ValueError, launchpad, abs, on=type("Mine", (dtnb.Local,), {})()).value)


@pytest.mark.skipif(not SLOW, reason="long: make test-all")
@pytest.mark.skipif(bool(missing(accounting=True)), reason=f"no accounting here: {missing(accounting=True)}")
def test_accounts_are_offered_and_efficiency_is_told(monkeypatch):
    from dtnb.launchers.squeue import has_accounting
    with Cluster(accounting=True, conf=dict(JobAcctGatherType="jobacct_gather/linux", JobAcctGatherFrequency="1")) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        has_accounting.cache_clear()
        pad = launchpad(busy, on=dtnb.Slurm(account="lab", time=5, gpus_per_node=1))
        choices = lambda: next(f["choices"] for f in pad._draw_form(pad._known())["fields"] if f["name"] == "account")
        wait_until(lambda: ("lab", "lab") in choices(), what="the accounts")
        pad.hear(dict(request="submit", token=pad.form.token))
        card = lambda: pad.refresh() or next(iter(pad._draw_jobs(pad._known())["list"]), {})
        wait_until(lambda: card().get("efficiency", "").startswith("CPU efficiency "), 90, "the efficiency")
        assert card()["efficiency"].endswith("%") and card()["cost"].startswith("GPU-hours: 0.0833 asked, ")
    has_accounting.cache_clear()


# ---- a marked cell

def test_a_cell_runs_in_main_of_every_rank():
    "Its classes are found by name, its errors begin in the cell, and it takes only what it reads"
    text = "import pickle, dtnb\nclass Net: pass\nassert type(pickle.loads(pickle.dumps(Net()))) is Net\nprint('scale', scale)\nif scale > 2: raise ValueError('too big')\n"
    lock = __import__("threading").Lock()
    job = dtnb.launch(CellCall(text, dict(scale=1.5, Net=lock, other=lock), "mine"), on=dtnb.Local(nproc=1))
    assert job.wait(60) == "done" and job.logs(0).strip() == "scale 1.5" and job.spec.name == "mine"
    job = dtnb.launch(CellCall(text, dict(scale=3), "mine", "Cell In[7]"), on=dtnb.Local(nproc=1))
    with pytest.raises(dtnb.RankFailedError) as failed: job.result(timeout=60)
    first = failed.value.traceback.splitlines()[1]
    assert first.strip().startswith('File "Cell In[7]", line 5'), failed.value.traceback
    with pytest.raises(ValueError, match="no magics, and this one has '!ls'"): CellCall("x = 1\n!ls", {})
    with pytest.raises(SyntaxError): CellCall("x = ", {})
    assert CellCall("print('%.1f'\n      % loss)", dict(loss=2)).names == dict(loss=2)      # that line is Python's


def test_magics_show_it_and_tell_of_no_slurm(monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell
    shell = InteractiveShell.instance()
    monkeypatch.setenv("PATH", "/nowhere")
    shell.run_line_magic("load_ext", "dtnb")
    try:
        pad = shell.run_cell_magic("launchpad", "--name mine --on torchrun", "print(1)")
        assert (pad.form.name, pad.form.target, pad.call[0].text) == ("mine", "Torchrun", "print(1)")
        shell.run_line_magic("dist", "cluster")
        assert "Slurm's commands are not on this machine" in capsys.readouterr().out
    finally:
        shell.run_line_magic("unload_ext", "dtnb")
        InteractiveShell.clear_instance()
