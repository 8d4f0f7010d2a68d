"Take README's screenshots: `python tests/shots.py docs`"
import os, shutil, sys, tempfile
from pathlib import Path

from lab import Lab
from slurm import Cluster
from test_browser import quick_start
from test_launchpad_browser import tour as launchpad_tour
from test_session_browser import tour

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "notebooks"
        folder.mkdir()
        os.environ["DTNB_HOME"] = f"{tmp}/home"
        with Lab(folder, tmp) as lab:
            quick_start(lab, Path(sys.argv[1]))
            tour(lab, Path(tmp) / "shots")
        folder = Path(tmp) / "launchpad"
        folder.mkdir()
        with Cluster(conf=dict(EnforcePartLimits="ALL")) as cluster:
            os.environ |= dict(SLURM_CONF=cluster.env["SLURM_CONF"], DTNB_SQUEUE_SECONDS=".5", DTNB_HOME=f"{tmp}/jobs")
            with Lab(folder, folder) as lab: launchpad_tour(lab, cluster, Path(tmp) / "shots")
        for name in ("session-live.png", "launchpad.png"): shutil.copy(Path(tmp) / "shots" / name, sys.argv[1])
