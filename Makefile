# SPDX-License-Identifier: Apache-2.0
# The only place with commands: .ci/run and the documentation call these targets.
SHELL := /bin/bash
GO ?= go
BIN := bin/ropewalk
ifndef VERSION # once: a tree that changes meanwhile would give another each time
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
endif
LDFLAGS := -s -w -X main.version=$(VERSION)
# Versions of the tools that only developers need; `go run` fetches them by name.
GOLANGCI := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOFUMPT := $(GO) run mvdan.cc/gofumpt@v0.12.0
GOVULNCHECK := $(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0
BENCHSTAT := $(GO) run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
ACTIONLINT := $(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
HCLFMT := $(GO) run github.com/hashicorp/hcl/v2/cmd/hclfmt@v2.24.0
FUZZTIME ?= 10s
# test/ci.sh sets CI_TIMES, the directory for the time of each test. The output is the same.
GOTEST := $(GO) test
ifdef CI_TIMES
GOTEST = gotestsum --format standard-$(or $(VERBOSITY),quiet) --hide-summary skipped --jsonfile $(CI_TIMES)/$@.$$$$.json --raw-command -- $(GO) test -json
endif
# All targets build with the same flags unless they override them, so a new machine compiles everything once. Packages stay
# static and reproducible even with `make release GOFLAGS=-v`.
override export CGO_ENABLED := 0
override export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath
# The tests compare with other implementations; bin/ holds the one that is built here.
export PATH := $(CURDIR)/bin:$(PATH)

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9\/-]+:.*## /{shown[$$1]; printf "  %-20s %s\n", $$1, $$2} \
	  /^([a-z0-9-]+|bin\/[a-z-]+):[^=]*$$/{sub(/:.*/, ""); if (!($$0 in shown)) rest = rest " " $$0} END{print "Prerequisites of these:" rest}' $(MAKEFILE_LIST)

.PHONY: build
build: $(BIN) ## build bin/ropewalk (static)

.PHONY: $(BIN)
$(BIN): need-go
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/ropewalk

# A module of its own, so that ropewalk's does not require quic-go.
.PHONY: bin/bench-quic
bin/bench-quic: need-go
	cd test/bench/quic && $(GO) build -o $(CURDIR)/$@ .

# Likewise gonum's plots and their fonts.
.PHONY: bin/scale
bin/scale: need-go
	cd test/scale && $(GO) build -o $(CURDIR)/$@ .

bin/wireguard-go: need-go
	$(GO) build -o $@ golang.zx2c4.com/wireguard

.PHONY: demo
demo: need-root need-tun build ## two hosts in namespaces, real traffic through ropewalk
	$(BIN) demo

# Packages whose tests wait most of their time. Named first, they run beside others.
WAITING := ./test/spread ./cmd/ropewalk
.PHONY: test
test: need-root need-tun deps-test build bin/wireguard-go ## all tests that need no other kernel
	$(GOTEST) -timeout 20m $(WAITING) ./...
	cd test/scale && $(GOTEST) ./...

# The packages of the product where goroutines share memory, and tests of whole devices. make ci-full runs the race detector on all.
# The slowest come first, so that none runs alone at the end.
RACE_PACKAGES ?= ./pkg/tunnel/device ./cmd/... ./pkg/cluster/agent/... ./pkg/control/quick ./pkg/control/uapi ./pkg/dataplane/engine ./pkg/dataplane/internal/... ./pkg/dataplane/workpool \
  ./pkg/ebpf/programs ./pkg/ebpf/spreader ./pkg/netio/... ./pkg/observe/doctor/facts ./pkg/observe/metrics ./pkg/observe/top/... \
  $(addprefix ./pkg/protocol/,drop noise peer session spread) ./pkg/tunnel/... ./test/sim ./test/soak
# The commands demo and bench start other processes and wait for them, for minutes. The others compute what `make test` compares with
# models, or repeat what TestElephantIsSprayedInOrder and TestSprayEndsInOrder do with other flows.
RACE_SKIP ?= ^Test(Demo|Bench|InventedSenders|LostMessagesDelaySprayed|PortLimitDoesNotLimitSprayed|FlowIsNotSprayed|SmallFlowsAreNotSprayed)
.PHONY: test-race
test-race: need-root need-tun deps-test build bin/wireguard-go ## the tests of code that goroutines share, under the race detector
	CGO_ENABLED=1 $(GOTEST) -race -short -timeout 30m -skip '$(RACE_SKIP)' $(RACE_PACKAGES)
	@echo 'the race detector itself: a racy program must fail'
	! CGO_ENABLED=1 $(GO) run -race ./test/racecanary >/dev/null 2>&1

# The last commit before post-quantum exchanges, and the first with RopewalkAnnouncements. From the first release on, OLDER_KUBE is the release before.
OLDER := 4e60e159
OLDER_KUBE := 5afba96e
build/older/%/ropewalk: need-go
	@rm -rf $(@D) && mkdir -p $(@D)/tree
	git archive $* go.mod go.sum cmd pkg bpf deploy/crd | tar -x -C $(@D)/tree
	cd $(@D)/tree && $(GO) build -o .. ./cmd/ropewalk ./cmd/ropewalk-agent

.PHONY: test-older
test-older: need-root need-tun deps-test deps-kube build build/older/$(OLDER)/ropewalk build/older/$(OLDER_KUBE)/ropewalk ## older releases with the present one: tunnels, and nodes of a cluster
	ROPEWALK_OLDER_BIN=$(CURDIR)/build/older/$(OLDER)/ropewalk $(GOTEST) -count=1 -timeout 20m -run Older ./test/interop
	cd test/kube && ROPEWALK_OLDER_KUBE=$(CURDIR)/build/older/$(OLDER_KUBE) $(GOTEST) -count=1 -timeout 20m -run Older .

.PHONY: test-secret
test-secret: need-go ## handshakes with Go's experiment that erases their stack and registers
	GOEXPERIMENT=runtimesecret $(GOTEST) -short -timeout 20m ./pkg/protocol/noise ./pkg/tunnel/device

ARM64_TESTS := ./pkg/netio/xsk ./pkg/netio/underlay/xdp ./pkg/protocol/packet ./pkg/protocol/offload ./pkg/protocol/wire ./pkg/protocol/noise ./pkg/protocol/session ./pkg/protocol/chachapoly ./pkg/protocol/spread ./pkg/protocol/config ./pkg/netio/internal/fdguard
.PHONY: test-arm64
test-arm64: need-go deps-arm64 ## what needs no device, as arm64 code under qemu-user; without capabilities, so that all else skips
	GOARCH=arm64 $(GOTEST) -count=1 -short -timeout 30m -exec 'setpriv --bounding-set=-all --inh-caps=-all qemu-aarch64-static' $(ARM64_TESTS)

.PHONY: count-arm64
count-arm64: need-go deps-count ## arm64 instructions per byte of each cipher implementation, counted by qemu-user (docs/dev/measurements.md)
	$(GO) run -C pkg/protocol/chachapoly/_asm ./count

.PHONY: cycles-arm64
cycles-arm64: need-go deps-cycles ## arm64 cycles per byte of each cipher kernel, as llvm-mca's models of cores estimate them (docs/dev/measurements.md)
	$(GO) run -C pkg/protocol/chachapoly/_asm ./count cycles

.PHONY: test-kernels
test-kernels: need-root deps-kernels build ## interop in virtual machines: Linux 5.10, 6.1, 6.12 and 7.2, and eBPF on 5.15 and 6.8
	$(GOTEST) -tags kernels -count=1 -parallel 2 -timeout 70m -v ./test/kernels # two pairs of machines, each 25 minutes at most; the rest is fetching and building

.PHONY: test-kube
test-kube: need-root need-tun deps-kube ## the Kubernetes agent on four nodes with a real API server (first build: minutes)
	cd test/kube && $(GOTEST) -count=1 -timeout 40m .

.PHONY: kube-scale
kube-scale: need-root need-tun deps-kube ## what agents cost a real API server in a cluster of 5,000 nodes, most of them pretended; ARGS="-scale-nodes 1000 -scale-window 5m" for others
	cd test/kube && $(GO) test -count=1 -timeout 60m -v -run TestScale . -args -scale-nodes 5000 -scale-agents 20 -scale-window 10m $(ARGS)

.PHONY: test-cluster
test-cluster: need-root need-tun deps-cluster ## clusters of nodes with kubelets and containerd, installed as documented (first build: minutes)
	cd test/kube && $(GOTEST) -count=1 -timeout $(if $(SKIP_CLUSTERS),30m -skip $(SKIP_CLUSTERS),60m) -v ./cluster/...

.PHONY: build-kube
build-kube: need-go ## compile all of Kubernetes that test-kube and test-cluster run, so that they begin at once
	cd test/kube && $(GO) test -count=1 -timeout 60m -run '^$$' ./... && $(GO) build -o /dev/null ./hyper
	cd test/kube/deploy && $(GO) test -count=1 -timeout 60m -run '^$$' ./... && $(GO) build -o /dev/null helm.sh/helm/v3/cmd/helm
	cd test/kube/policy && $(GO) build -o /dev/null sigs.k8s.io/kube-network-policies/cmd

.PHONY: lint-kube
lint-kube: need-go ## all linters on the tests with a real API server (first time: 10 minutes)
	cd test/kube && $(GO) vet ./... && $(GOLANGCI) run --allow-parallel-runners ./...

.PHONY: helm-lint
helm-lint: need-go ## the charts, what is made of them, and kustomize's bases; the alerting rules of agents
	cd test/kube/deploy && $(GO) vet ./... && $(GOLANGCI) run --allow-parallel-runners ./... && $(GOTEST) -count=1 -timeout 60m ./...

.PHONY: manifests
manifests: need-go ## make anew what is made of the Helm charts: kustomize's bases, docs/helm-values.md
	cd test/kube/deploy && $(GO) test -count=1 . -update

.PHONY: check
check: need-go check-workflows ## format, vet, lint, layers, language and workflows
	@left=$$(git ls-files --cached --others --exclude-standard -- '*.orig' '*.rej' '*.bak' '*~'); [ -z "$$left" ] || { echo "left behind by an editor or a merge:"; echo "$$left"; exit 1; }
	@out=$$($(GOFUMPT) -l cmd pkg test deploy); [ -z "$$out" ] || { echo "not formatted (run make fmt):"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags kernels ./test/...
	$(GOLANGCI) run --allow-parallel-runners ./...
	@set -e; for dir in test/bench/quic test/flannel test/scale; do (set -x; cd $$dir; $(GO) vet ./...; $(GOLANGCI) run --allow-parallel-runners ./...); done
	cd test/kube && $(GOLANGCI) run --allow-parallel-runners --fast-only ./... # the rest of the linters reads all of Kubernetes: make lint-kube
	$(GO) vet -tags docs ./cmd/ropewalk
	$(GO) test -timeout 60m ./test/language ./test/api
	GOARCH=arm64 $(GO) vet ./cmd/... ./pkg/...
	@$(HCLFMT) -check -require-no-change deploy/bench/variables.tf deploy/bench/*/main.tf >/dev/null

# zizmor looks for what a workflow gives away: rights, secrets, actions by a tag that may move. Offline, it compares no hash with its tag.
WORKFLOWS := build/workflows
.PHONY: check-workflows
check-workflows: need-go $(WORKFLOWS)/venv/installed ## .github/workflows, read by actionlint and zizmor
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(WORKFLOWS)/venv/bin/zizmor --offline --no-progress --quiet .github

$(WORKFLOWS)/venv/installed: deploy/release/requirements.txt
	$(call apt_install,python3-venv)
	python3 -m venv $(WORKFLOWS)/venv && $(WORKFLOWS)/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# The database is on the internet: without it this reports so and succeeds.
.PHONY: vulncheck
vulncheck: need-go ## known vulnerabilities of Go and of the modules in use, but not of test/kube: that is all of Kubernetes
	@for mod in $$(find . -name go.mod -not -path './build/*' -not -path ./test/kube/go.mod); do \
	  out=$$($(GOVULNCHECK) -C $$(dirname $$mod) ./... 2>&1) || case "$$out" in \
	    *'fetching vulnerabilities'*) echo "vulncheck skipped, the database is not reachable: $${out##*: }"; exit 0 ;; \
	    *) echo "$$mod:"; echo "$$out"; exit 1 ;; esac; done

.PHONY: fmt
fmt: ## format all Go code
	$(GOFUMPT) -w cmd pkg test deploy

.PHONY: generate
generate: need-go deps-generate ## rebuild all generated files
	$(GO) generate ./pkg/...

# In a copy: other targets read the tree meanwhile.
.PHONY: check-generated
check-generated: need-go deps-generate ## fail if a generated file is not up to date
	@rm -rf build/generated && mkdir -p build/generated/deploy && cp -a go.mod go.sum bpf pkg build/generated && cp -a deploy/crd build/generated/deploy
	cd build/generated && $(GO) generate ./pkg/...
	diff -r pkg build/generated/pkg && diff -r deploy/crd build/generated/deploy/crd

.PHONY: soak
soak: need-root need-tun need-go ## a minute each of traffic in memory, over AF_XDP and with churn; HOURS=1: an hour of churn, with a table of what the daemons hold
	$(GO) test -count=1 -timeout 0 ./test/soak -soak $(if $(HOURS),$(HOURS)h -only churn,1m) -v $(ARGS)

.PHONY: attack
attack: need-root need-tun build ## floods and hostile peers beside TCP through a tunnel, in namespaces of its own: the table of docs/dev/reliability.md; ARGS="-underlay xdp -rounds 18"
	ROPEWALK_BIN=$(CURDIR)/bin/ropewalk $(GO) test -count=1 -timeout 0 ./test/attack -run Throughput -attack 2s -v $(ARGS)

SEEDS ?= 1000
.PHONY: sim
sim: need-go ## whole devices in a simulated network, with SEEDS=1000 schedules of faults (docs/dev/reliability.md); ARGS="-schedule FILE" for one
	$(GOTEST) -count=1 -timeout 60m ./test/sim -seeds $(SEEDS) $(ARGS)

.PHONY: postquantum-mutants
postquantum-mutants: need-go ## apply known faults to post-quantum exchanges, and print the test that finds each; ARGS=REGEXP for some
	test/postquantum/mutants.sh $(ARGS)

.PHONY: formal
formal: ## verify the symbolic models of post-quantum exchanges with verifpal, if it is installed (test/formal/run.sh)
	test/formal/run.sh

# Rust's compiler takes some ten CPU minutes. Without it or its registry, `make formal` says that it verifies nothing.
.PHONY: verifpal
verifpal: ## build verifpal for `make formal`, if cargo can
	@command -v verifpal >/dev/null || cargo install verifpal --version 1.6.7 --locked --ignore-rust-version --root build/verifpal && \
	  { command -v verifpal >/dev/null || install -D build/verifpal/bin/verifpal bin/verifpal; } || echo 'SKIPPED: verifpal cannot be built here'

.PHONY: sim-mutants
sim-mutants: need-go ## apply known faults, and print how many seeds the simulator needs to find each
	GO='$(GO)' test/sim/mutants/run.sh

.PHONY: fuzz-smoke
fuzz-smoke: need-go ## fuzz targets with reproducible results for FUZZTIME=10s each, from the corpora in test/fuzz/corpus; ONLY=pkg/protocol for some
	test/fuzz/fuzz.sh $(FUZZTIME)

.PHONY: fuzz-long
fuzz-long: need-go ## all fuzz targets, a minute each, again and again for HOURS=8, with new inputs kept in build/fuzz
	test/fuzz/fuzz.sh 60s $(or $(HOURS),8)

.PHONY: bench-smoke
bench-smoke: need-go build bin/bench-quic ## every benchmark once, so that none rots
	cd test/bench/quic && $(GO) test -count=1 ./...
	$(GO) test -run '^$$' -bench . -benchtime 1x ./pkg/... ./test/compare ./test/bench

# The stages of the path, in the order in which packets go out and come in.
STAGES := $(addprefix protocol/,packet offload peer session) $(addprefix dataplane/internal/,send receive) netio/tun netio/underlay/udp
.PHONY: bench-micro
bench-micro: need-go ## what every stage costs per packet, as one table (root for tun and udp)
	set -o pipefail; { $(GO) test -v -count 1 -run TestNamesProcessorAndCiphers ./pkg/protocol/chachapoly && \
	  $(GO) test -run '^$$' -bench . -benchtime 200ms -count 3 $(STAGES:%=./pkg/%); } | awk -f test/stages.awk

.PHONY: bench-ciphers
bench-ciphers: need-go ## add a column for this processor to docs/performance.md: PROCESSOR='Zen 4, AVX-512'
	@[ -n "$(PROCESSOR)" ] || { echo "make bench-ciphers PROCESSOR='NAME, INSTRUCTION SET'" >&2; exit 2; }
	mkdir -p build; $(GO) test -run '^$$' -bench Sets -benchtime 2000x ./pkg/protocol/chachapoly >build/ciphers.txt
	awk -v name="$(PROCESSOR)" -f test/ciphers.awk build/ciphers.txt docs/performance.md >build/performance.md
	cat build/performance.md >docs/performance.md

.PHONY: bench-compare
bench-compare: need-go ## the whole path in memory, without a kernel, against wireguard-go
	set -o pipefail; for i in 1 2 3 4 5 6; do $(GO) test -run '^$$' -bench . -benchtime 300ms ./test/compare || exit 1; done | \
	  $(BENCHSTAT) -col /impl -filter '.unit:(ns/packet OR cpu-ns/packet)' -

.PHONY: bench-peers
bench-peers: need-go need-root need-tun build bin/bench-quic ## ropewalk against other implementations; ARGS='--rounds 3 --peers tailscale', ARGS=--help
	$(GO) run ./test/bench --ropewalk $(BIN) $(ARGS)

.PHONY: scale
scale: bin/scale ## simulate 2 to 64 cores with measured costs: the figures and tables of docs/dev/model.md
	bin/scale figures

# The programs that hosts get. They need nothing but Linux there.
HOSTS_ARCH ?= $(shell $(GO) env GOARCH)
HOSTS_PROGRAMS := build/hosts-programs/$(HOSTS_ARCH)
.PHONY: bench-hosts
bench-hosts: need-go ## tunnels between two hosts over ssh: make bench-hosts A=root@host1 B=root@host2 (docs/bench-hosts.md); HOSTS_ARCH=arm64, ARGS=--help
	@[ -n '$(A)' ] && [ -n '$(B)' ] || { echo 'want two hosts: make bench-hosts A=root@host1 B=root@host2'; exit 1; }
	@mkdir -p $(HOSTS_PROGRAMS)
	GOARCH=$(HOSTS_ARCH) $(GO) build -ldflags '$(LDFLAGS)' -o $(HOSTS_PROGRAMS)/ropewalk ./cmd/ropewalk
	GOARCH=$(HOSTS_ARCH) $(GO) build -ldflags '-s -w' -o $(HOSTS_PROGRAMS)/bench ./test/bench
	GOARCH=$(HOSTS_ARCH) $(GO) build -o $(HOSTS_PROGRAMS)/wireguard-go golang.zx2c4.com/wireguard
	cd test/bench/quic && GOARCH=$(HOSTS_ARCH) $(GO) build -o $(CURDIR)/$(HOSTS_PROGRAMS)/bench-quic .
	$(GO) run ./test/bench hosts --programs $(HOSTS_PROGRAMS) --arch $(HOSTS_ARCH) $(ARGS) '$(A)' '$(B)'

.PHONY: bench-clouds-price
bench-clouds-price: ## the price of a pair of instances for HOURS=2 (docs/clouds.md)
	@deploy/bench/run.sh price '$(or $(HOURS),2)'

.PHONY: bench-clouds
bench-clouds: need-go ## bench-hosts between two instances that OpenTofu starts and deletes: make bench-clouds CLOUD=aws TYPE=c6in.16xlarge FROM=192.0.2.7/32; HOURS=2, ARGS=--help
	@ARGS='$(ARGS)' deploy/bench/run.sh '$(CLOUD)' '$(TYPE)' '$(FROM)' '$(or $(HOURS),2)'

.PHONY: bench-clouds-end
bench-clouds-end: ## delete the instances of a run of bench-clouds that could not: CLOUD=aws
	@deploy/bench/run.sh end '$(CLOUD)'

.PHONY: predictions
predictions: bin/scale ## simulate machines that nobody has measured (docs/dev/predictions.md), into build/predictions.json
	@mkdir -p build
	bin/scale predict -o build/predictions.json

.PHONY: results
results: bin/scale ## check what others have measured, in docs/results, and draw it beside the predictions
	bin/scale results

.PHONY: scale-costs
scale-costs: need-root need-tun deps-scale bin/scale ## measure what each stage costs on this machine, for `make scale`
	bin/scale costs $(ARGS)

.PHONY: scale-check
scale-check: need-root need-tun deps-scale build bin/scale ## measure on two cores what `make scale` predicts of them
	bin/scale check --ropewalk $(BIN) $(ARGS)

test-kernels test-cluster test-package: VERBOSITY := verbose

# test/ci.sh runs the second list beside the first, so it holds no target that measures time, has deadlines or needs the host's network.
# FUZZTIME is a count: a limit in time sometimes ends as a failure of the fuzzing engine itself.
.PHONY: ci
ci: export FUZZTIME := 1000x
ci: export KERNELS := 5.10 7.2
ci: export KERNELS_GATE := 1
ci: export SEEDS := 200
ci: export SKIP_CLUSTERS := TestClusterWith
ci: deps-ci ## the gate before a merge; prints the time of each target and of the slowest tests
	@test/ci.sh 'test test-race test-arm64 bench-smoke test-kube test-package test-cluster test-kernels' \
	  'check build-kube release helm-lint check-generated site test-reproducible sim fuzz-smoke formal'

.PHONY: ci-full
ci-full: export FUZZTIME := 1000x
ci-full: export RACE_PACKAGES := ./...
ci-full: export RACE_SKIP :=
ci-full: deps-ci ## all kernels, clusters, packages under the race detector and seeds of the simulator, and the targets that make ci leaves out
	@test/ci.sh 'test test-race test-arm64 bench-smoke test-kube test-package test-cluster test-kernels test-secret test-older check-recipes demo postquantum-mutants' \
	  'check build-kube release helm-lint check-generated site test-reproducible sim fuzz-smoke vulncheck lint-kube verifpal formal'

.PHONY: deps-ci
deps-ci: deps-test deps-kernels deps-kube deps-cluster deps-package deps-arm64 deps-generate deps-site bin/gotestsum

bin/gotestsum: need-go
	GOBIN=$(CURDIR)/bin $(GO) install $(GOTESTSUM)

# ---- the documentation as a web site

SITE := build/site
SITE_FILES := KNOWN_ISSUES.md SECURITY.md CHANGELOG.md CONTRIBUTING.md LICENSE
.PHONY: site
site: deps-site $(SITE)/venv/installed ## the documentation as a web site, in build/site/html; fails on a broken link or anchor
	@rm -rf $(SITE)/docs $(SITE)/html && mkdir -p $(SITE)/docs/deploy
	cp -r docs/. $(SITE_FILES) $(SITE)/docs && cp -r deploy/grafana deploy/otel deploy/prometheus deploy/arch deploy/ansible $(SITE)/docs/deploy
	sed -Ei 's#\]\(\.\./#](#g' $(SITE)/docs/*.md && sed -Ei 's#\]\(\.\./\.\./#](../#g' $(SITE)/docs/{dev,kubernetes}/*.md && sed -Ei 's#\]\(docs/#](#g' $(SITE_FILES:%=$(SITE)/docs/%)
	$(SITE)/venv/bin/mkdocs build --strict -f deploy/site/mkdocs.yml

$(SITE)/venv/installed: deploy/site/requirements.txt
	python3 -m venv $(SITE)/venv && $(SITE)/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: deps-site
deps-site:
	$(call apt_install,python3-venv)

SHOTS := build/screenshots
.PHONY: screenshots
screenshots: ## the picture in docs/images: ropewalk top as its tests draw it, in headless Chromium (installs it: 400 MB)
	$(call apt_install,chromium)
	@mkdir -p $(SHOTS) docs/images
	@{ echo '<meta charset="utf-8"><style>body {margin: 0; background: #111} pre {margin: 0; padding: 12px; color: #ddd; font: 14px/17px monospace}</style><pre>'; \
	  sed 's/&/\&amp;/g; s/</\&lt;/g' pkg/observe/top/testdata/overview-120x40.golden; } >$(SHOTS)/top.html
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir=$(abspath $(SHOTS))/profile --window-size=1040,704 \
	  --screenshot=docs/images/top.png file://$(abspath $(SHOTS))/top.html 2>/dev/null

include deploy/package/package.mk

.PHONY: clean
clean: ## remove what was built
	rm -rf bin build

# ---- what the targets need; each says exactly what is missing, or installs it (apt, by name)

.PHONY: need-go
need-go:
	@command -v $(GO) >/dev/null || { echo 'missing: Go 1.26 or later (https://go.dev/dl/)'; exit 1; }

.PHONY: need-root
need-root:
	@[ "$$(id -u)" = 0 ] || { echo 'this needs root: network namespaces and TUN devices. Run: sudo make $(MAKECMDGOALS)'; exit 1; }

.PHONY: need-tun
need-tun:
	@[ -c /dev/net/tun ] || { echo 'missing: /dev/net/tun. Run: modprobe tun'; exit 1; }

# apt_install PACKAGES: installs those that dpkg does not know as installed.
define apt_install
	@missing=; for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then command -v apt-get >/dev/null || { echo "missing packages:$$missing"; exit 1; }; \
	  echo "installing:$$missing"; apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing >/dev/null; fi
endef

.PHONY: deps-test
deps-test: need-go
	$(call apt_install,wireguard-tools iproute2 nftables gcc libc6-dev prometheus curl jq groff-base zsh fish bash-completion util-linux patch openssh-client openssh-server)

.PHONY: deps-kube
deps-kube: need-go
	$(call apt_install,crun iproute2 prometheus util-linux wireguard-tools gcc libc6-dev buildah)

# Docker's containerd.io is as good, and conflicts with Debian's containerd.
.PHONY: deps-cluster
deps-cluster: need-go
	$(call apt_install,$(if $(shell command -v containerd),,containerd) $(if $(shell command -v runc),,runc) containernetworking-plugins buildah ipset iproute2 nftables iptables util-linux)

.PHONY: deps-count
deps-count:
	$(call apt_install,qemu-user gcc libc6-dev)

.PHONY: deps-cycles
deps-cycles:
	$(call apt_install,llvm-19)

.PHONY: deps-arm64
deps-arm64:
	$(call apt_install,qemu-user-static util-linux)

.PHONY: deps-scale
deps-scale:
	$(call apt_install,ethtool iproute2 util-linux)

.PHONY: deps-generate
deps-generate:
	$(call apt_install,clang-19 llvm-19)

.PHONY: deps-kernels
deps-kernels:
	$(call apt_install,qemu-system-x86 busybox-static xz-utils zstd dpkg nftables iproute2 wireguard-tools)
