#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release.sh COMMAND DIR: sign, push and verify the files that `make release` made in DIR. docs/verify.md is the user's page.
#
#   push DIR REGISTRY   images, charts and packages to an OCI registry; DIR/OCI-DIGESTS has the references
#   sign DIR            a Sigstore bundle for each file, and one for each SBOM of a file (keyless: needs the identity of a workflow)
#   sign-oci DIR        a signature for each reference in OCI-DIGESTS, and the SBOMs of images and packages
#   verify DIR          everything that sign made, and the provenance
#   notes VERSION       the section of CHANGELOG.md; fails if it has no date
#
# COSIGN, HELM and ORAS are the programs, TAG is that of the images. IDENTITY and ISSUER are what verify expects. It needs jq.
set -euo pipefail
export LC_ALL=C
cosign=${COSIGN:-cosign} oras=${ORAS:-oras} helm=${HELM:-helm}
fail() { echo "release: $*" >&2; exit 1; }

# files prints the names in SHA256SUMS.
files() {
  [ -s "$1/SHA256SUMS" ] || fail "$1 has no SHA256SUMS"
  sed -E 's/^[0-9a-f]{64} [ *]//' "$1/SHA256SUMS"
}

# signed prints the names of all files with a signature: those in SHA256SUMS, and those that no build can repeat.
signed() { printf '%s\n' SHA256SUMS OCI-DIGESTS ropewalk.openvex.json ropewalk-agent.openvex.json && files "$1"; }

# sboms FILE [ARCH] prints the SBOMs of the programs in FILE. An image index has images of all architectures, and each image its own programs.
sboms() {
  local programs=ropewalk arches=${2-amd64 arm64} program arch
  case $1 in SHA256SUMS | OCI-DIGESTS | *.json | *.yaml | *.tgz | *-kustomize-*) return ;; esac
  case $1 in
  ropewalk-agent-image.tar) programs="ropewalk ropewalk-agent" ;;
  ropewalk-agent* | *-kubectl-*) programs=ropewalk-agent ;;
  esac
  case $1 in
  *-image.tar) ;;
  *arm64* | *aarch64*) arches=arm64 ;;
  *) arches=amd64 ;;
  esac
  for arch in $arches; do
    for program in $programs; do echo "$program-linux-$arch.cdx.json"; done
  done
}

# created is the time of the sources, so that the same packages have the same digests.
created="org.opencontainers.image.created=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%FT%TZ)"

# record NAME DIGEST FILE [ARCH] adds a line for OCI-DIGESTS. push writes them when all is pushed.
pushed=
record() {
  [[ $2 =~ ^sha256:[0-9a-f]{64}$ ]] || fail "pushing $3 to $1: got no digest, but \"$2\""
  pushed+="$1@$2 ${*:3}"$'\n'
}

# PLAIN_HTTP=1 is for a registry of a test.
push() {
  local dir=$1 registry=$2 file name digest arch images out plain=${PLAIN_HTTP:+--plain-http}
  rm -f "$dir/OCI-DIGESTS"
  for file in ropewalk-image.tar ropewalk-agent-image.tar; do
    name=$registry/${file%-image.tar}
    digest=$(tar -xOf "$dir/$file" index.json | jq -r '.manifests[].digest')
    record "$name" "$digest" "$file"
    images=$(tar -xOf "$dir/$file" "blobs/${digest/://}" | jq -r '.manifests[] | "\(.digest) \(.platform.architecture)"')
    "$oras" cp --from-oci-layout ${plain:+--to-plain-http} "$dir/$file@$digest" "$name:$TAG"
    while read -r digest arch; do record "$name" "$digest" "$file" "$arch"; done <<<"$images"
  done
  for file in "$dir"/*.tgz; do
    out=$($helm push $plain "$file" "oci://$registry/charts" 2>&1) || fail "pushing $file: $out"
    file=${file##*/} name=$registry/charts/${file%%-[0-9]*}
    record "$name" "$(sed -n 's/^Digest: //p' <<<"$out")" "$file"
    (cd "${0%/*}/../helm" && "$oras" push $plain "$name:artifacthub.io" --config /dev/null:application/vnd.cncf.artifacthub.config.v1+yaml \
      --annotation "$created" artifacthub-repo.yml:application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml)
  done
  for file in "$dir"/*.deb "$dir"/*.rpm; do
    file=${file##*/} name=$registry/packages/${file%%[-_][0-9]*}
    (cd "$dir" && "$oras" push $plain "$name:${file//[~+]/_}" --artifact-type application/vnd.ropewalk.package --annotation "$created" "$file")
    digest=$("$oras" resolve $plain "$name:${file//[~+]/_}")
    record "$name" "$digest" "$file"
  done
  printf %s "$pushed" >"$dir/OCI-DIGESTS"
}

