# SPDX-License-Identifier: Apache-2.0
# Packages, images, charts and recipes: the targets of a release. The Makefile includes this file.

# ---- release: what users install, in build/dist. The same sources give the same bytes.

NFPM := $(GO) run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2
# Without a serial number and the time, so that the same program gives the same bytes.
SBOM := $(GO) run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 bin -json -noserial -notimestamp -short-purls -std
BUILDAH ?= buildah
DIST := build/dist
STAGE := build/stage
# `make image DIST_ARCHES=arm64` builds for one architecture and needs no arm64 machine.
DIST_ARCHES := amd64 arm64
DIST_PROGRAMS := $(foreach p,ropewalk ropewalk-agent,$(DIST_ARCHES:%=$(DIST)/$p-linux-%))
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# The version of charts (SemVer 2). A build that has no tag is older than every release; commits after a tag are build metadata.
SEMVER ?= $(shell echo '$(VERSION)' | sed -E "/^v?[0-9]+\./!s/^/0.0.0-git$$(git log -1 --format=%cs 2>\/dev\/null | tr -d -)-/; s/^v//; s/-(([0-9]+-g[0-9a-f]+)(-dirty)?|dirty)$$/+\1/")
# dpkg and rpm sort ~ before everything, and rpm has no hyphen in versions. Image tags have no plus sign.
PACKAGE_VERSION ?= $(shell echo '$(SEMVER)' | sed -E 's/^([^-+]*)-/\1~/; s/-/./g')
IMAGE_TAG ?= $(subst +,-,$(SEMVER))
TAR := tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$(SOURCE_DATE_EPOCH)

.PHONY: release
release: need-go need-buildah ## everything that users install, for amd64 and arm64, with SBOMs and checksums, in build/dist (docs/install.md)
	@mkdir -p $(DIST) && rm -f $(DIST)/ropewalk* $(DIST)/SHA256SUMS
	$(MAKE) --no-print-directory packages image image-agent chart-archives kustomize krew CHARTS_DIR=$(STAGE)/charts
	cd $(DIST) && export LC_ALL=C && sha256sum ropewalk* >SHA256SUMS

.PHONY: $(DIST_PROGRAMS)
$(DIST_PROGRAMS): $(DIST)/%: need-go
	@mkdir -p $(DIST)
	GOOS=linux GOARCH=$(lastword $(subst -, ,$*)) $(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/$(firstword $(subst -linux-, ,$*))
	$(SBOM) -version '$(VERSION)' $@ >$@.cdx.json

# Files of a package besides the program. The generator of the manual needs the build tag docs, so that the program stays without it.
.PHONY: stage
stage: need-go
	@rm -rf $(STAGE)/common && mkdir -p $(STAGE)/common/man
	$(GO) build -ldflags '$(LDFLAGS)' -o $(STAGE)/ropewalk ./cmd/ropewalk
	$(GO) run -ldflags '$(LDFLAGS)' -tags docs ./cmd/ropewalk docs man $(STAGE)/common/man && gzip -9n $(STAGE)/common/man/*/*
	for shell in bash zsh fish; do $(STAGE)/ropewalk completion $$shell >$(STAGE)/common/ropewalk.$$shell || exit 1; done
	GO='$(GO)' sh deploy/package/notices.sh $(STAGE)/ropewalk >$(STAGE)/common/copyright

.PHONY: packages
packages: $(DIST_ARCHES:%=packages-%) ## .deb and .rpm packages, in build/dist

.PHONY: $(DIST_ARCHES:%=packages-%)
$(DIST_ARCHES:%=packages-%): packages-%: $(DIST)/ropewalk-linux-% $(DIST)/ropewalk-agent-linux-% stage
	@mkdir -p $(STAGE)/agent-$*
	GO='$(GO)' sh deploy/package/notices.sh $(DIST)/ropewalk-agent-linux-$* >$(STAGE)/agent-$*/copyright
	export ARCH=$* PACKAGE_VERSION='$(PACKAGE_VERSION)'; for format in deb rpm; do \
	  BINARY=$< STAGE=$(STAGE)/common $(NFPM) package -f deploy/package/nfpm.yaml -p $$format -t $(DIST)/ && \
	  BINARY=$(DIST)/ropewalk-agent-linux-$* STAGE=$(STAGE)/agent-$* $(NFPM) package -f deploy/package/nfpm-agent.yaml -p $$format -t $(DIST)/ || exit 1; done

# build_image NAME PROGRAMS: an image index of all architectures as an OCI archive, from the target NAME of the Containerfile. An OCI archive is
# the tar of an OCI layout; buildah would put the current time into it. The storage of this build is separate from the machine's.
define build_image
	@rm -rf $(STAGE)/image/$(1) && mkdir -p $(STAGE)/image/$(1)/context
	install -m 755 $(foreach p,$(2),$(DIST_ARCHES:%=$(DIST)/$p-linux-%)) $(STAGE)/image/$(1)/context
	install -m 644 $(foreach p,$(2),$(DIST_ARCHES:%=$(DIST)/$p-linux-%.cdx.json)) $(STAGE)/common/copyright* $(STAGE)/image/$(1)/context
	set -e; at=$(abspath $(STAGE))/image/$(1); buildah="$(BUILDAH) --storage-driver vfs --root $$at/storage --runroot $$at/run"; $$buildah manifest create all; \
	for arch in $(DIST_ARCHES); do \
	  $$buildah build --platform linux/$$arch --timestamp $(SOURCE_DATE_EPOCH) --identity-label=false --target $(1) --build-arg VERSION='$(VERSION)' \
	    --build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null)" -t $$arch -f deploy/image/Containerfile $$at/context; \
	  $$buildah manifest add all localhost/$$arch; \
	done; $$buildah manifest push --all all oci:$$at/layout:localhost/$(1):$(IMAGE_TAG)
	$(TAR) -C $(STAGE)/image/$(1)/layout -cf $(DIST)/$(1)-image.tar blobs index.json oci-layout
