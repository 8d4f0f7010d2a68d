"The launchpad as a person meets it: a real Slurm, JupyterLab, Chromium; light and dark, wide and narrow, by mouse and by keyboard."
import json, os
from pathlib import Path

import pytest

import dtnb
from conftest import wait_until
from dtnb.launchers.slurm import read_record
from lab import CHROMIUM, DARK, LIGHT, Lab, Page
from slurm import Cluster
from slurm.cluster import missing
from test_browser import outputs, write_notebook

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"), pytest.mark.skipif(bool(missing()), reason=f"no Slurm here: {missing()}")]

TRAIN = """import dtnb
scale = 2.0
def train(epochs, lr=1e-3):
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    for epoch in dtnb.track(range(epochs), desc="epoch"):
        x = torch.ones(1) * scale
        dist.all_reduce(x)
        dtnb.log(loss=scale / (epoch + 1))
        print("epoch", epoch, flush=True)
        time.sleep(.1)
dtnb.launchpad(train, 3000, lr=3e-4)"""


@pytest.fixture
def cluster(monkeypatch):
    with Cluster(conf=dict(EnforcePartLimits="ALL")) as c:
        monkeypatch.setenv("SLURM_CONF", c.env["SLURM_CONF"])
        monkeypatch.setenv("DTNB_SQUEUE_SECONDS", ".5")
        yield c


@pytest.fixture
def lab(tmp_path, home, cluster):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    with Lab(folder, tmp_path) as lab: yield lab


def queue(cluster, what="%i"): return cluster.run("squeue", "-h", "-o", what).stdout.split()
def says(p, text, seconds=30): p.page.locator(".dtnb-pad").get_by_text(text).first.wait_for(timeout=1000 * seconds)
def press(p, name): p.page.locator(".dtnb-pad").get_by_role("button", name=name, exact=True).first.click()


def tour(lab, cluster, shots):
    "From the form to lanes on two nodes and a cancel; a restart of the kernel; a clone; the table that stays"
    nb = lab.folder / "launchpad.ipynb"
    write_notebook(nb, TRAIN, "import dtnb\ndtnb.launchpad()")
    with Page(lab, 1400, 1250) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.page.locator(".dtnb-pad option", has_text="main (default): 2 nodes, 2 GPUs each, up to 1 day").wait_for(state="attached", timeout=60_000)
        says(p, "up to 2, 2 idle now")
        field = lambda name: p.page.locator(".dtnb-pad").get_by_label(name, exact=True)
        field("Time limit").fill("3-0")
        says(p, "this partition has at most 1 day")
        says(p, "Requested time limit is invalid (missing or exceeds some limit)")   # Slurm's own words
        p.shot(shots / "launchpad-refused.png")
        assert field("Time limit").get_attribute("aria-invalid") == "true" and p.page.locator(".dtnb-submit").get_attribute("aria-disabled") == "true"
        held = cluster.submit("sleep 600", "--output=/dev/null", "-N2", "--exclusive")
        field("Time limit").fill("10")
        field("Nodes").fill("2")
        field("Ranks per node").fill("2")
        says(p, "to start at")
        assert p.page.locator(".dtnb-script .dtnb-new").all_inner_texts() == ["#SBATCH --nodes=2\n", "#SBATCH --time=10\n"]
        p.page.locator(".dtnb-submit").dblclick()
        says(p, "waits for resources")
        says(p, "it is the next one")
        p.shot(shots / "launchpad-pending.png")
        cluster.run("scancel", held)
        p.page.wait_for_function("() => [...document.querySelectorAll('.dtnb-card .dtnb-row')].filter(r => /node[12][^]*running[^]*\\d+\\/3,000/.test(r.innerText)).length === 4", timeout=90_000)
        lanes = p.page.locator(".dtnb-card .dtnb-row").first
        before = lanes.inner_text()
        p.page.wait_for_function("before => document.querySelector('.dtnb-card .dtnb-row').innerText !== before", arg=before, timeout=30_000)
        assert "epoch" in p.page.locator(".dtnb-log").inner_text()
        p.shot(shots / "launchpad-light.png")
        p.theme(DARK)
        p.page.get_by_role("button", name="Cluster", exact=True).click()
        says(p, "partitions")
        p.shot(shots / "launchpad-dark.png")
        ink = p.page.evaluate("""() => ['.dtnb-pad', '.dtnb-pad .dtnb-button', '.dtnb-pad .dtnb-table td'].map(s => getComputedStyle(document.querySelector(s)).color.match(/[\\d.]+/g).slice(0, 3).map(Number))""")
        assert all(sum(rgb) > 3 * 150 for rgb in ink), f"dark text in the dark: {ink}"
        p.theme(LIGHT)
        job, = dtnb.jobs()
        assert queue(cluster) == [read_record(job.paths)["id"]], "one click, or two, are one job"

        p.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        p.wait_idle()
        says(p, "Its kernel has gone or restarted")
        assert job.state == "running"
        p.run_cell(1)
        again = p.page.locator(".dtnb-pad:not(.dtnb-gone)")
        again.locator(f"[data-job='{job.id}'] > .dtnb-head .dtnb-word", has_text="running").wait_for(timeout=60_000)
        assert len(dtnb.jobs()) == 1 and queue(cluster) == [read_record(job.paths)["id"]], "a restart submits nothing"
        again.get_by_role("button", name="Clone and edit").click()
        again.get_by_label("Nodes", exact=True).fill("1")
        assert again.get_by_label("Time limit", exact=True).input_value() == "10"
        again.locator(".dtnb-new", has_text="--time=10").wait_for(timeout=20_000)
        again.get_by_text("to start at").wait_for(timeout=20_000)
        again.get_by_role("button", name="Ranks and logs").click()
        p.page.wait_for_function("() => [...document.querySelectorAll('.dtnb-pad:not(.dtnb-gone) .dtnb-card .dtnb-row')].filter(r => /node[12]/.test(r.innerText)).length === 4", timeout=30_000)
        p.page.wait_for_timeout(400)
        again.screenshot(path=str(shots / "launchpad.png"))
        p.page.set_viewport_size(dict(width=760, height=1250))
        p.shot(shots / "launchpad-narrow.png")
        p.page.set_viewport_size(dict(width=1400, height=1250))
        again.locator(".dtnb-submit").click()
        wait_until(lambda: len(dtnb.jobs()) == 2, what="the clone")
        card = again.locator(f"[data-job='{job.id}']")
        card.get_by_role("button", name="Cancel", exact=True).click()
        card.get_by_role("button", name="Really cancel?").click()
        card.locator("> .dtnb-head .dtnb-word", has_text="cancelled").wait_for(timeout=60_000)
        clone = next(j for j in dtnb.jobs() if j.id != job.id)
        assert (clone.spec.num_nodes, clone.spec.options["time"], job.state) == (1, "10", "cancelled")
        clone.cancel()
        again.locator(f"[data-job='{clone.id}'] > .dtnb-head .dtnb-word", has_text="cancelled").wait_for(timeout=60_000)
        again.get_by_role("button", name="Close", exact=True).click()
        p.page.locator(".jp-RenderedHTML", has_text="closed at").wait_for(timeout=30_000)
        p.shot(shots / "launchpad-closed.png")
        p.save()
        assert p.errors == []
    return nb, job


