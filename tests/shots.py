"Take README's screenshots: `python tests/shots.py docs`"
import os, shutil, sys, tempfile
from pathlib import Path

from lab import Lab
from test_browser import quick_start
from test_session_browser import tour

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "notebooks"
        folder.mkdir()
        os.environ["DTNB_HOME"] = f"{tmp}/home"
        with Lab(folder, tmp) as lab:
            quick_start(lab, Path(sys.argv[1]))
            tour(lab, Path(tmp) / "shots")
        shutil.copy(Path(tmp) / "shots" / "session-live.png", sys.argv[1])
