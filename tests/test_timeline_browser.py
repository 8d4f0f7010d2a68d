"The timeline as a person meets it: in JupyterLab, live; saved, without a kernel; as a file of its own. Real Chromium."
import json, os
from pathlib import Path

import numpy as np
import pytest

from dtnb.trace.columns import Columns, Name, Track, pack
from dtnb.trace.picture import covered, foremost
from lab import CHROMIUM, DARK, FLAGS, LIGHT, Page
from test_browser import lab, outputs, write_notebook

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
MS = 1_000_000
NAMES = [Name(*n.split("|")) for n in ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__|user_annotation", "DistributedDataParallel.forward|user_annotation", "autograd::engine::evaluate_function: AddmmBackward0|cpu_op",
                                       "c10d::allreduce_|cpu_op", "Optimizer.step#AdamW.step|user_annotation", "gloo:all_reduce|user_annotation", "aten::linear|cpu_op", "aten::addmm|cpu_op", "aten::gelu|cpu_op", "aten::layer_norm|cpu_op")]


def make_trace(rank, ranks=2, steps=6, load=4, ops=400):
    "A rank of a training run whose answer is known: a step is 100 ms; rank 1 loads 35 ms longer, the others wait for its all_reduce"
    draw, top, inner, work = np.random.default_rng(rank), [], [], []
    for k in range(steps):
        t = 100 * MS * k
        top += [(t, load * MS, 0), (t + load * MS, 25 * MS, 1), (t + (load + 26) * MS, 20 * MS, 2), (t + (load + 46) * MS, MS // 2, 3), (t + 90 * MS, 8 * MS, 4)]
        work.append((t + (load + 46) * MS + 200_000, 89 * MS - (load + 46) * MS, 5))
        for start, length, name in top[-4:-2]:
            gaps = draw.integers(200, length // ops, ops)
            begin = start + np.cumsum(gaps) * length // (2 * gaps.sum())
            lasts = np.minimum(draw.integers(100, length // ops, ops), np.diff(np.append(begin, start + length)))
            inner += [(int(a), int(d), int(n)) for a, d, n in zip(begin, lasts, draw.integers(6, len(NAMES), ops))]
    every = top + inner + work
    ts, dur, name = (np.array([e[i] for e in every]) for i in range(3))
    meta = dict(rank=rank, world_size=ranks, host="node-1", run="r", backend="gloo", steps=[[10 + k, 100 * MS * k, 99 * MS] for k in range(steps)], steps_by="marks", source=f"rank{rank}.json.gz")
    return Columns(ts, dur, name, np.where(name == 7, 1, 0), NAMES, ["", '{"Input Dims":[[32,128],[128,512]]}'], [Track("main", "main"), Track("pt_gloo_runloop", "comm")],
                   [(0, 0, len(top)), (0, 1, len(inner)), (1, 0, len(work))], 1_790_857_026_000_000_000 + 1000 * rank, {"cpu": ([0, 50 * MS, 300 * MS], [1 << 20, 9 << 20, 3 << 20])}, meta)

def write_traces(folder):
    traces = [make_trace(0), make_trace(1, load=39)]
    folder.mkdir(parents=True, exist_ok=True)
    for c in traces: (folder / f"rank{c.meta['rank']}.dtt").write_bytes(pack(c))
    return traces


TL = "document.querySelector('.dtl').timeline"

def still(p):
    "Until the view has come where it is going"
    p.page.wait_for_function(f"() => {TL}.now.a === {TL}.aim.a && {TL}.now.b === {TL}.aim.b")

def look(p, a, b):
    "Draw `a..b` and return the pixels: (Uint8 RGB of a line of each row, a, b)"
    return p.evaluate(f"""([a, b]) => {{ const t = {TL}, c = document.querySelector('.dtl-base'), d = c.width / c.clientWidth; t.at(a, b);
        return {{ a: t.now.a, b: t.now.b, bg: t.ranks[0].look.bg, rows: t.lanes().filter(l => l.y > 0 && l.y + l.h < c.clientHeight).map(l => ({{ ...l, off: t.ranks[l.r].off, color: [...t.ranks[l.r].look.color],
            px: [...new Uint32Array(c.getContext('2d').getImageData(0, Math.round((l.y + 1) * d), c.width, 1).data.buffer)] }})) }} }}""", [a, b])

def rgb(values): return np.asarray(values, np.uint32)[:, None] >> np.array([0, 8, 16], np.uint32) & 255

def wrong_pixels(seen, traces):
    "How many pixels of all rows differ from Python's exact coverage, and how many there are"
    bad = n = 0
    for row in seen["rows"]:
        c, bg, width = traces[row["r"]], rgb([seen["bg"]]), len(row["px"])
        edges = np.linspace(seen["a"], seen["b"], width + 1) - row["off"]
        at = c.row(row["row"])
        part, name = covered(c, at, edges) / np.diff(edges), foremost(c, at, edges)
        strength = np.where(part > 1e-9, .2 + .8 * np.minimum(part, 1), 0)[:, None]
        want = strength * rgb(np.array(row["color"], np.uint32)[np.maximum(name, 0)]) + (1 - strength) * bg
        first = (np.searchsorted(edges, c.ts[at], "right") - 1).clip(0, width - 1)                 # a wide event begins with a lighter pixel
        differs = np.abs(want - rgb(row["px"])).max(1) > 4
        for k in (0, 1): differs[np.minimum(first + k, width - 1)] &= part[np.minimum(first + k, width - 1)] < .9999
        lines = (np.array([[start, start + dur] for _, start, dur in c.meta["steps"]]).ravel() - edges[0]) / (edges[1] - edges[0])
        for k in (-1, 0, 1): differs[np.rint(lines).astype(int).clip(1, width - 2) + k] = False      # the lines of the steps
        bad, n = bad + int(differs.sum()), n + width
    return bad, n


def open_timeline(p):
    p.page.get_by_role("button", name="Open timeline").first.click()
    p.page.locator(".dtl-over").first.wait_for(timeout=60_000)
    p.page.wait_for_function(f"() => !!{TL}", timeout=20_000)

def live(p, traces, shots):
    "What a person does with an open timeline"
    page, over = p.page, p.page.locator(".dtl-over").first
    assert "Rank 1 is last in 6 of 6 collectives" in page.locator(".dtl-sentence").inner_text() and "data loading" in page.locator(".dtl-sentence").inner_text()
    for a, b in ((-5 * MS, 605 * MS), (100 * MS, 140 * MS), (110 * MS, 112 * MS)):
        bad, n = wrong_pixels(look(page, a, b), traces)
        assert n > 3000 and bad <= .002 * n, f"{bad} of {n} pixels from {a} to {b}"
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    look(page, 0, 600 * MS)
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 40)                                       # the wheel, with Ctrl: about the pointer
    page.keyboard.down("Control")
    for _ in range(4): page.mouse.wheel(0, -120)
    page.keyboard.up("Control")
    still(p)
    a, b = page.evaluate(f"() => [{TL}.now.a, {TL}.now.b]")
    assert b - a < 200 * MS and abs(a + (b - a) / 4 - 150 * MS) < 3 * MS
    page.mouse.move(box["x"] + 300, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
    page.mouse.up()
    moved = page.evaluate(f"() => {TL}.now.a")
    assert abs(moved - a - 100 * (b - a) / box["width"]) < 1 * MS
    look(page, 0, 100 * MS)
    x = lambda ms: box["x"] + ms / 100 * box["width"]
    page.mouse.move(x(10), box["y"] + 32)                                                             # hover: the forward of rank 0
    page.locator(".dtl-tip").wait_for()
    tip = page.locator(".dtl-tip").inner_text()
    assert "DistributedDataParallel.forward" in tip and "25.0 ms" in tip and "4.00 ms into step 10" in tip and "rank 0 · main" in tip
    p.shot(shots / "timeline-hover.png")
    page.mouse.click(x(70), box["y"] + page.evaluate(f"() => {TL}.lanes().find(l => l.r === 0 && l.row === 2).y + 6"))   # gloo's work on rank 0: a collective
    said = page.locator(".dtl-together").inner_text()
    assert "all_reduce 1 of 6: rank 1 came last, 35.0 ms after the first" in said and "+35.0 ms" in said
    assert "rank 1 came last" in page.locator(".dtl-live").inner_text()
    page.get_by_role("button", name="Show this collective on all ranks").click()
    still(p)
    p.shot(shots / "timeline-light.png")
    find = page.locator(".dtl-find")
    find.fill("ADDMM")
    n = sum(int(np.isin(c.name, [i for i, k in enumerate(NAMES) if "addmm" in k.text.lower()]).sum()) for c in traces)
    page.get_by_text(f"{n:,}", exact=True).wait_for()
    nth = []
    for key in ("Enter", "Enter", "Shift+Enter"):
        find.press(key)
        page.wait_for_function("before => / of /.test(document.querySelector('.dtl-found').textContent) && document.querySelector('.dtl-found').textContent !== before", arg=f"{nth[-1]:,} of {n:,}" if nth else "")
        nth.append(int(page.locator(".dtl-found").inner_text().split(" of ")[0].replace(",", "")))
    assert nth == [nth[0], nth[0] + 1, nth[0]] and "addmm" in page.locator(".dtl-detail-head b").inner_text().lower()
    find.press("Escape")
    ruler = page.locator(".dtl-ruler").bounding_box()                                                 # a range: what is in it
    look(page, 0, 100 * MS)
    page.mouse.move(x(0), ruler["y"] + 28)
    page.mouse.down()
    page.mouse.move(x(50), ruler["y"] + 28, steps=4)
    page.mouse.up()
    rows = page.locator(".dtl-range-row").all_inner_texts()
    assert len(rows) == 2 and "DataLoader" in rows[1] and "39.0 ms" in rows[1]
    by_keys(p, over)

def by_keys(p, over):
    "All of it without a mouse"
    page = p.page
    page.mouse.move(2, 2)
    over.press("Escape")
    over.press("f")
    still(p)
    before = page.evaluate(f"() => {TL}.now.b - {TL}.now.a")
    for _ in range(3): over.press("w")
    over.press("d")
    still(p)
    assert page.evaluate(f"() => {TL}.now.b - {TL}.now.a") < before / 4
    over.press("]")
    over.press("ArrowRight")
    first = page.locator(".dtl-detail-head b").inner_text()
    over.press("ArrowRight")
    over.press("ArrowDown")
    assert "aten::" in page.locator(".dtl-detail-head b").inner_text() or first != page.locator(".dtl-detail-head b").inner_text()
    assert page.locator(".dtl-live").inner_text()
    over.press("Enter")
    still(p)
    assert page.evaluate(f"() => {TL}.now.b - {TL}.now.a") < 100 * MS
    page.locator(".dtl-rank").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".dtl-rank").first.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Enter")
    page.locator(".dtl-heat").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    still(p)
    a = page.evaluate(f"() => {TL}.now.a")
    assert abs(a - 98 * MS) < 3 * MS and "rank 1, step 11" in page.locator(".dtl-heats").inner_text()

def kept(page):
    "The twin, and only the twin, once"
    page.get_by_text("Rank 1 is last in 6 of 6 collectives").first.wait_for(timeout=60_000)
    page.wait_for_function("() => [...document.querySelectorAll('img')].filter(i => i.src.startsWith('data:image/png') && i.naturalWidth === 1600).length === 1", timeout=30_000)
    assert page.get_by_text("model not found").count() == 0 and page.locator(".dtl").count() == 0


SLOWLY = """import time
still = dtnb.widgets.timeline._still
def slowly(t, where, summing):
    with summing: time.sleep(3)
    yield from still(t, where, summing)
dtnb.widgets.timeline._still = slowly"""

def test_timeline_in_a_notebook(lab, tmp_path):
    shots, traces, nb = Path(os.environ.get("DTNB_SHOTS") or tmp_path / "shots"), write_traces(lab.folder / "traces"), lab.folder / "timeline.ipynb"
    write_notebook(nb, "import dtnb.widgets.timeline\nfrom dtnb.trace.timeline import open_trace\ntimeline = open_trace('traces')\ntimeline",
                   f"dtnb.widgets.timeline.LIVE, dtnb.widgets.timeline.RANGE = 1000, 800\n{SLOWLY}\ntimeline.at('t=100000000-600000000')", "timeline.save('page.html').name, len(dtnb.widgets.timeline._SHOWN[-1].sent)")
    with Page(lab, height=1300) as p:
        p.open(nb.name)
        p.run_cell(0)
        kept_at = p.page.get_by_role("button", name="Open timeline")
        kept_at.wait_for(timeout=60_000)
        kept(p.page)
        p.shot(shots / "timeline-twin.png")
        open_timeline(p)
        live(p, traces, shots)
        p.theme(DARK)
        p.page.wait_for_function("() => { const c = document.querySelector('.dtl-base'); return Math.max(...c.getContext('2d').getImageData(c.width - 2, c.height - 2, 1, 1).data.slice(0, 3)) < 60 }", timeout=20_000)
        p.shot(shots / "timeline-dark.png")
        p.theme(LIGHT)
        p.page.get_by_role("button", name="Close the timeline").click()
        kept(p.page)
        p.run_cell(1)                                                                                 # too much for the browser at once: bins, then ranges
        over = p.page.locator(".dtl-over").first
        over.wait_for(timeout=60_000)
        p.page.wait_for_function(f"() => {TL}.scene.bins === 4096 && {TL}.now.a === 1e8", timeout=20_000)
        bad, n = wrong_pixels(look(p.page, -6 * MS, 604 * MS), traces)
        assert bad < n / 3                                                                            # bins are a little coarser than these pixels
        look(p.page, 100 * MS, 104 * MS)
        p.page.wait_for_function(f"() => {TL}.ranks[0].trace?.n > 0 && {TL}.ranks[0].trace.n < 500", timeout=20_000)
        bad, n = wrong_pixels(look(p.page, 100 * MS, 104 * MS), traces)
        assert bad <= .002 * n
        p.page.locator(".dtl-find").fill("gelu")
        p.page.locator(".dtl-find").press("Enter")
        p.page.wait_for_function("() => / of /.test(document.querySelector('.dtl-found').textContent)", timeout=20_000)
        assert "aten::gelu" in p.page.locator(".dtl-details").inner_text()
        p.run_cell(2)
        p.wait_done([0, 2])
        p.save()
        p.page.reload()                                                                               # the kernel lives: the first twin opens again
        p.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0", timeout=90_000)
        p.page.get_by_role("button", name="Open timeline").first.wait_for(timeout=60_000)
        assert p.errors == []
        p.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        p.page.get_by_text("its kernel has gone").first.wait_for(timeout=60_000)
        assert p.page.get_by_role("button", name="Open timeline").first.is_disabled()
    saved = outputs(nb)
    assert saved[-1]["data"]["text/plain"] == ["('page.html', 1)"], "the events came before the twin"
    assert {m for o in saved for m in o.get("data", ())} == {"text/html", "image/png", "text/plain"} and not json.loads(nb.read_text())["metadata"].get("widgets")
    assert len(json.dumps(saved[:2])) < 200_000
    without_kernel(lab, nb, shots)

def without_kernel(lab, nb, shots):
    "Opened trusted and untrusted, and as nbconvert's HTML"
    cells = json.loads(nb.read_text())
    cells["cells"] = cells["cells"][:1]
    for name in ("trusted", "untrusted"):
        (lab.folder / f"{name}.ipynb").write_text(json.dumps(cells))
    cells["cells"][0]["outputs"][0]["data"]["text/html"] = "".join(cells["cells"][0]["outputs"][0]["data"]["text/html"]).replace("</div></div>", "</div><i></i></div>")
    (lab.folder / "untrusted.ipynb").write_text(json.dumps(cells))                                    # not what this person's kernel made
    import nbformat
    from nbconvert import HTMLExporter
    from nbformat.sign import NotebookNotary
    trusted = nbformat.read(lab.folder / "trusted.ipynb", 4)
    NotebookNotary(data_dir=str(lab.private / "data")).sign(trusted)                                  # what `jupyter trust` does
    (lab.folder / "trusted.html").write_text(HTMLExporter().from_notebook_node(trusted)[0])
    with Page(lab, height=1000) as p:
        for name in ("trusted", "untrusted"):
            p.open(f"{name}.ipynb", kernel=False)
            kept(p.page)
            assert p.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets[0].model.trusted") == (name == "trusted")
            p.shot(shots / f"timeline-{name}.png")
        p.page.goto(f"file://{lab.folder}/trusted.html")
        kept(p.page)
        saved_page(p, lab.folder / "page.html", shots)
        assert p.errors == []

def saved_page(p, file, shots):
    "The file of its own, without a server; a link to a moment"
    p.page.goto(f"file://{file}")
    p.page.wait_for_function("() => window.timeline", timeout=60_000)
    assert "Rank 1 is last" in p.page.locator(".dtl-sentence").inner_text()
    p.page.evaluate("() => timeline.at(100e6, 150e6)")
    p.page.locator(".dtl-over").press("ArrowRight")
    picked = p.page.locator(".dtl-detail-head b").inner_text()
    link = f"file://{file}#{p.page.evaluate('() => timeline.moment()')}"
    p.page.goto("about:blank")
    p.page.goto(link)
    p.page.wait_for_function("() => window.timeline && timeline.now.a === 100e6 && timeline.now.b === 150e6", timeout=30_000)
    assert p.page.locator(".dtl-detail-head b").inner_text() == picked
    p.page.set_viewport_size(dict(width=520, height=900))
    p.page.wait_for_function("() => document.querySelector('.dtl-base').clientWidth < 400", timeout=10_000)
    assert p.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    p.shot(shots / "timeline-narrow.png")
