"The package's metadata lives in settings.ini (nbdev); this file only hands it to setuptools."
import shlex
import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

ini = ConfigParser(delimiters=["="])
ini.read("settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]
words = lambda key: shlex.split(cfg.get(key, ""))

# an installed dtnb carries the course, for `dtnb demo` and `dtnb lab`
if Path("nbs/course").is_dir(): shutil.copytree("nbs/course", "dtnb/static/course", dirs_exist_ok=True, ignore=shutil.ignore_patterns("out", "__pycache__", ".*"))

setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], keywords=cfg["keywords"],
    author=cfg["author"], author_email=cfg["author_email"], license="Apache-2.0",
    long_description=Path("README.md").read_text(encoding="utf-8"), long_description_content_type="text/markdown",
    packages=find_packages(include=["dtnb", "dtnb.*"]), include_package_data=True, zip_safe=False,
    python_requires=f">={cfg['min_python']}",
    install_requires=words("requirements") + words("local_requirements"),
    extras_require={"slurm": words("slurm_requirements"), "course": words("course_requirements"), "dev": words("course_requirements") + words("dev_requirements")},
    entry_points={
        "console_scripts": words("console_scripts"),
        "nbdev": [f"{cfg['lib_name']}={cfg['lib_path']}._modidx:d"],
        "lightning.pytorch.callbacks_factory": ["dtnb=dtnb.rank.adapters:lightning_callbacks"],
        "pytorch_lightning.callbacks_factory": ["dtnb=dtnb.rank.adapters:lightning_callbacks"],
    },
)
