"The quick start as a person meets it: JupyterLab, Chromium, both themes, saved, opened again without a kernel."
import json, os, shutil
from pathlib import Path

import pytest

import dtnb
from lab import CHROMIUM, DARK, LIGHT, Lab, Page

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


@pytest.fixture
def lab(tmp_path, home):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    with Lab(folder, tmp_path) as lab: yield lab


def write_notebook(path, *sources):
    cells = [dict(cell_type="code", id=f"cell-{i}", metadata={}, execution_count=None, outputs=[], source=s) for i, s in enumerate(sources)]
    path.write_text(json.dumps(dict(cells=cells, metadata=dict(kernelspec=dict(name="python3", display_name="Python 3", language="python")), nbformat=4, nbformat_minor=5)))


def outputs(path): return [o for c in json.loads(path.read_text())["cells"] for o in c.get("outputs", ())]


def quick_start(lab, shots):
    "Run the quick start; returns the path of the saved notebook"
    nb = lab.folder / "01_quickstart.ipynb"
    shutil.copy(ROOT / "nbs" / "course" / nb.name, nb)
    with Page(lab) as p:
        p.open(nb.name)
        p.command("notebook:clear-all-cell-outputs")
        p.start("notebook:run-all-cells")
        lanes = p.page.locator(".dtnb-progress").first
        lanes.wait_for(timeout=120_000)
        p.page.wait_for_function("() => /\\d+\\/\\d+/.test(document.querySelector('.dtnb-progress')?.innerText ?? '')", timeout=120_000)
        first = lanes.inner_text()
        p.page.wait_for_function("before => document.querySelector('.dtnb-progress') === null || document.querySelector('.dtnb-progress').innerText !== before", arg=first, timeout=60_000)
        lanes.scroll_into_view_if_needed()
        p.shot(shots / "lanes-light.png")
        p.theme(DARK)
        p.shot(shots / "lanes-dark.png")
        p.theme(LIGHT)
        p.wait_done()
        p.save()
        assert p.errors == []
    return nb


def test_quick_start(lab, tmp_path):
    nb = quick_start(lab, Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots"))
    saved = outputs(nb)
    assert not [o for o in saved if o["output_type"] == "error"]
    mimes = {m for o in saved for m in o.get("data", ())}
    assert "text/html" in mimes and "application/vnd.jupyter.widget-view+json" not in mimes
    pages = ["".join(o["data"]["text/html"]) for o in saved if "text/html" in o.get("data", ())]
    assert any("train" in h and "100%" in h for h in pages) and not any("<script" in h for h in pages)
    state = json.loads(nb.read_text())["metadata"].get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {})
    assert not state.get("state"), "widget state was saved"
    with Page(lab) as p:                                               # again, without a kernel
        p.open(nb.name, kernel=False)
        p.command("kernelmenu:shutdown")
        p.page.reload()
        p.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0", timeout=90_000)
        p.page.locator(".jp-OutputArea-output:has-text('100%')").first.wait_for(timeout=30_000, state="attached")
        assert p.page.get_by_text("model not found").count() == 0


def test_kernel_restart_and_attach(lab):
    "A restarted kernel watches the running job from its start"
    nb = lab.folder / "restart.ipynb"
    write_notebook(nb, "import dtnb\ndef train():\n    import time\n    for i in dtnb.track(range(300), desc='step'): time.sleep(.05)\n    return 'kept'\nprint(dtnb.launch(train, on=dtnb.Local(nproc=2)).id)",
                   "import dtnb\njob = dtnb.jobs()[-1]\njob = dtnb.attach(job.id)\njob.watch()", "print(job.results())")
    with Page(lab) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.wait_done([0])
        p.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        p.wait_idle()
        p.run_cell(1)
        p.page.locator(".dtnb-progress").first.wait_for(timeout=60_000)
        p.page.wait_for_function("() => /\\d+\\/300/.test(document.querySelector('.dtnb-progress')?.innerText ?? '')", timeout=60_000)
        p.run_cell(2)
        p.wait_done([2])
        p.save()
    assert any("{0: 'kept', 1: 'kept'}" in "".join(o.get("text", "")) for o in outputs(nb))


def test_cancel_button(lab):
    nb = lab.folder / "cancel.ipynb"
    write_notebook(nb, "import dtnb\ndef wait():\n    import time\n    time.sleep(600)\njob = dtnb.launch(wait, on=dtnb.Local(nproc=2))\njob.watch()", "print(job.wait(60))")
    with Page(lab) as p:
        p.open(nb.name)
        p.run_cell(0)
        p.wait_done([0])
        p.page.wait_for_function("() => /running/.test(document.querySelector('.dtnb-progress')?.innerText ?? '')", timeout=60_000)
        p.page.get_by_role("button", name="Cancel", exact=True).click()
        p.page.get_by_role("button", name="Really cancel?").click()
        p.page.get_by_text("cancelled").first.wait_for(timeout=30_000)
        p.run_cell(1)
        p.wait_done([1])
        p.save()
    assert any("cancelled" in "".join(o.get("text", "")) for o in outputs(nb))