endef

.PHONY: image
image: need-buildah $(DIST_ARCHES:%=$(DIST)/ropewalk-linux-%) stage ## container image, as an OCI archive in build/dist
	$(call build_image,ropewalk,ropewalk)

.PHONY: image-agent
image-agent: need-buildah $(DIST_PROGRAMS) stage ## container image of the Kubernetes agent, as an OCI archive in build/dist
	GO='$(GO)' sh deploy/package/notices.sh $(DIST)/ropewalk-agent-linux-$(firstword $(DIST_ARCHES)) >$(STAGE)/common/copyright-agent
	$(call build_image,ropewalk-agent,ropewalk ropewalk-agent)

CHARTS := ropewalk-spread ropewalk-mesh ropewalk-crds
CHARTS_DIR := build/charts
.PHONY: charts
charts: ## Helm charts with the version of the tree, in build/charts
	deploy/helm/stage.sh $(CHARTS_DIR)
	sed -Ei 's/^version: .*/version: $(SEMVER)/; s/^appVersion: .*/appVersion: "$(IMAGE_TAG)"/' $(CHARTS:%=$(CHARTS_DIR)/%/Chart.yaml)
	for c in $(CHARTS); do sed 's/@VERSION@/$(SEMVER)/; s/@PRERELEASE@/$(if $(findstring -,$(SEMVER)),true,false)/' deploy/helm/artifacthub.yaml >>$(CHARTS_DIR)/$$c/Chart.yaml || exit 1; done
	cat deploy/helm/artifacthub-crds.yaml >>$(CHARTS_DIR)/ropewalk-crds/Chart.yaml

# The plugin is the agent's program by another name.
.PHONY: krew
krew: packages ## the kubectl plugin as archives, and its manifest for krew, in build/dist
	sed -E 's/v0\.1\.0/v$(SEMVER)/' deploy/krew/ropewalk.yaml >$(DIST)/ropewalk.yaml
	set -eo pipefail; for arch in $(DIST_ARCHES); do dir=$(STAGE)/krew/$$arch archive=ropewalk-kubectl-linux-$$arch.tar.gz; mkdir -p $$dir; \
	  install -m 755 $(DIST)/ropewalk-agent-linux-$$arch $$dir/kubectl-ropewalk; install -m 644 $(STAGE)/agent-$$arch/copyright $$dir/LICENSE; \
	  $(TAR) -C $$dir -c LICENSE kubectl-ropewalk | gzip -9n >$(DIST)/$$archive; \
	  sed -Ei "s/\"0+\" # $$arch/\"$$(sha256sum $(DIST)/$$archive | cut -d ' ' -f 1)\"/" $(DIST)/ropewalk.yaml; done

