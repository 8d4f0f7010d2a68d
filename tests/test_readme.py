"Every command and every cell that README shows."
import os, re, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def fenced(language): return re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)


def test_cells_run_as_shown(tmp_path):
    "In order, in one IPython, as a reader would paste them"
    script = tmp_path / "shown.py"
    script.write_text(f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {[*fenced("python"), "print('results', job.results())"]!r}: shell.run_cell(cell).raise_error()
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=os.environ | dict(IPYTHONDIR=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "1 | ValueError: a bad batch" in done.stdout and re.search(r"results \{0: 0\.0[34]\d*, 1: 0\.0[34]\d*\}", done.stdout)
    assert "the sum is [3.0, 3.0]" in done.stdout and "0: tensor([3., 3.])" in done.stdout


def test_make_targets_exist():
    targets = set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.M))
    assert {"demo", "test", "lab"} <= targets
    for t in targets: assert subprocess.run(["make", "-n", t], cwd=ROOT, capture_output=True).returncode == 0, t


def test_commands_exist(tmp_path):
    "`--help` of each, and each that only looks"
    lines = [l.split("#")[0].split() for block in fenced("sh") for l in block.splitlines() if l.startswith("dtnb ")]
    assert {l[1] for l in lines} == {"demo", "lab", "doctor", "jobs", "view", "trace"}
    run = lambda *a: subprocess.run([str(BIN / "dtnb"), *a], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    for l in lines: assert run(l[1], "--help").returncode == 0, l
    assert run("doctor").returncode == 0 and run("jobs").stdout == "no jobs yet\n"


def test_pictures_and_links_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README): assert (ROOT / target).exists(), target


def test_readme_is_made_from_the_notebook(tmp_path):
    (tmp_path / "nbs").mkdir()
    for f in ("index.ipynb", "readme.py"): (tmp_path / "nbs" / f).write_bytes((ROOT / "nbs" / f).read_bytes())
    subprocess.run([sys.executable, str(tmp_path / "nbs" / "readme.py")], check=True, capture_output=True)
    assert (tmp_path / "README.md").read_text() == README