sign() {
  local names f of
  names=$(signed "$1")
  for f in $names; do
    (cd "$1" && "$cosign" sign-blob --yes --bundle "$f.sigstore.json" "$f" >/dev/null)
    for of in $(sboms "$f"); do
      (cd "$1" && "$cosign" attest-blob --yes --type cyclonedx --predicate "$of" --bundle "$f.$of.sigstore.json" "$f" >/dev/null)
    done
  done
}

sign_oci() {
  local reference file arch of
  [ -s "$1/OCI-DIGESTS" ] || fail "$1/OCI-DIGESTS is missing: push first"
  while read -r reference file arch; do
    "$cosign" sign --yes "$reference" </dev/null
    for of in $(sboms "$file" "$arch"); do
      "$cosign" attest --yes --type cyclonedx --predicate "$1/$of" "$reference" </dev/null
    done
  done <"$1/OCI-DIGESTS"
}

verify() {
  local dir=$1 names all have differing f of with sums
  [ -n "${IDENTITY:-}" ] && [ -n "${ISSUER:-}" ] || fail "IDENTITY and ISSUER are not set"
  with=(--certificate-identity "$IDENTITY" --certificate-oidc-issuer "$ISSUER")
  sums=$(files "$dir") names=$(signed "$dir")
  all=$(for f in $names; do
    printf '%s\n' "$f" "$f.sigstore.json"
    for of in $(sboms "$f"); do echo "$f.$of.sigstore.json"; done
  done && echo provenance.sigstore.json)
  all=$(sort <<<"$all") have=$(find "$dir" -mindepth 1 -printf '%P\n' | sort)
  differing=$(comm -23 <(echo "$all") <(echo "$have"))
  [ -z "$differing" ] || fail "$dir lacks" $differing
  differing=$(comm -13 <(echo "$all") <(echo "$have"))
  [ -z "$differing" ] || fail "$dir has files that are not of this release:" $differing
  for f in $names; do
    "$cosign" verify-blob "${with[@]}" --bundle "$dir/$f.sigstore.json" "$dir/$f" >/dev/null || fail "the signature of $f is not valid"
  done
  (cd "$dir" && sha256sum --check --quiet --strict SHA256SUMS) || fail "files in $dir are changed"
  for f in $names; do
    for of in $(sboms "$f"); do
      "$cosign" verify-blob-attestation "${with[@]}" --type cyclonedx --bundle "$dir/$f.$of.sigstore.json" "$dir/$f" >/dev/null &&
        jq -e --slurpfile sbom "$dir/$of" '.dsseEnvelope.payload | @base64d | fromjson.predicate == $sbom[0]' "$dir/$f.$of.sigstore.json" >/dev/null ||
        fail "the SBOM $of of $f is not attested"
    done
  done
  for f in $sums; do
    "$cosign" verify-blob-attestation "${with[@]}" --type slsaprovenance1 --bundle "$dir/provenance.sigstore.json" "$dir/$f" >/dev/null ||
      fail "the provenance of $f is not valid"
  done
  echo "release: $(wc -w <<<"$names") files are signed by $IDENTITY"
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
*) fail "usage: release.sh push|sign|sign-oci|verify|notes …" ;;
esac
