"Sessions as a person meets them: JupyterLab, Chromium; lanes while a cell blocks, folded output afterwards, completion from a rank."
import os, shutil
from pathlib import Path

import pytest

from conftest import SLOW
from lab import CHROMIUM, DARK, LIGHT, Page
from test_browser import ROOT, lab, outputs, write_notebook

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")

TRAIN = """%%distributed --name train
import time, dtnb
for step in dtnb.track(range(60), desc='step'):
    time.sleep(.08)
    dtnb.log(loss=1 / (1 + step))
    if step % 20 == 0: print('at step', step)
print('rank', rank, 'is done')"""
FIGURE = """%%distributed
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(3, 2))
ax.plot([1, 3 - rank, 2])
plt.show()
sum(range(10))"""
SLIDER = """%%distributed
import ipywidgets
slider = ipywidgets.IntSlider(value=3 + rank, description=f'rank {rank}')
slider"""


def text_of(p, i): return p.page.evaluate("i => window.jupyterapp.shell.currentWidget.content.widgets[i].outputArea.node.innerText", i)

def until(p, i, words, seconds=60):
    p.page.wait_for_function("([i, w]) => window.jupyterapp.shell.currentWidget.content.widgets[i].outputArea.node.innerText.includes(w)", arg=[i, words], timeout=seconds * 1000)


def tour(lab, shots):
    "Everything a notebook user does with a session; returns the path of the saved notebook"
    nb = lab.folder / "session.ipynb"
    write_notebook(nb, "%load_ext dtnb\n%dist start -n 2", TRAIN, FIGURE, SLIDER, "%%distributed\nprint([slider.value])",
                   "%%distributed\nimport torch\nlosses = torch.ones(2)\nif rank == 1:\n    losses[5]\nprint('rank 0 is fine')",
                   "%%distributed --detach --name background\nfor i in dtnb.track(range(30)): time.sleep(.1)\nprint('detached', rank)",
                   "%%distributed\nimport threading\nthreading.Thread(target=lambda: (time.sleep(2), print('late from', rank))).start()\nprint('now')",
                   "%dist auto on", "rank * 10", "%%local\nprint('here', 'rank' in globals())", "%dist auto off", "%%distributed\nlos", "%dist who")
    with Page(lab, height=1300) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.wait_done([0])
        p.run_cell(1)
        p.page.wait_for_function("() => /[1-9]\\d*\\/60/.test(document.querySelector('.dtnb-progress')?.innerText ?? '')", timeout=60_000)
        first = p.page.locator(".dtnb-progress").first.inner_text()
        assert "at step 0" in first
        p.page.wait_for_function("before => document.querySelector('.dtnb-progress') && document.querySelector('.dtnb-progress').innerText !== before", arg=first, timeout=20_000)   # lanes move, though the cell blocks
        p.shot(shots / "session-live.png")
        p.wait_done([1])
        until(p, 1, "ranks 0-1 │ at step 0")
        assert "rank 0    │ rank 0 is done" in text_of(p, 1) and p.page.locator(".dtnb-progress").count() == 0
        p.run_cell(2)
        p.wait_done([2])
        assert p.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets[2].outputArea.node.querySelectorAll('img').length") == 2
        assert "ranks 0-1 │ 45" in text_of(p, 2)
        p.run_cell(3)
        p.wait_done([3])
        p.page.locator(".widget-slider").nth(1).wait_for(timeout=30_000)
        handle = p.page.locator(".widget-slider .noUi-handle").nth(1)
        handle.focus()
        handle.press("ArrowRight")
        p.page.wait_for_timeout(500)
        p.run_cell(4)
        p.wait_done([4])
        assert "rank 1 │ [5]" in text_of(p, 4) and "rank 0 │ [3]" in text_of(p, 4)      # the page's slider is the rank's
        p.run_cell(5)
        p.wait_done([5])
        until(p, 5, "rank 1 of 2 failed")
        said = text_of(p, 5)
        assert said.count("IndexError") <= 3 and "line 5 of the cell" in said and "rank 0 is fine" in said
        p.shot(shots / "session-error.png")
        p.run_cell(6)
        p.wait_done([6])
        p.run_cell(8)                                                                   # the kernel is free
        p.wait_done([8])
        until(p, 6, "rank 0 │ detached 0")
        p.run_cell(11)
        p.wait_done([11])
        p.run_cell(7)
        p.wait_done([7])
        until(p, 7, "late from 1")
        for i in (8, 9, 10, 11, 13):
            p.run_cell(i)
            p.wait_done([i])
        assert "rank 1 │ 10" in text_of(p, 9) and "here False" in text_of(p, 10) and "losses" in text_of(p, 13)
        p.page.evaluate("() => { const n = window.jupyterapp.shell.currentWidget.content; n.activeCellIndex = 12; n.mode = 'edit'; n.activeCell.editor.setCursorPosition({line: 1, column: 3}); n.activeCell.editor.focus(); return null }")
        p.page.keyboard.press("Tab")
        p.page.wait_for_function("() => window.jupyterapp.shell.currentWidget.content.activeCell.editor.getLine(1) === 'losses' || /losses/.test(document.querySelector('.jp-Completer')?.innerText ?? '')", timeout=30_000)
        p.shot(shots / "session-completion.png")
        p.page.keyboard.press("Escape")
        p.theme(DARK)
        p.show(".jp-Cell:nth-of-type(2)")
        p.shot(shots / "session-dark.png")
        p.theme(LIGHT)
        p.save()
        assert p.errors == []
    return nb