# As `helm package --version --app-version` does.
.PHONY: chart-archives
chart-archives: charts ## Helm charts as archives, in build/dist
	@mkdir -p $(DIST)
	set -o pipefail; for c in $(CHARTS); do $(TAR) -X deploy/helm/agent/.helmignore -C $(CHARTS_DIR) -c $$c | gzip -9n >$(DIST)/$$c-$(SEMVER).tgz || exit 1; done

BASES := ropewalk-kustomize-$(SEMVER)
.PHONY: kustomize
kustomize: ## kustomize's bases and the CRD, in build/dist
	@rm -rf $(STAGE)/kustomize && mkdir -p $(STAGE)/kustomize/$(BASES) $(DIST) && cp -r deploy/crd deploy/grafana deploy/kustomize $(STAGE)/kustomize/$(BASES)
	sed -Ei 's|^( *image: ropewalk-agent:).*|\1$(IMAGE_TAG)|; s|^( *app.kubernetes.io/version: ).*|\1"$(IMAGE_TAG)"|' $(STAGE)/kustomize/$(BASES)/kustomize/*/*.yaml
	set -o pipefail; $(TAR) -C $(STAGE)/kustomize -c $(BASES) | gzip -9n >$(DIST)/$(BASES).tar.gz

# test/ci.sh makes the release, and makes it again, beside other targets.
.PHONY: test-package
test-package: need-root need-tun deps-package $(if $(CI_TIMES),await-release,release) bin/wireguard-go ## the release: its files, units, reproducibility, images and charts
	$(GOTEST) -count=1 -timeout 20m -v -skip TestReleaseIsReproducible ./test/package -dist $(CURDIR)/$(DIST)
	cd test/kube/deploy && $(GOTEST) -count=1 -run TestRelease . -dist $(CURDIR)/$(DIST)
	$(if $(CI_TIMES),,$(MAKE) --no-print-directory test-reproducible)

.PHONY: test-reproducible
test-reproducible: need-go need-buildah ## make the release of build/dist again, and compare all files
	$(GOTEST) -count=1 -timeout 60m -run TestReleaseIsReproducible ./test/package -dist $(CURDIR)/$(DIST)

.PHONY: await-release
await-release:
	@until grep -qE 'FAILED| release \(beside\)$$' $(CI_TIMES)/targets; do sleep 1; done; ! grep FAILED $(CI_TIMES)/targets

.PHONY: need-buildah
need-buildah:
	@command -v $(BUILDAH) >/dev/null || { echo 'missing: buildah (apt-get install buildah)'; exit 1; }

.PHONY: deps-package
deps-package:
	$(call apt_install,wireguard-tools iproute2 nftables systemd dbus dpkg rpm xz-utils util-linux buildah)

# ---- signatures of a release, made by .github/workflows/release-build.yml; docs/verify.md has the user's commands

# The identity in all signatures: that workflow, at the release's tag.
SIGNER := https://github.com/ropewalk/ropewalk/.github/workflows/release-build.yml@refs/tags/v
ISSUER := https://token.actions.githubusercontent.com
RELEASE := COSIGN=$(CURDIR)/bin/cosign HELM=$(CURDIR)/bin/helm ORAS=$(CURDIR)/bin/oras TAG='$(IMAGE_TAG)' deploy/release/release.sh

bin/cosign: need-go
	GOBIN=$(CURDIR)/bin $(GO) install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3

bin/oras: need-go
	GOBIN=$(CURDIR)/bin $(GO) install oras.land/oras/cmd/oras@v1.3.6

bin/helm: need-go
	cd test/kube/deploy && $(GO) build -o $(CURDIR)/$@ helm.sh/helm/v3/cmd/helm

.PHONY: release-notes
release-notes: ## the section of CHANGELOG.md for the version of the tree; fails if it has no date
	@deploy/release/release.sh notes '$(VERSION)'

# The database is on the internet, and changes: no build can repeat this file.
.PHONY: vex
vex: need-go ## which known vulnerabilities the programs have and do not have, as OpenVEX, in build/dist
	for p in ropewalk ropewalk-agent; do $(GOVULNCHECK) -format openvex ./cmd/$$p >$(DIST)/$$p.openvex.json || exit 1; done

.PHONY: sign-release
sign-release: bin/cosign ## sign build/dist with the identity of the workflow that runs this
	$(RELEASE) sign $(DIST)

.PHONY: verify-release
verify-release: bin/cosign ## checksums, signatures, SBOMs and provenance of the release in DIR, of RELEASE_VERSION if that is set
	@[ -n '$(DIR)' ] || { echo 'DIR is not set: make verify-release DIR=directory'; exit 1; }
	version='$(RELEASE_VERSION)'; [ -n "$$version" ] || \
	  version=$$(set -o pipefail; cd '$(DIR)' && ls ropewalk-crds-*.tgz | sed -E 's/^ropewalk-crds-(.*)\.tgz$$/\1/') || exit 1; \
	  IDENTITY="$(SIGNER)$$version" ISSUER=$(ISSUER) $(RELEASE) verify '$(DIR)'

.PHONY: oci-login
oci-login: bin/oras ## log in to the host of REGISTRY with OCI_USER and OCI_TOKEN
	@set -o pipefail; printenv OCI_TOKEN | bin/oras login "$${REGISTRY%%/*}" --username "$$OCI_USER" --password-stdin

.PHONY: push-release
push-release: bin/oras bin/helm ## images, charts and packages of build/dist to REGISTRY=host/path
	$(RELEASE) push $(DIST) "$$REGISTRY"

.PHONY: sign-oci
sign-oci: bin/cosign ## sign what push-release has pushed
	$(RELEASE) sign-oci $(DIST)

# ---- recipes for other programs

RECIPES := build/recipes
ANSIBLE := ANSIBLE_ROLES_PATH=deploy/ansible/roles ANSIBLE_LOCALHOST_WARNING=false $(RECIPES)/venv/bin/ansible-playbook -i localhost,
.PHONY: check-recipes
check-recipes: build deps-recipes $(RECIPES)/venv/installed ## the NixOS module, the PKGBUILD and the Ansible role, read by Nix, bash and Ansible
	$(NIX) nix-instantiate --parse deploy/nixos/ropewalk.nix >/dev/null
	bash -n deploy/arch/PKGBUILD
	$(ANSIBLE) --syntax-check deploy/ansible/site.yml
	$(ANSIBLE) -c local -e ansible_python_interpreter=$(abspath $(RECIPES))/venv/bin/python -e directory=$(abspath $(RECIPES)) -e programs=$(abspath $(dir $(BIN))) deploy/ansible/test.yml >$(RECIPES)/ansible.log || { cat $(RECIPES)/ansible.log; exit 1; }
	$(BIN) check $(RECIPES)/wg0.conf
	$(GO) test ./test/deploy

NIX := NIX_STATE_DIR=$(abspath $(RECIPES))/nix NIX_STORE_DIR=$(abspath $(RECIPES))/nix/store
.PHONY: nix-hash
nix-hash: need-go deps-recipes ## the hash of the Go modules in deploy/nixos/ropewalk.nix, for a release: as nixpkgs' buildGoModule computes it
	@rm -rf $(RECIPES)/vendor
	GOFLAGS= $(GO) mod vendor -o $(abspath $(RECIPES))/vendor
	hash=$$($(NIX) nix --extra-experimental-features nix-command hash path $(RECIPES)/vendor) && \
	  sed -i "s#default = \"sha256-.*\";#default = \"$$hash\";#" deploy/nixos/ropewalk.nix

$(RECIPES)/venv/installed: deploy/ansible/requirements.txt
	python3 -m venv $(RECIPES)/venv && $(RECIPES)/venv/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: deps-recipes
deps-recipes:
	$(call apt_install,nix-bin python3-venv)
