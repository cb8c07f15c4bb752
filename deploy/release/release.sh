#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release.sh COMMAND DIR: sign, push and verify the files that `make release` made in DIR. docs/verify.md is the user's page.
#
#   sign DIR            a Sigstore bundle for each file, and one for the SBOM of each file that has one (keyless: needs the identity of a workflow)
#   push DIR REGISTRY   images, charts and packages to an OCI registry; DIR/OCI-DIGESTS has the references
#   sign-oci DIR        a signature for each reference in OCI-DIGESTS, and the SBOM of each image
#   verify DIR          everything that sign made, and the provenance
#   notes VERSION       the section of CHANGELOG.md; fails if it has no date
#
# COSIGN, HELM and ORAS are the programs, TAG is that of the images. IDENTITY and ISSUER are what verify expects. KEY signs and verifies with a key instead, for tests.
set -euo pipefail
cosign=${COSIGN:-cosign} oras=${ORAS:-oras} helm=${HELM:-helm}
fail() { echo "release: $*" >&2; exit 1; }

# files prints the names in SHA256SUMS.
files() { sed -E 's/^[0-9a-f]{64} [ *]//' "$1/SHA256SUMS"; }

# extras prints the files that no build can repeat: they are signed, and not in SHA256SUMS.
extras() { (cd "$1" && ls OCI-DIGESTS ./*.openvex.json 2>/dev/null | sed 's|^\./||') || true; }

# sbom FILE prints the SBOM of what FILE contains, if it contains a program.
sbom() {
  local program=ropewalk arch=amd64
  case $1 in SHA256SUMS | OCI-DIGESTS | *.json | *.yaml | *.tgz | *-kustomize-*) return ;; esac
  case $1 in ropewalk-agent* | *-kubectl-*) program=ropewalk-agent ;; esac
  case $1 in *arm64* | *aarch64*) arch=arm64 ;; esac
  echo "$program-linux-$arch.cdx.json"
}

sign() {
  local with=(--yes) f of
  [ -z "${KEY:-}" ] || with+=(--key "$KEY" --use-signing-config=false --tlog-upload=false)
  for f in SHA256SUMS $(files "$1") $(extras "$1"); do
    (cd "$1" && "$cosign" sign-blob "${with[@]}" --bundle "$f.sigstore.json" "$f" >/dev/null)
    of=$(sbom "$f")
    [ -z "$of" ] ||
      (cd "$1" && "$cosign" attest-blob "${with[@]}" --type cyclonedx --predicate "$of" --bundle "$f.sbom.sigstore.json" "$f" >/dev/null)
  done
}

# created is the time of the sources, so that the same packages have the same digests.
created="org.opencontainers.image.created=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%FT%TZ)"

# PLAIN_HTTP=1 is for a registry of a test.
push() {
  local dir=$1 registry=$2 file name digest out plain=${PLAIN_HTTP:+--plain-http}
  : >"$dir/OCI-DIGESTS"
  for file in ropewalk-image.tar ropewalk-agent-image.tar; do
    name=$registry/${file%-image.tar} out=$(tar -xOf "$dir/$file" index.json)
    digest=$(sed -E 's/.*"digest": ?"(sha256:[0-9a-f]{64})".*/\1/' <<<"$out")
    "$oras" cp --from-oci-layout ${plain:+--to-plain-http} "$dir/$file@$digest" "$name:$TAG"
    echo "$name@$digest $file" >>"$dir/OCI-DIGESTS"
  done
  for file in "$dir"/*.tgz; do
    name=$(tar -xOzf "$file" --wildcards '*/Chart.yaml' | sed -n 's/^name: //p')
    out=$($helm push $plain "$file" "oci://$registry/charts" 2>&1) || fail "pushing $file: $out"
    digest=$(sed -n 's/^Digest: //p' <<<"$out")
    echo "$registry/charts/$name@$digest ${file##*/}" >>"$dir/OCI-DIGESTS"
    (cd "${0%/*}/../helm" && "$oras" push $plain "$registry/charts/$name:artifacthub.io" --config /dev/null:application/vnd.cncf.artifacthub.config.v1+yaml \
      --annotation "$created" artifacthub-repo.yml:application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml)
  done
  for file in "$dir"/*.deb "$dir"/*.rpm; do
    file=${file##*/} name=$registry/packages/${file%%[-_][0-9]*}
    (cd "$dir" && "$oras" push $plain "$name:${file//[~+]/_}" --artifact-type application/vnd.ropewalk.package --annotation "$created" "$file")
    digest=$("$oras" resolve $plain "$name:${file//[~+]/_}")
    echo "$name@$digest $file" >>"$dir/OCI-DIGESTS"
  done
}

