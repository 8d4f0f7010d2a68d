"A real JupyterLab, private to one test, and a real Chromium that looks at it."
import contextlib, json, os, secrets, shutil, subprocess, sys, time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


class Lab:
    "JupyterLab on `folder`, on a free loopback port, with settings of its own below `private`"
    def __init__(self, folder, private): self.folder, self.private = Path(folder), Path(private)

    def __enter__(self):
        self.token = secrets.token_hex(16)
        settings = self.private / "lab" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(dict(fetchNews="false", checkForUpdates=False)))
        env = os.environ | {f"JUPYTER_{k}_DIR": str(self.private / k.lower()) for k in ("CONFIG", "DATA", "RUNTIME")}
        env |= dict(JUPYTERLAB_SETTINGS_DIR=str(self.private / "lab"), JUPYTERLAB_WORKSPACES_DIR=str(self.private / "workspaces"), IPYTHONDIR=str(self.private / "ipython"), JUPYTER_TOKEN=self.token)
        self.log = open(self.private / "lab.log", "wb")
        self.process = subprocess.Popen([sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={self.folder}",
                                         "--LabApp.expose_app_in_browser=True", "--ServerApp.terminals_enabled=False"], env=env, stdout=self.log, stderr=self.log)
        self.url = self._wait_url()
        return self

    def _wait_url(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for p in (self.private / "runtime").glob("jpserver-*.json"):
                with contextlib.suppress(ValueError): return json.loads(p.read_text())["url"]
            assert self.process.poll() is None, (self.private / "lab.log").read_text()
            time.sleep(.2)
        raise TimeoutError((self.private / "lab.log").read_text())

    def __exit__(self, *exc):
        self.process.terminate()
        try: self.process.wait(20)
        except subprocess.TimeoutExpired: self.process.kill()
        self.log.close()


class Page:
    "A notebook open in a browser"
    def __init__(self, lab, width=1400, height=1000): self.lab, self.size = lab, dict(width=width, height=height)

    def __enter__(self):
        from playwright.sync_api import sync_playwright
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        self.page = self.browser.new_context(viewport=self.size).new_page()
        self.errors = []
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        return self

    def __exit__(self, *exc):
        self.browser.close()
        self.playwright.stop()

    def open(self, name, kernel=True):
        "Open a notebook and wait until it is drawn and, with `kernel`, its kernel is idle"
        self.page.goto(f"{self.lab.url}lab/tree/{name}?token={self.lab.token}&reset", timeout=90_000)
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget?.content?.model?.cells?.length > 0", timeout=90_000)
        if kernel: self.wait_idle()

    def wait_idle(self, seconds=90):
        self.page.wait_for_function("""() => { const s = window.jupyterapp.shell.currentWidget.sessionContext;
            return s.session?.kernel?.connectionStatus === 'connected' && s.session.kernel.status === 'idle' }""", timeout=seconds * 1000)

    def wait_done(self, cells=None, seconds=180):
        "Until these cells (default: all code cells) have run; a kernel may say idle in between"
        self.page.wait_for_function("""([which]) => { const n = window.jupyterapp.shell.currentWidget.content;
            return n.widgets.filter((c, i) => c.model.type === 'code' && (!which || which.includes(i)))
                            .every(c => c.model.executionCount != null && c.model.executionState !== 'running') }""", arg=[cells], timeout=seconds * 1000)

    def run_cell(self, i):
        "Run one cell; does not wait"
        self.page.evaluate("i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; return null }", i)
        self.start("notebook:run-cell")

    def command(self, name, **args): return self.page.evaluate("([n, a]) => window.jupyterapp.commands.execute(n, a).then(() => null)", [name, args])
    def start(self, name, **args): self.page.evaluate("([n, a]) => { window.jupyterapp.commands.execute(n, a); return null }", [name, args])
    def theme(self, name): self.command("apputils:change-theme", theme=name)
    def save(self): self.command("docmanager:save")
    def shot(self, path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.page.wait_for_timeout(400)
        self.page.screenshot(path=str(path))

    def show(self, text_or_selector, by_text=False):
        "Scroll something into view; returns its locator"
        where = self.page.get_by_text(text_or_selector).first if by_text else self.page.locator(text_or_selector).first
        where.scroll_into_view_if_needed(timeout=30_000)
        return where
