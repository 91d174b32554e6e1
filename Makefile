# Two commands on a fresh machine: `make demo` and `make test`. Each makes .venv and installs what it needs.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := dev,docs,diffusion,heif,registry,postgres,clickhouse,train,eval,serve,c2pa,fingerprint,bulk

.PHONY: demo test test-slow lint audit docs results weights clean
.DELETE_ON_ERROR:

# torch comes first and alone: the packages that depend on it then keep the build that is there.
.venv/runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[diffusion,heif,registry]'
	touch $@

.venv/installed: .venv/runtime
	$(BIN)/pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
# These two ask for the opencv build with a GUI; the headless one from the extra `eval` serves.
	$(BIN)/pip install --quiet -c constraints.txt --no-deps invisible-watermark blind-watermark
	touch $@

demo: .venv/runtime
	$(BIN)/python -m diffmark.demo

test: .venv/installed lint
	$(BIN)/pytest -n auto --cov --cov-report=term:skip-covered

test-slow: .venv/installed
	$(BIN)/pytest -m slow

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Known vulnerabilities of the pinned versions; asks pypi.org, and fails if a package cannot be looked up there.
audit: .venv/installed
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/python benchmarks/dependencies.py
	$(BIN)/pip-audit --strict --disable-pip --no-deps -r constraints.txt

docs: .venv/installed
	$(BIN)/python -m diffmark.cli.reference > docs/cli.md
	$(BIN)/python -m diffmark.server.verify_page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is in build/site; with a search: python3 -m http.server -d build/site"

# Fill the tables of README and docs from results/.
results: .venv/installed
	$(BIN)/python benchmarks/readme_results.py

# The wheel of siblings/ and baselines/, with their digests, into dist/.
weights: .venv/runtime
	$(BIN)/python -m diffmark.weights
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist packages/diffmark-weights

clean:
	rm -rf .venv build dist demo