def test_from_a_form_to_two_nodes(lab, cluster, tmp_path):
    nb, job = tour(lab, cluster, Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots"))
    last = outputs(nb)[-1]["data"]
    assert set(last) == {"text/html", "text/plain"} and "<script" not in "".join(last["text/html"])
    assert job.id in "".join(last["text/plain"]) and "cancelled" in "".join(last["text/html"])


def test_by_keyboard_alone(lab, cluster):
    "Tab, arrows, Enter: no key reaches the notebook's own shortcuts"
    nb = lab.folder / "keys.ipynb"
    write_notebook(nb, "import dtnb\ndef wait():\n    import time\n    time.sleep(600)\ndtnb.launchpad(wait)")
    with Page(lab) as p:
        p.open(nb.name)
        p.run_cell(0)
        says(p, "up to 2, 2 idle now", 60)
        key, at = p.page.keyboard.press, lambda: p.page.evaluate("() => { const e = document.activeElement; return e.closest('.dtnb-pad') ? e.labels?.[0]?.textContent || e.ariaLabel || e.textContent : '' }")
        def to(name):
            for _ in range(60):
                if at() == name: return
                key("Tab")
            raise AssertionError(f"no Tab leads to {name}")
        to("Slurm")
        key("ArrowLeft")
        says(p, "What runs")
        assert at() == "Local"
        key("ArrowRight")
        says(p, "Batch script")
        to("Nodes")
        p.page.keyboard.type("2")
        to("More options")
        p.page.keyboard.type("hold")
        says(p, "#SBATCH --hold")
        says(p, "Slurm: ")
        to("Submit")
        key("Enter")
        says(p, "it is held: scontrol release")
        job, = dtnb.jobs()
        assert at() == "New job like it", "the focus is not lost with the button"
        to("Cancel")
        key("Enter")
        key("Enter")
        p.page.locator(".dtnb-card > .dtnb-head .dtnb-word", has_text="cancelled").wait_for(timeout=60_000)
        assert job.state == "cancelled" and job.spec.num_nodes == 2
        assert at() and p.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length") == 1, "no key made a cell"
        assert p.errors == []
