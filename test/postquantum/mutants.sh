#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mutants.sh [REGEXP]: put one fault after the other into a copy of the repository, and check that the tests of post-quantum exchanges find it.
# REGEXP selects faults by their descriptions. It prints each fault and the first test that finds it, and fails if one is not found. With APPLY it only checks
# that the sources have not left the faults behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
only=${1:-.}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -co --exclude-standard -z -- go.mod go.sum '*.go' '*.s' '*.o' '*.json' '*.py' | xargs -0 cp --parents -t "$copy"
cd "$copy"
status=0
pq=pkg/protocol/postquantum run=.

# mutant DESCRIPTION FILE PERL PACKAGE...: the program in Perl changes the file, which still compiles, and a test of the packages must fail.
mutant() {
  local what=$1 file=$2 program=$3 log=$copy/log found
  shift 3
  [[ $what =~ $only ]] || return 0
  cp "$file" "$copy/before"
  perl -0pi -e "$program" "$file"
  if cmp -s "$file" "$copy/before"; then
    echo "$what: the fault does not apply to $file"
    status=1
  elif [ -n "${APPLY:-}" ]; then
    echo "$what: the fault applies"
  elif ! go vet "$@" >"$log" 2>&1; then
    echo "$what: the fault does not compile:"
    cat "$log"
    status=1
  elif go test -count=1 -short -timeout 5m -run "$run" "$@" >"$log" 2>&1; then
    echo "$what: NOT FOUND"
    status=1
  else
    found=$(grep -oE -m1 -- '--- FAIL: \S+|^panic: .*' "$log" || true)
    echo "$what: ${found:-no test fails, but the run does}"
  fi
  cp "$copy/before" "$file"
}

mutant 'transcript without the static keys' $pq/schedule.go 's/offerer\[:\], answerer\[:\], //; s/offerer, answerer \*noise/_, _ *noise/' ./$pq
mutant 'transcript without the hash of the session' $pq/schedule.go 's/ session\[:\],//; s/session \*\[/_ *[/' ./$pq
mutant 'transcript without the encapsulation key' $pq/schedule.go 's/ session\[:\], ek, ct/ session[:], ct/; s/ek, ct \[\]byte\)/_, ct []byte)/' ./$pq
mutant 'transcript with swapped roles' $pq/schedule.go 's/offerer\[:\], answerer\[:\]/answerer[:], offerer[:]/' ./$pq
mutant 'secret of the session not mixed in' $pq/schedule.go 's/\(\*\[noise.KeySize\]byte\)\(exporter\), shared/new([noise.KeySize]byte), shared/; s/exporter \*noise/_ *noise/' ./$pq
mutant 'secret of the KEM not mixed in' $pq/schedule.go 's/\(exporter\), shared, /(exporter), nil, /; s/shared \[\]byte/_ []byte/' ./$pq
mutant 'configured preshared key replaced' $pq/schedule.go 's/noise.KDF\(\(\*\[noise.KeySize\]byte\)\(psk\), key\[:\], out\)/*out = *key/; s/func effective\(psk, key/func effective(_, key/' ./$pq
mutant 'tag not checked' $pq/kem.go 's/ok = subtle.ConstantTimeCompare\(r.tag\[:\], tag\) == 1/_, ok = tag, true/' ./$pq
mutant 'base session does not empty the ring' $pq/exchange.go 's/\tdefault:\n\t\tx.Ring.Erase\(\)\n//' ./$pq
mutant 'answerer names an uncertain key although it has a certain one' $pq/ring.go 's/if r.entries\[i\].Certain \{/if true {/' ./$pq
mutant 'new key displaces older ones before it is confirmed' $pq/ring.go 's/(\tr.entries = append\(r.entries, e\)\n)/\tr.Erase()\n$1/' ./$pq
mutant 'older keys end at once' $pq/ring.go 's/= now \+ session.RejectAfterTime/= now + session.RejectAfterTime*0/' ./$pq
mutant 'ring of two keys' $pq/ring.go 's/MaxKeys = 8/MaxKeys = 2/' ./$pq
mutant 'ninth key displaces the one that the peer names' $pq/ring.go 's/ \&\& e.ID != inUse//; s/\t+inUse = e.ID/_ = inUse/' ./$pq
mutant 'used key survives idle erasure' $pq/ring.go 's/EraseUsed\(\) \{ r/EraseUsed() { new(Ring)/' ./$pq
mutant 'unused key does not survive idle erasure' $pq/ring.go 's/return e.Used \}/return true }/; s/func\(e \*Entry\) bool \{ return true/func(*Entry) bool { return true/' ./$pq
mutant 'erased key is not overwritten' $pq/ring.go 's/r.entries = slices.Delete\(r.entries, i, i\+1\)/r.entries = append(r.entries[:i:i], r.entries[i+1:]...)/' ./$pq
mutant 'both ends yield in glare' $pq/exchange.go 's/ \&\& bytes.Compare\(x.local\[:\], x.remote\[:\]\) < 0/ \&\& bytes.Equal(x.local[:], x.remote[:])/' ./$pq
mutant 'no end yields in glare' $pq/exchange.go 's/ \&\& bytes.Compare\(x.local\[:\], x.remote\[:\]\) < 0/ \&\& !bytes.Equal(x.local[:], x.remote[:])/' ./$pq
mutant 'second exchange in one session' $pq/session.go 's/s.exporter, s.spent = noise.SessionKey\{\}, true/s.spent = len(s.hash) == 0/' ./$pq
mutant 'part counted for another session' $pq/assembly.go 's/a.session != s/a.data == nil/' ./$pq
mutant 'ciphertext counted for another session' $pq/exchange.go 's/x.state == Offered \&\& s == x.current:/x.state == Offered:/' ./$pq
mutant 'unlimited answers' $pq/exchange.go 's/paid-now > \(answerBurst-1\)\*answerInterval/paid < now/' ./$pq
mutant 'key made anew at each try' $pq/exchange.go 's/(func \(x \*Exchange\) sendKey\(now int64\) Actions \{\n)/$1\tif x.tries > 0 {\n\t\tx.own, _ = newKeyPair(&x.keyPair, bytes.NewReader(bytes.Repeat([]byte{byte(x.tries)}, 64)))\n\t}\n/' ./$pq
mutant 'naming a key changes the ring' $pq/ring.go 's/(func \(r \*Ring\) Effective.*\n\tif e := r.find\(id\); e != nil \{\n)/$1\t\te.Certain = true\n/' ./$pq
mutant 'exchange of the session before goes on' $pq/exchange.go 's/\t\tx.current.Wipe\(\)\n\t\}\n\tx.current, x.state/\t}\n\tx.current, x.state/' ./$pq
mutant 'key pair kept after the exchange' $pq/exchange.go 's/x.keyPair, x.tries, x.timer = keyPair\{\}, 0, 0/x.tries, x.timer = 0, 0/' ./$pq
mutant 'zero secret accepted' $pq/kem.go 's/, make\(\[\]byte, mlkem.SharedKeySize\)\) == 0/, make([]byte, mlkem.SharedKeySize)) >= 0/' ./$pq

