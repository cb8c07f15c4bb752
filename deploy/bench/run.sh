#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh price HOURS: print the price of a pair of each type in prices.csv.
# run.sh CLOUD TYPE FROM HOURS: measure between a pair of that type, and delete it. FROM is the prefix from which ssh is allowed.
# run.sh end CLOUD: delete the pair of a run that could not.
#
# run.sh deletes the pair at its end, also after an error or a signal, and ends before HOURS have passed. If this machine fails, each
# instance powers itself off after HOURS. See docs/clouds.md for the bill after that.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=deploy/bench
tofu=${TOFU:-$(command -v tofu || command -v terraform || true)}

# notes: print the origin of the prices.
notes() { sed -n 's/^# \(List\|prices\)/\1/p' $here/prices.csv; }

# prices HOURS CLOUD TYPE: one line for each match; "" matches all.
prices() {
  awk -F, -v hours="$1" -v cloud="$2" -v type="$3" '/^#/ || cloud && $1 != cloud || type && $2 != type { next }
    { printf "%-8s %-14s %-6s 2 × %5.2f %s/h, for %d h at most: %6.2f %s\n", $1, $2, $3, $4, $5, hours, 2 * $4 * hours, $5 }' $here/prices.csv
}

die() {
  echo "bench-clouds: $*" >&2
  exit 1
}

if [ "${1-}" = price ]; then
  prices "$2" "" ""
  notes
  exit
fi
[ "${1-}" = end ] || [ $# = 4 ] || die "want CLOUD TYPE FROM HOURS: make bench-clouds CLOUD=aws TYPE=c6in.16xlarge FROM=192.0.2.7/32"
cloud=$1 type=${2-} from=${3-} hours=${4-}
[ "$1" != end ] || cloud=$type
[ -n "$cloud" ] && [ -d "$here/$cloud" ] || die "there is no $here/$cloud: want aws, google or hetzner"
[ -n "$tofu" ] || die "missing: OpenTofu (https://opentofu.org/docs/intro/install/)"
state=$PWD/build/clouds/$cloud

# tf COMMAND ARGUMENTS...: OpenTofu with the state of this cloud.
tf() {
  local command=$1
  shift
  TF_DATA_DIR=$state/data "$tofu" -chdir="$here/$cloud" "$command" "$@"
}

# delete CODE: delete the pair, and exit with the code.
delete() {
  trap '' INT TERM HUP
  trap - EXIT
  for _ in 1 2 3; do
    tf destroy -state="$state/tfstate" -var-file="$state/pair.tfvars" -auto-approve -input=false && rm -f "$state/tfstate"* && exit "$1"
    sleep "${RETRY:-20}"
  done
  die "THE PAIR IS NOT DELETED, AND COSTS MONEY. Try again: make bench-clouds-end CLOUD=$cloud. Or delete all that is named ropewalk-bench in the console of $cloud"
}
if [ "$1" = end ]; then
  [ -e "$state/tfstate" ] || die "$state has no pair"
  delete 0
fi

[[ $hours =~ ^([1-9]|1[0-2])$ ]] || die "HOURS is $hours: want 1 to 12"
price=$(prices "$hours" "$cloud" "$type")
[ -n "$price" ] || die "$here/prices.csv has no $cloud,$type"
[ ! -e "$state/tfstate" ] || die "the pair of another run may be left: make bench-clouds-end CLOUD=$cloud"
arch=$(awk -F, -v cloud="$cloud" -v type="$type" '$1 == cloud && $2 == type { print $3 }' $here/prices.csv)

echo "$price"
notes
read -rp "Type yes to start them: " answer
[ "$answer" = yes ] || die "nothing was started"

mkdir -p "$state" && rm -f "$state"/{key,key.pub,known}
ssh-keygen -q -t ed25519 -N '' -C ropewalk-bench -f "$state/key"
ssh=(ssh -F "$state/ssh_config")
cat >"$state/ssh_config" <<END
User root
BatchMode yes
ConnectTimeout 10
IdentitiesOnly yes
IdentityFile $state/key
UserKnownHostsFile $state/known
StrictHostKeyChecking accept-new
END
cat >"$state/pair.tfvars" <<END
type         = "$type"
architecture = "$arch"
from         = "$from"
hours        = $hours
public_key   = "$(<"$state/key.pub")"
END

began=$SECONDS
tf init -input=false
trap 'delete $?' EXIT
trap 'exit 130' INT TERM HUP
tf apply -state="$state/tfstate" -var-file="$state/pair.tfvars" -auto-approve -input=false
read -r a b <<<"$(tf output -state="$state/tfstate" -raw public)"
private=$(tf output -state="$state/tfstate" -raw private)
mtu=$(tf output -state="$state/tfstate" -raw mtu)

for host in "$a" "$b"; do # each has to be about to power itself off
  until "${ssh[@]}" "$host" systemctl is-active bench-end.timer; do
    [ $((SECONDS - began)) -lt 900 ] || die "$host does not answer, or would not power itself off"
    sleep "${RETRY:-5}"
  done
done
# Without the options of the make that has called this.
env -u MAKEFLAGS -u MAKEOVERRIDES -u MFLAGS timeout --foreground $((hours * 3600 - 600 - SECONDS + began)) \
  make --no-print-directory bench-hosts "A=$a" "B=$b" HOSTS_ARCH="$arch" \
  ARGS="--ssh '${ssh[*]}' --addresses $private --target $type --mtu $mtu ${ARGS-}"
