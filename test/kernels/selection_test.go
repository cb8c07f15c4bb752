// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// defaultPackages are those whose behaviour depends on the kernel.
var defaultPackages = []string{
	"./pkg/tun", "./pkg/underlay/udp", "./pkg/offload", "./pkg/hostnet", "./pkg/datapath", "./pkg/datapath/hook", "./pkg/adopt",
	"./pkg/kube", "./test/interop", "./test/spread",
}

// elsewhere are tests that are about ropewalk and no kernel, and take minutes in an emulator: `make test` runs them.
func elsewhere() []string {
	return []string{
		"TestXDPCarriesTrafficInBothDirections", "TestXDPCarriesTrafficOverIPv4", "TestXDPRekeysWithoutPacketLoss",
		"TestXDPFollowsRoamingPeer", "TestUnderlayChangesUnderTrafficWithoutRekey", "TestXDPResumesAfterLinkFlap",
		"TestKilledDaemonDetachesXDPProgram",
		"TestConnectionsSurviveTenUpgrades", "TestConnectionsSurviveUpgradesOverXDP", "TestTunnelSurvivesFailedUpgrade",
		"TestUpgradeCommandReplacesRunningDaemon", "TestConcurrentTakeoverIsRefused",
		"TestRenamedInterfaceSurvivesRepeatedUpgrades",
		"TestFlowsFallEvenlyOnLanes", "TestNoSingleDatagramHasDataRefused", "TestFilterLooksAllAlongATrain",
		"TestProgramSelectsAsTheSelectionSays", "TestProgramIsNeverTooLong",
		"TestPeersSetTogetherAreAsThoseSetOneByOne", "TestSpreadChoosesLanesAsTheModelDoes", "TestAFullTableOfFlowsKeepsOrder",
		"TestABudgetIsATokenBucket", "TestOldLoadsFadeAsInTheModel", "TestOnePacketIsOneCount", "TestLanesTakeCPUsInTurn",
		"TestMorePeersThanAreReadAtOnceAreListed", "TestAFullMapOfPeersRefusesOneMore", "TestAFullMapOfIndicesRefusesOneMore",
		"TestFailedAttachLeavesAllAsItWas", "TestSecondTunnelKeepsHowTheDeviceIsAttached", "TestUpgradeMissesNoPacket",
		"TestForeignPinIsNamedAndHidesNoOtherDevice", "TestRenamedDeviceIsNotAttachedTwice", "TestRenamedDeviceIsReported",
		"TestPlansOfTunnelsInterlock", "TestGatherCanBeChanged", "TestWatchFollowsPeers",
		"TestAnEngineThatDoesNotSpreadIsOneFlow", "TestSpreadIsOffBehindANAT", "TestSpreadIsOffThroughAStatefulFirewall",
	}
}

// leftToOthers are tests for which one kernel or two are enough: what old kernels lack is missed on the oldest, what others' modules do to
// a spread tunnel is seen on the newest, and the kernel's WireGuard talks on both as it does on those between.
func leftToOthers(kernel string) []string {
	var tests []string
	if kernel != oldest() {
		tests = append(tests, "TestSocketsKeepTheContract", "TestSocketsKeepTheSelectorsContract", "TestEachFlowOfAnEngineTunnelKeepsAPort")
	}
	if kernel != newest() {
		tests = append(tests, "TestFlowsKeepOrderOnABadNetwork", "TestSpreadHealsWhenTheDeviceIsBack", "TestPortPerPacketReorders",
			"TestSpreadPutsNoTCPSegmentOutOfOrder")
	}
	if kernel != oldest() && kernel != newest() {
		tests = append(tests, "TestWrongKeyIsRejectedUntilCorrected", "TestSimultaneousHandshakesLeaveWorkingTunnel",
			"TestHandshakeTeachesResponderTheEndpoint", "TestTunnelRecoversAfterPeerRestart", "TestEndpointFollowsRoamingPeer",
			"TestPersistentKeepaliveNeedsNoTraffic", "TestReceiverAnswersOneWayDataWithKeepalive", "TestRekeysAfterTwoMinutesWithoutPacketLoss",
			"TestStockPeerReceivesOnlyWireGuardMessages", "TestStockPeerLogsInvalidMessages")
	}
	return tests
}

func oldest() string { return matrix[0].name }
func newest() string { return matrix[len(matrix)-1].name }

// costly are the steps whose eBPF takes minutes to verify in an emulator, and the kernels they run on. ./pkg/kube runs in short on all.
func costly() map[string][]string {
	return map[string][]string{
		"datapath": {oldest(), newest()},
		"hook":     {oldest(), newest()},
		"adopt":    {newest()},
	}
}

// spared tells whether a step is left out on a kernel.
func spared(kernel, step string) bool {
	on, ok := costly()[step]
	return ok && !slices.Contains(on, kernel)
}

// TestSkippedTestsExist: a name that no test has any more leaves out nothing, which nobody would see.
func TestSkippedTestsExist(t *testing.T) {
	tests := testNames(t, os.DirFS("../.."))
	names := elsewhere()
	for _, s := range matrix {
		names = append(names, leftToOthers(s.name)...)
	}
	for _, name := range names {
		if !tests[name] {
			t.Errorf("there is no test %s", name)
		}
	}
	for step := range costly() {
		if !slices.ContainsFunc(defaultPackages, func(p string) bool { return path.Base(p) == step }) {
			t.Errorf("there is no step %s", step)
		}
		if !slices.ContainsFunc(matrix, func(s series) bool { return !spared(s.name, step) }) {
			t.Errorf("%s runs on no kernel", step)
		}
	}
}

// testNames are those of all the tests in defaultPackages.
func testNames(t *testing.T, root fs.FS) map[string]bool {
	t.Helper()
	names, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, dir := range defaultPackages {
		files, err := fs.Glob(root, strings.TrimPrefix(dir, "./")+"/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := fs.ReadFile(root, name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range declared.FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
		}
	}
	return names
}
