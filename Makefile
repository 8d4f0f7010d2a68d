# `make help` lists the commands; the first of them makes .venv.
SHELL := /bin/bash
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PIP := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt
export HF_HUB_OFFLINE := 1

.DEFAULT_GOAL := help
.PHONY: help demo lab slurm test test-all faults nbtest export readme shots bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): constraints.txt settings.ini setup.py
	$(PY) -m venv $(VENV)
	$(PIP) -U pip
	$(PIP) torch==2.13.0
	$(PIP) -e '.[course]'
	@touch $@

# what only developers need: nbdev, the test tools, and the trainers whose progress is tested
$(DEV): $(READY)
	$(PIP) -e '.[dev]'
	@if git rev-parse --git-dir >/dev/null 2>&1; then $(BIN)/nbdev_install_hooks >/dev/null; fi
	@touch $@

demo: $(READY) ## train on 2 ranks from a real notebook; the page is out/demo.html
	$(BIN)/dtnb demo --out out

lab: $(READY) ## open JupyterLab on the course
	$(BIN)/dtnb lab

slurm: $(READY) ## a private Slurm to try things by hand: a shell on its login node, and the end of both
	@PYTHONPATH=$(CURDIR)/tests $(BIN)/python -m slurm

export: $(DEV) ## write dtnb/*.py from nbs/*.ipynb, and README.md from nbs/index.ipynb
	$(BIN)/nbdev_export
	$(BIN)/nbdev_clean
	$(MAKE) readme

readme: $(DEV) ## README.md from nbs/index.ipynb
	$(BIN)/python nbs/readme.py

nbtest: $(DEV) ## run the lesson cells of nbs/
	timeout 900 $(BIN)/nbdev_test --n_workers 2

shots: $(DEV) ## take README's screenshots in a real JupyterLab
	PYTHONPATH=tests $(BIN)/python tests/shots.py docs

test: $(DEV) ## all tests
	tests/run

faults: N = 20
faults: $(DEV) ## try every fault N times (N=20) in a session and in a job, print the table
	DTNB_TRIALS=$(N) $(BIN)/python -m pytest -q -rs tests/faults

test-all: $(DEV) ## all tests, the long ones too
	DTNB_SLOW=1 tests/run

bench: $(DEV) ## measure beside the peers, write benchmarks/README.md
	$(BIN)/python benchmarks/run.py

clean: ## remove what make built
	rm -rf $(VENV) out build dist *.egg-info dtnb/static/course
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
