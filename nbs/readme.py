"Write README.md from index.ipynb: hidden cells left out, outputs as text."
import re
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from traitlets.config import Config

here = Path(__file__).parent
nb = nbformat.read(here / "index.ipynb", 4)
nb.metadata["language_info"] = dict(name="python")
nb.cells = [c for c in nb.cells if not c.source.startswith("#| hide")]
text, _ = MarkdownExporter(config=Config(NbConvertBase=dict(display_data_priority=["text/plain"]))).from_notebook_node(nb)
text = re.sub(r"\x1b\[[0-9;]*m", "", text)
(here.parent / "README.md").write_text("\n".join(line.rstrip() for line in text.splitlines()).replace("\n\n\n\n", "\n\n").replace("\n\n\n", "\n\n") + "\n")
