#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh price HOURS: print the price of a pair of each type in prices.csv.
# run.sh CLOUD TYPE FROM HOURS: measure between a pair of that type, and delete it. FROM is the prefix from which ssh is allowed.
# run.sh end CLOUD: delete the pair of a run that could not.
#
# run.sh deletes the pair at its end, also after an error or a signal, and ends before HOURS have passed. If this machine fails, each
# instance powers itself off after HOURS. See docs/clouds.md for the bill after that. pair.tfvars stays until the provider lists no instance.
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

tf=(env "TF_DATA_DIR=$state/data" "$tofu" "-chdir=$here/$cloud")
pair=("-state=$state/tfstate" "-var-file=$state/pair.tfvars" -auto-approve -input=false)
case $cloud in
aws) console='https://console.aws.amazon.com/ec2/home?region=us-east-1#Instances:' ;;
google) console=https://console.cloud.google.com/compute/instances ;;
hetzner) console=https://console.hetzner.com/projects ;;
esac

# instances: list the instances named ropewalk-bench. The state lacks one if OpenTofu died while it started.
instances() {
  local answer
  case $cloud in
  aws)
    aws ec2 describe-instances --region us-east-1 --query 'Reservations[].Instances[].InstanceId' --output text \
      --filters Name=tag:Name,Values=ropewalk-bench Name=instance-state-name,Values=pending,running,stopping,stopped
    ;;
  google)
    answer=$(gcloud auth application-default print-access-token) &&
      CLOUDSDK_AUTH_ACCESS_TOKEN=$answer gcloud compute instances list --project "$GOOGLE_PROJECT" --filter 'name~^ropewalk-bench' --format 'value(name)'
    ;;
  hetzner)
    answer=$(curl -fsS --max-time 60 -H @<(echo "Authorization: Bearer $HCLOUD_TOKEN") 'https://api.hetzner.cloud/v1/servers?label_selector=ropewalk-bench') || return
    [[ ${answer//[[:space:]]/} =~ \"servers\":\[(\])? ]] || return
    [ -n "${BASH_REMATCH[1]}" ] || grep -o '"ropewalk-bench-[^"]*"' <<<"$answer"
    ;;
  esac
}

# delete CODE: delete the pair, and exit with the code. The terminal may be gone: nothing is written to it before the end.
delete() {
  local left
  trap '' INT TERM HUP QUIT PIPE
  trap - EXIT
  for job in $(jobs -pr); do kill "$job" || true; done 2>/dev/null
  for _ in 1 2 3; do
    left=unknown
    if setsid --wait "${tf[@]}" destroy "${pair[@]}" >>"$state/log" 2>&1 && left=$(instances 2>>"$state/log") && [ -z "$left" ]; then
      rm -f "$state"/tfstate* "$state/pair.tfvars"
      exit "$1"
    fi
    sleep "${RETRY:-20}"
  done
  die "THE PAIR MAY BE LEFT, AND COST MONEY (instances: ${left:-unknown}; see $state/log). Delete all that is named ropewalk-bench at $console
Then: make bench-clouds-end CLOUD=$cloud"
}
if [ "$1" = end ]; then
  [ ! -e "$state/pair.tfvars" ] || delete 0
  left=$(instances) || left=unknown
  die "$state has no pair. Instances named ropewalk-bench at $console: ${left:-none}"
fi

[[ $hours =~ ^([1-9]|1[0-2])$ ]] || die "HOURS is $hours: want 1 to 12"
price=$(prices "$hours" "$cloud" "$type")
[ -n "$price" ] || die "$here/prices.csv has no $cloud,$type"
byte='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
[[ $from =~ ^(${byte}[.]){3}$byte/(2[4-9]|3[0-2])$ ]] || die "FROM is ${from:-missing}: want your own IPv4 address, such as 192.0.2.7/32: /24 at most"
[ ! -e "$state/pair.tfvars" ] || die "the pair of another run may be left: make bench-clouds-end CLOUD=$cloud"
arch=$(awk -F, -v cloud="$cloud" -v type="$type" '$1 == cloud && $2 == type { print $3 }' $here/prices.csv)
left=$(instances) || die "cannot list the instances of $cloud: it takes the credentials, and aws, gcloud or curl (docs/clouds.md)"
[ -z "$left" ] || die "$cloud has instances named ropewalk-bench: $left. Delete them first at $console"

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
began=$SECONDS
"${tf[@]}" init -input=false
cat >"$state/pair.tfvars" <<END
type         = "$type"
architecture = "$arch"
from         = "$from"
hours        = $hours
public_key   = "$(<"$state/key.pub")"
END
trap 'delete $?' EXIT
trap 'exit 130' INT TERM HUP QUIT PIPE
echo "OpenTofu starts the pair, and writes to $state/log. Ctrl-C deletes the pair when that has ended."
# setsid: a signal of the terminal, or its loss, would end OpenTofu between the start of an instance and the state.
setsid --wait "${tf[@]}" apply "${pair[@]}" >"$state/log" 2>&1 || die "OpenTofu failed: $(tail -n 20 "$state/log")"
public=$("${tf[@]}" output -state="$state/tfstate" -raw public)
read -r a b <<<"$public"
private=$("${tf[@]}" output -state="$state/tfstate" -raw private)
mtu=$("${tf[@]}" output -state="$state/tfstate" -raw mtu)

for host in "$a" "$b"; do # each has to be about to power itself off
  until "${ssh[@]}" "$host" systemctl is-active bench-end.timer; do
    [ $((SECONDS - began)) -lt 900 ] || die "$host does not answer, or would not power itself off"
    sleep "${RETRY:-5}"
  done
done
# Without the options of the make that has called this. In the background, since bash answers signals only in wait.
env -u MAKEFLAGS -u MAKEOVERRIDES -u MFLAGS timeout $((hours * 3600 - 600 - SECONDS + began)) \
  make --no-print-directory bench-hosts "A=$a" "B=$b" HOSTS_ARCH="$arch" \
  ARGS="--ssh '${ssh[*]}' --addresses $private --target $type --mtu $mtu ${ARGS-}" &
wait $!