# Those of package device, whose other tests take minutes.
run='Quantum|Required|Policy|Auto|Restarted|Stock|Waking|Erasure|Upgrade|Changed|Unfit|Silence|Effective|Answerer|Preshared|ExchangesWait|TurnLasts|SameBytes'
dev=pkg/tunnel/device machine=pkg/tunnel/internal/pqexchange
mutant 'responder ignores the id and takes the newest key' $machine/keys.go 's/(id, named := t.Named\(\)\n)/$1\tif list := m.Keys(); len(list) > 0 {\n\t\tid = list[len(list)-1].ID\n\t}\n/' ./$dev
mutant 'responder answers base although it has the key' $dev/handshake.go 's/PresharedKey\(named, /PresharedKey(postquantum.Key{}, /; s/(func \(h \*handshakes\) createResponse.*\n)/$1\t_ = named\n/' ./$dev
mutant 'initiator does not try base' $machine/keys.go 's/ConsumeResponse\(msg, \&mixed, psk\)/ConsumeResponse(msg, \&mixed)/' ./$dev
mutant 'required sends staged packets under base' $dev/session.go 's/if b.keys.Restricted\(\) \{\n\t\ts.clearCurrent\(\)\n\t\} else \{\n\t\ts.publish\(b.keys\)\n\t\}/s.publish(b.keys)/' ./$dev
mutant 'required accepts data under base' pkg/dataplane/internal/receive/deliver.go 's/case keys.Restricted\(\):/case keys.Restricted() \&\& false:/' ./$dev
mutant 'some forged responses count as mismatch' $machine/keys.go 's/minUnfit = 9/minUnfit = 1/' ./$dev
mutant 'ring not overwritten by a copy of the machine' $dev/events.go 's/\t\tp.quantum.machine.Load\(\).Erase\(\).*\n//' ./$dev
mutant 'ring not overwritten when the interface goes down' $dev/peer.go 's/\tp.quantum.machine.Load\(\).Erase\(\)\n//' ./$dev
mutant 'ring missing in the state that is handed over' $dev/handover.go 's/, Exchanges: p.quantum.save\(\)//' ./$dev
mutant 'upgrade in place forgets the ring' $machine/keys.go 's/m.exchange.Ring.Restore\(keys\)/_ = keys/' ./$dev
mutant 'exchanges do not wait for handshakes' $dev/device.go 's/if d.runUrgent\(\) \{/if false \&\& d.runUrgent() {/' ./$dev
mutant 'turn ends before the session with the key' $machine/machine.go 's/ \|\| m.upgrading \}/ \}/' ./$dev
mutant 'initiation with a new key repeated at once' $dev/handshake.go 's/if patient \{/if false \&\& patient {/' ./$dev
mutant 'peer without keys gets another timestamp' $machine/keys.go 's/\treturn t.Signed\(\)\n/\tif m != nil {\n\t\treturn t.Naming\(0\)\n\t}\n\treturn t.Signed\(\)\n/' ./$dev
exit $status
