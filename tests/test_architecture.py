"The shape of the project: floors, names, export, wheel."
import ast, json, os, subprocess, sys, zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FLOORS = {0: ["event", "job", "payload", "view", "channel", "reader", "handle", "transfer", "names", "fold", "scripts", "gpus", "trace.columns", "trace.chrome", "trace.convert", "trace.intervals", "trace.collectives", "trace.summary", "trace.findings", "trace.perfetto", "trace.timeline", "trace.clock", "trace.recordings", "trace.picture"],
          1: ["rank.report", "rank.output", "rank.adapters", "rank.worker", "rank.collectives", "processes", "rank.child", "rank.siblings", "rank.checkpoint", "rank.phases", "rank.recording", "rank.profile", "wire", "guard", "zygote"],
          2: ["launchers.launcher", "launchers.local", "launchers.squeue", "launchers.discovery", "launchers.batch", "launchers.slurm", "launchers.torchrun", "engine", "link", "healing", "cell", "session"],
          3: ["widgets.twin", "widgets.progress", "widgets.cell", "widgets.timeline", "widgets.cluster", "widgets.launchpad"],
          4: ["api", "cli", "doctor", "magic", "form", "cards", "pad"]}
FLOOR = {f"dtnb.{m}": n for n, ms in FLOORS.items() for m in ms}
HEAVY = {"torch", "IPython", "ipyparallel", "submitit", "ray", "kubernetes", "accelerate", "ipywidgets", "anywidget", "transformers", "numpy", "cloudpickle", "fastcore"}


def loaded_by(module, *more):
    code = f"import sys, json; import {module}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout))


def test_every_module_has_a_floor():
    there = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in (ROOT / "dtnb").rglob("*.py") if not p.name.startswith("_")}
    assert there == set(FLOOR)


@pytest.mark.parametrize("module", sorted(FLOOR))
def test_imports_point_down(module):
    above = {m for m in loaded_by(module) if FLOOR.get(m, -1) > FLOOR[module]}
    assert not above, f"{module} imports {above}"


@pytest.mark.parametrize("module", [m for m, f in FLOOR.items() if f <= 2])
def test_lower_floors_need_no_screen_and_no_sdk(module):
    assert not loaded_by(module) & {"IPython", "ipywidgets", "anywidget", "torch", "ipyparallel", "submitit", "ray", "kubernetes", "accelerate"}


def test_import_is_cheap():
    "What takes time to import is not imported (the milliseconds are in benchmarks/)"
    assert not loaded_by("dtnb") & HEAVY


def test_launchers_do_not_import_each_other():
    for p in (ROOT / "dtnb" / "launchers").glob("*.py"):
        others = {q.stem for q in p.parent.glob("*.py")} - {p.stem, "launcher", "squeue", "discovery", "batch", "__init__"}
        for node in ast.walk(ast.parse(p.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and (node.level or node.module.startswith("dtnb")): assert node.module.rpartition(".")[2] not in others, (p.name, node.module)


def test_public_names():
    import dtnb
    assert sorted(dtnb.__all__) == sorted("launch launchpad resume attach jobs script Job Local Slurm Torchrun Session Cell CellFailedError track log span checkpoint profile open_trace JobState DtnbError LaunchError RankFailedError JobCancelledError JobTimeoutError".split())
    for name in dtnb.__all__: assert getattr(dtnb, name).__doc__, f"{name} has no docstring"


def test_event_keys_are_frozen():
    from dtnb.event import Event, EventKind
    assert sorted(EventKind) == sorted("state progress scalar span output error heartbeat".split())
    assert json.loads(Event("state", 1.5, 2, 3, 4, dict(state="done")).to_json()) == dict(kind="state", t=1.5, seq=2, rank=3, attempt=4, state="done")


def test_export_is_clean(tmp_path):
    "Exporting the notebooks changes no file"
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(tmp_path / "w"), "HEAD"], check=True, capture_output=True)
    try:
        work = tmp_path / "w"
        dirty = subprocess.run(["git", "-C", str(ROOT), "diff", "HEAD", "--", "nbs", "dtnb"], capture_output=True, check=True).stdout
        if dirty: subprocess.run(["git", "-C", str(work), "apply"], input=dirty, check=True)
        before = {p: p.read_bytes() for p in (work / "dtnb").rglob("*.py")}
        subprocess.run([str(Path(sys.executable).parent / "nbdev_export")], cwd=work, check=True, capture_output=True)
        assert {p: p.read_bytes() for p in (work / "dtnb").rglob("*.py")} == before
    finally: subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tmp_path / "w")], check=True, capture_output=True)


def test_wheel_holds_the_static_files(tmp_path):
    source = tmp_path / "source"                                     # a build writes beside its source
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True).stdout.split("\n")
    for f in filter(None, files):
        if not (ROOT / f).exists(): continue
        (source / f).parent.mkdir(parents=True, exist_ok=True)
        (source / f).write_bytes((ROOT / f).read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for p in (ROOT / "dtnb" / "static").rglob("*"):
        if p.is_file(): assert str(p.relative_to(ROOT)) in names
    assert {"dtnb/static/progress.js", "dtnb/static/progress.css", "dtnb/static/course/01_quickstart.ipynb", "dtnb/rank/worker.py"} <= set(names)


def test_tree_names_no_machine():
    "No path of a developer's machine in any file"
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    for f in filter(None, files):
        if (ROOT / f).suffix in (".png", ".ico") or not (ROOT / f).exists(): continue
        text = (ROOT / f).read_text(errors="replace")
        for bad in ("/" + "root/", "/" + "home/runner", "/work/" + "main"): assert bad not in text, f"{f} has {bad}"