@pytest.mark.parametrize("lesson", [pytest.param("02_ranks_and_collectives.ipynb", marks=pytest.mark.skipif(not SLOW, reason="half a minute: make test-all")), "03_ddp_by_hand.ipynb", "12_finding_the_slow_rank.ipynb"])
def test_lesson(lab, lesson):
    "Start to end in JupyterLab; saved, and opened again without a kernel"
    nb = lab.folder / lesson
    shutil.copy(ROOT / "nbs" / "course" / lesson, nb)
    with Page(lab) as p:
        p.open(nb.name)
        p.command("notebook:clear-all-cell-outputs")
        p.start("notebook:run-all-cells")
        p.wait_done(seconds=240)
        p.save()
        assert p.errors == []
    saved = outputs(nb)
    assert not [o for o in saved if o["output_type"] == "error"]
    assert any("ranks 0-1" in "".join(o.get("text", "")) for o in saved)
    with Page(lab) as p:
        p.open(nb.name, kernel=False)
        p.page.locator(".jp-OutputArea-output:has-text('ranks 0-1')").first.wait_for(timeout=30_000, state="attached")
        assert p.page.get_by_text("model not found").count() == 0


def test_cells_on_ranks(lab, tmp_path):
    nb = tour(lab, Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots"))
    mimes = {m for o in outputs(nb) for m in o.get("data", ())}
    assert mimes <= {"text/plain", "text/html", "image/png", "application/vnd.jupyter.widget-view+json"}   # what VS Code and Colab show, too


def test_stop_button_in_a_hang(lab, tmp_path):
    "Ranks wait for each other, and the cell blocks the kernel: the view's button frees them, and so do the notebook's interrupt and its ■, also when a rank only sleeps"
    shots = Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots")
    nb = lab.folder / "hang.ipynb"
    hang = "%%distributed --name hang\nimport torch.distributed as d\nd.recv(torch.zeros(1), src=1 - rank)"
    late = "%%distributed --name late\nimport time\nif rank == 1: time.sleep(600)\ndist.all_reduce(torch.ones(1))"
    write_notebook(nb, "%load_ext dtnb\n%dist start -n 2", hang, hang, late, "%%distributed\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
    def running(i):
        p.run_cell(i)
        p.page.wait_for_function("() => /running/.test(document.querySelector('.dtnb-progress')?.innerText ?? '')", timeout=60_000)
    with Page(lab) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.wait_done([0])
        running(1)
        p.page.get_by_role("button", name="Cancel", exact=True).click()
        p.page.get_by_role("button", name="Really cancel?").click()
        until(p, 1, "interrupted")
        assert "the ranks have a new process group" in text_of(p, 1)
        running(2)
        p.command("kernelmenu:interrupt")
        until(p, 2, "interrupted")
        running(3)
        p.shot(shots / "session-hang.png")
        p.page.locator("[data-command='notebook:interrupt-kernel']").first.click()
        until(p, 3, "interrupted")
        assert "rank 0 waited in all_reduce" in text_of(p, 3) and "the ranks have a new process group" in text_of(p, 3), text_of(p, 3)
        p.run_cell(4)
        p.wait_done([4])
        until(p, 4, "ranks 0-1 │ 2.0")
        p.shot(shots / "session-interrupted.png")


def test_kernel_restart_and_attach(lab, tmp_path):
    "The notebook's own restart: variables are there, what was printed meanwhile is shown once and in its place, and the ranks can be more"
    shots = Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots")
    nb = lab.folder / "attach.ipynb"
    write_notebook(nb, "%load_ext dtnb\n%dist start -n 2", "%%distributed\nkept = torch.ones(2) * rank", "%%distributed --detach --name counts\nimport time\nfor i in range(50):\n    print('step', i, flush=True)\n    time.sleep(.5)",
                   "%load_ext dtnb", "%dist attach", "%dist status", "%%distributed\nprint('kept', kept.tolist())", "%dist resize 3", "%%distributed\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
    def run(*cells):
        for i in cells:
            p.run_cell(i)
            p.wait_done([i])
    with Page(lab, height=1900) as p:
        p.open(nb.name)
        run(0, 1, 2)
        until(p, 2, "step 0")
        p.start("notebook:restart-kernel")
        p.page.locator(".jp-Dialog .jp-mod-accept").click()
        until(p, 2, "not followed any more")                                            # the view tells that it is an old picture
        p.wait_idle()
        run(3)
        assert "2 ranks of an earlier kernel are waiting" in text_of(p, 3)
        run(4, 5)                                                                       # though the cell still runs
        assert "2 ranks (gloo on CPU) are back" in text_of(p, 4) and "rank 0  in cell 2: line 5 of the cell" in text_of(p, 5), text_of(p, 5)
        p.shot(shots / "session-attached.png")
        run(6, 7, 8)
        until(p, 6, "rank 1 │ kept [1.0, 1.0]")
        until(p, 7, "3 ranks (gloo on CPU) ready")
        until(p, 8, "ranks 0-2 │ 3.0")
        until(p, 4, "step 49")
        said, label, steps = text_of(p, 4), "", {0: [], 1: []}
        for line in said.splitlines():
            who, bar, what = line.partition("│")
            label = who.strip() or label
            if bar and what.startswith(" step"):
                for r in steps: steps[r] += [int(what.split()[1])] * (label in ("ranks 0-1", f"rank {r}"))
        for r in steps: assert steps[r] == list(range(steps[r][0], 50)) and steps[r][0] > 0, said
        assert "step" not in text_of(p, 6) and said.count("│") == said.count("step"), said
        p.show(".jp-Cell:nth-of-type(9)")
        p.shot(shots / "session-resized.png")
        assert p.errors == []


TRAINING = """%%distributed --name train
from torch.utils.data import DataLoader, TensorDataset
class Slow(TensorDataset):
    def __getitem__(self, i): time.sleep(.02 + .02 * rank); return super().__getitem__(i)
import time, dtnb
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
sgd = torch.optim.SGD(model.parameters(), lr=.01)
for x, in dtnb.track(DataLoader(Slow(torch.randn(400, 64)), batch_size=4)):
    model(x).pow(2).mean().backward(); sgd.step(); sgd.zero_grad()"""

def test_a_trace_of_a_cell_that_runs(lab, tmp_path):
    "The lanes say where in its step a rank is; a click records the next steps of a running cell; its timeline is below the cell, and in the saved notebook"
    shots = Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots")
    nb = lab.folder / "trace.ipynb"
    write_notebook(nb, "%load_ext dtnb\n%dist start -n 2", TRAINING)
    with Page(lab, height=1300) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.wait_done([0])
        p.run_cell(1)
        p.page.wait_for_function("() => [...document.querySelectorAll('.dtnb-state')].filter(s => s.innerText.includes('data')).length == 2", timeout=60_000)
        p.shot(shots / "session-phases.png")
        p.page.locator(".dtnb-trace-button").click()
        p.page.wait_for_function("() => /trac(ing|ed) /.test(document.querySelector('.dtnb-note')?.innerText ?? '')", timeout=60_000)
        p.shot(shots / "session-tracing.png")
        until(p, 1, "traced 5 steps on 2 ranks", 120)
        p.wait_done([1])
        p.page.locator(".dtnb-timeline, [class*=dtnb-timeline-]").first.wait_for(timeout=60_000)
        p.show(".jp-Cell:nth-of-type(2)")
        p.shot(shots / "session-traced.png")
        p.page.wait_for_timeout(500)
        p.command("docmanager:save")
        assert p.errors == []
    assert any("image/png" in o.get("data", {}) for o in outputs(nb)) and not any("widget-view" in k for o in outputs(nb) for k in o.get("data", {}))
