#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci.sh TARGETS BESIDE: run make's targets in two lists, and print the time of each target and of the slowest tests.
#
# TARGETS run one after the other. BESIDE run beside them, also one after the other, with CPU time that they leave (SCHED_IDLE), which may
# be none for minutes. So BESIDE must not measure time, have deadlines, or use the network namespaces or devices of the host. Their output
# is printed when they have ended. The first failure ends the run, at the latest when the present one of TARGETS has ended.
set -uo pipefail
read -ra targets <<<"$1"
read -ra beside <<<"$2"
export CI_TIMES=$PWD/build/ci
rm -rf "$CI_TIMES" && mkdir -p "$CI_TIMES" && : >"$CI_TIMES/targets"
idle=(nice -n 19)
chrt --idle 0 true 2>/dev/null && idle=(chrt --idle 0)
set -m # each background job is a process group, which can be killed whole

# timed TARGET PREFIX...: make TARGET, with PREFIX in front of the command.
timed() {
  local target=$1 began=$SECONDS code
  shift
  echo "ci: $(date +%T) $target began"
  "$@" make --no-print-directory "$target" </dev/null &
  running=$!
  wait "$running" # not in the foreground: a signal must end the run at once
  code=$?
  local result=passed took=$((SECONDS - began))
  [ "$code" = 0 ] || result=FAILED
  printf '%4d min %02d s  %-6s  %s%s\n' $((took / 60)) $((took % 60)) $result "$target" "${1:+ (beside)}" | tee -a "$CI_TIMES/targets" | sed 's/^ */ci: /'
  return "$code"
}

run_beside() {
  set +m # the group of this list holds its targets
  for target in "${beside[@]}"; do
    timed "$target" "${idle[@]}" >"$CI_TIMES/$target.log" 2>&1
    code=$?
    mv "$CI_TIMES/$target.log" "$CI_TIMES/$target.ended"
    [ $code = 0 ] || return $code
  done
}

# show_ended prints the output of BESIDE that ended, once.
show_ended() {
  for target in "${beside[@]}"; do
    [ ! -e "$CI_TIMES/$target.ended" ] || { cat "$CI_TIMES/$target.ended" && rm "$CI_TIMES/$target.ended"; }
  done
}

finish() {
  kill -- -"$side" -"${running:-$side}" 2>/dev/null
  wait 2>/dev/null
  show_ended
  for target in "${beside[@]}"; do # killed before its end
    [ ! -e "$CI_TIMES/$target.log" ] || echo "ci: $target was ended early; its output is in $CI_TIMES/$target.log"
  done
  printf '\nThe slowest tests, whose time may contain that of others which ran meanwhile:\n'
  cat "$CI_TIMES"/*.json 2>/dev/null | gotestsum tool slowest --num 20
  printf '\nThe targets:\n'
  cat "$CI_TIMES/targets"
  printf 'ci: %d min %02d s, status %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"
}

run_beside </dev/null &
side=$!
trap 'finish $?' EXIT
trap 'exit 130' INT TERM
for target in "${targets[@]}"; do
  timed "$target" || exit 1
  show_ended
  grep -q FAILED "$CI_TIMES/targets" && exit 1
done
wait "$side" || exit 1