sign_oci() {
  local reference file of with=(--yes)
  [ -s "$1/OCI-DIGESTS" ] || fail "$1/OCI-DIGESTS is missing: push first"
  while read -r reference file; do
    "$cosign" sign "${with[@]}" "$reference"
    of=$(sbom "$file")
    [ -z "$of" ] || "$cosign" attest "${with[@]}" --type cyclonedx --predicate "$1/$of" "$reference"
  done <"$1/OCI-DIGESTS"
  "$cosign" sign-blob "${with[@]}" --bundle "$1/OCI-DIGESTS.sigstore.json" "$1/OCI-DIGESTS" >/dev/null
}

verify() {
  local dir=$1 f of with n=0
  if [ -n "${KEY:-}" ]; then
    with=(--key "$KEY" --insecure-ignore-tlog)
  else
    [ -n "${IDENTITY:-}" ] && [ -n "${ISSUER:-}" ] || fail "IDENTITY and ISSUER are not set"
    with=(--certificate-identity "$IDENTITY" --certificate-oidc-issuer "$ISSUER")
  fi
  [ -f "$dir/SHA256SUMS" ] || fail "$dir has no SHA256SUMS"
  (cd "$dir" && sha256sum --check --quiet --strict SHA256SUMS) || fail "files in $dir are missing or changed"
  for f in "$dir"/*; do # what no checksum covers was not in the release
    f=${f##*/}
    case $f in SHA256SUMS | *.sigstore.json) continue ;; esac
    { files "$dir"; extras "$dir"; } | grep -qxF "$f" || fail "$dir/$f is not in SHA256SUMS"
  done
  for f in SHA256SUMS $(files "$dir") $(extras "$dir"); do
    [ -f "$dir/$f.sigstore.json" ] || fail "$f has no signature ($f.sigstore.json)"
    "$cosign" verify-blob "${with[@]}" --bundle "$dir/$f.sigstore.json" "$dir/$f" >/dev/null || fail "the signature of $f is not valid"
    n=$((n + 1)) of=$(sbom "$f")
    if [ -n "$of" ]; then
      "$cosign" verify-blob-attestation "${with[@]}" --type cyclonedx --bundle "$dir/$f.sbom.sigstore.json" "$dir/$f" >/dev/null ||
        fail "the SBOM of $f is not attested"
    fi
    if [ -z "${KEY:-}" ] && files "$dir" | grep -qxF "$f"; then
      "$cosign" verify-blob-attestation "${with[@]}" --type slsaprovenance1 --bundle "$dir/provenance.sigstore.json" "$dir/$f" >/dev/null ||
        fail "the provenance of $f is not valid"
    fi
  done
  echo "release: $n files are signed by ${IDENTITY:-$KEY}"
}

notes() {
  local heading
  heading=$(grep -F "## [${1#v}] - " CHANGELOG.md) || fail "CHANGELOG.md has no section ${1#v}"
  [[ $heading =~ \ [0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] || fail "CHANGELOG.md: the section of ${1#v} has no date"
  awk -v heading="$heading" '$0 == heading {on = 1; next} /^## \[/ {on = 0} on' CHANGELOG.md
}

case ${1:-} in
sign | verify) [ $# = 2 ] || fail "usage: $1 DIR"; "$1" "$2" ;;
sign-oci) [ $# = 2 ] || fail "usage: $1 DIR"; sign_oci "$2" ;;
push) [ $# = 3 ] && [ -n "$3" ] || fail "usage: push DIR REGISTRY"; push "$2" "$3" ;;
notes) [ $# = 2 ] || fail "usage: notes VERSION"; notes "$2" ;;
*) fail "usage: release.sh sign|push|sign-oci|verify|notes …" ;;
esac
