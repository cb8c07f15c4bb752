// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// defaultPackages are the packages whose behaviour depends on the kernel.
var defaultPackages = []string{
	"./pkg/netio/tun", "./pkg/netio/underlay/udp", "./pkg/protocol/offload", "./pkg/netio/hostnet", "./pkg/ebpf/programs", "./pkg/ebpf/hook", "./pkg/ebpf/guard", "./pkg/ebpf/spreader",
	"./pkg/cluster/agent", "./pkg/cluster/host", "./test/interop", "./test/spread", "./test/flannel", "./test/compare", "./test/bench/remote",
}

// hostOnlyTests returns tests that do not depend on the kernel and take minutes in an emulator. `make test` runs them on the host.
func hostOnlyTests() []string {
	return []string{
		"TestCallsRunDownTheFiles", "TestDocumentationListsAgentMetrics", // read files of the sources
		"TestRouterSendsAgainAfterDrop",                                   // tests a helper of tests
		"TestKernelMergesPacketsIntoSameTrains", "FuzzMergeMatchesKernel", // GRO ends trains at each tick: too short for an emulator
		"TestXDPCarriesTrafficInBothDirections", "TestXDPCarriesTrafficOverIPv4", "TestXDPRekeysWithoutPacketLoss",
		"TestXDPFollowsRoamingPeer", "TestUnderlayChangesUnderTrafficWithoutRekey", "TestXDPResumesAfterLinkFlap",
		"TestKilledDaemonDetachesXDPProgram",
		"TestConnectionsSurviveTenUpgrades", "TestConnectionsSurviveUpgradesOverXDP", "TestTunnelSurvivesFailedUpgrade",
		"TestUpgradeCommandReplacesRunningDaemon", "TestConcurrentTakeoverIsRefused",
		"TestRenamedInterfaceSurvivesRepeatedUpgrades",
		"TestFlowsFallEvenlyOnLanes", "TestSingleDatagramCannotBlockCoalescedData", "TestFilterSamplesWholeTrain",
		"TestProgramMatchesGoModel", "TestProgramIsNeverTooLong",
		"TestSetPeersMatchesOneByOne", "TestLaneChoiceMatchesGoModel", "TestFullFlowTableKeepsFlowsOnLanes",
		"TestRateLimitIsTokenBucket", "TestLoadDecayMatchesGoModel", "TestRandomPacketsCountAtMostOnce",
		"TestPeersListsSeveralBatches", "TestFullPeerMapReturnsErrFull", "TestFullIndexMapReturnsErrFull",
		"TestFailedAttachIsRolledBack", "TestSecondTunnelInheritsDeviceSettings", "TestUpgradeProcessesEachPacket",
		"TestForeignPinIsReportedForItsDeviceOnly", "TestRenamedDeviceIsNotAttachedTwice", "TestRenamedDeviceIsReported",
		"TestTunnelsMayInterleavePlannedPorts", "TestGatherCanBeChanged", "TestWatchFollowsPeers",
		"TestPathMTUIsMeasured", "TestSparseFlowsCostFewPackets",
		"TestFullGuardReturnsErrFull", "TestGuardChangesShowOldOrNewClass",
		"TestImplementationsDoEqualWork", "FuzzSameDecision", "FuzzSameAnswers", "FuzzSameConfiguration", // in memory
		"TestEngineWithoutSpreadUsesOnePort", "TestSpreadIsOffBehindNAT", "TestSpreadIsOffBehindStatefulFirewall",
		"TestXDPGuardPassesMasqueradedTunnel",
		"TestRouteIntoTunnelCausesNoStorm", "TestRouteIntoTunnelLeavesNoPathMTU", "TestBurstOfSinglePacketsFitsTUNQueue", "TestFlapsLeaveNoMemory",
		"TestOlderReleaseInteroperates", "TestNoPacketIsLostAtTheChange",
	}
}

// testsOfOtherKernels returns tests that are skipped on a kernel because one or two others are enough. The oldest kernel shows which
// features old kernels lack. The newest shows how other kernel modules treat a spread tunnel. In-kernel WireGuard is tested on both.
func testsOfOtherKernels(kernel string) []string {
	var tests []string
	if kernel != oldest() {
		tests = append(tests, "TestSocketsPassContract", "TestSocketsPassSelectorContract", "TestEngineTunnelFlowsKeepTheirPort",
			"TestPathMTUToStockPeer", "TestOuterFragmentsArePermitted", "TestRouteMTULimitsPackets")
	}
	if kernel != newest() {
		tests = append(tests, "TestFlowsKeepOrderOnImpairedNetwork", "TestSpreadRecoversWhenDeviceReturns", "TestPortPerPacketReorders",
			"TestSpreadKeepsTCPSegmentsInOrder")
	}
	if kernel != oldest() && kernel != newest() {
		tests = append(tests, wireGuardTests()...)
	}
	return tests
}

// wireGuardTests returns tests of the kernel's WireGuard, whose protocol is the same in all kernels.
func wireGuardTests() []string {
	return []string{
		"TestWrongKeyIsRejectedUntilCorrected", "TestSimultaneousHandshakesLeaveWorkingTunnel",
		"TestHandshakeTeachesResponderTheEndpoint", "TestTunnelRecoversAfterPeerRestart", "TestEndpointFollowsRoamingPeer",
		"TestPersistentKeepaliveNeedsNoTraffic", "TestReceiverAnswersOneWayDataWithKeepalive", "TestRekeysAfterTwoMinutesWithoutPacketLoss",
		"TestStockPeerReceivesOnlyWireGuardMessages", "TestStockPeerLogsInvalidMessages",
		"TestStockPeerGetsNoExchange", "TestStockPeerAnswersWithEffectiveKey",
	}
}

// fullSteps returns the steps that KERNELS_GATE leaves out. The host runs the tests of spreader. The
// steps programs and spread load and attach the same eBPF programs.
func fullSteps() []string { return []string{"spreader", "flannel"} }

// fullTests returns the tests that KERNELS_GATE leaves out on a kernel. One kernel's WireGuard is
// enough. The host runs the tests of the first list, and of the last on a new kernel.
func fullTests(kernel string) []string {
	tests := []string{
		"TestEngineTunnelFlowsKeepTheirPort", "TestGatheredDatagramsArriveIntact", "TestSmallSendBufferPassesLargestDatagrams",
	}
	if kernel != newest() {
		tests = append(tests, "TestAgentsSpreadForeignWireGuardTunnels", "TestXDPUsesEveryQueueOfNIC", "TestZeroUDPChecksumIsSentAsAllOnes")
		tests = append(tests, wireGuardTests()...)
	}
	if kernel != oldest() {
		tests = append(tests, "TestReplacementCountsEachPacketOnce", "TestOtherProgramCannotJoinPorts")
	}
	return tests
}

// gateTests returns patterns of the tests that KERNELS_GATE runs of a step, if not all. The eBPF
// programs must load, call helpers, pass traffic and keep pins on each kernel. Their results for a
// packet are the same everywhere, and the verifier takes seconds in each test.
func gateTests() map[string]string {
	return map[string]string{"programs": "^(" + strings.Join([]string{
		"TestClassifyLoadsInEveryConfiguration", "TestSpreadLoadsInEveryConfiguration", "TestSteerLoadsWithCapBPFAlone",
		"TestGuardLoadsWithoutPerfmon", "TestSteerMatchesGoFlowHash", "TestLoadErrorsNameMissingRequirement", "TestPinnedStateOutlivesProcess",
		"TestDataGoesToQueueSocketOtherPacketsToStack", "TestMultiBufferFramesGoToStack", "TestSourceLimitDropsItsFurtherInitiations",
		"TestKernelReceivesEverythingWithoutSocket", "TestEachQueueUsesItsOwnSocket",
		"TestSteerKeepsBothDirectionsOnOneQueue", "TestRemovedSteeringNoLongerSelectsQueue",
		"TestSpreadKeepsTrainsAndPartialChecksumsValid", "TestSpreadContinuesToNextProgramWithHash",
		"TestNonlinearHeadersAreParsed", "TestKernelHashFlowsKeepTheirPort", "TestQueueCountsReportReceiveQueues",
		"TestSpreadHandlesPacketsWithoutEthernetHeader", "TestGatherRestoresPorts", "TestMessageCloneBecomesProbe", "TestProbeIsTurnedAround",
		"TestPacketTooBigQuotesListenPort", "TestActiveFlowsHaveHashAndLane",
	}, "|") + ")$"}
}

func oldest() string { return matrix[0].name }
func newest() string { return matrix[len(matrix)-1].name }

// slowSteps returns the steps whose eBPF programs take minutes to verify in an emulator, with the kernels that run them. ./pkg/cluster/agent is fast
// enough to run on all kernels. flannel is another program, not another kernel: one is enough.
func slowSteps() map[string][]string {
	return map[string][]string{
		"programs": append(pinnedSeries(), oldest(), newest()),
		"hook":     append(pinnedSeries(), oldest(), newest()),
		"spreader": {newest()},
		"flannel":  {newest()},
		"compare":  {newest()}, // the kernel's WireGuard decides as it always did
		"remote":   {newest()},
	}
}

// pinnedSeries returns the kernels of Ubuntu.
func pinnedSeries() (names []string) {
	for _, s := range matrix {
		if s.isPinned() {
			names = append(names, s.name)
		}
	}
	return names
}

// omitted reports whether a kernel does not run a step. Those of Ubuntu run only slow ones.
func omitted(kernel, step string) bool {
	on, ok := slowSteps()[step]
	if slices.Contains(pinnedSeries(), kernel) {
		return !slices.Contains(on, kernel)
	}
	return ok && !slices.Contains(on, kernel)
}

// TestSkippedTestsExist finds outdated names in the lists above, which would skip nothing.
func TestSkippedTestsExist(t *testing.T) {
	tests := testNames(t, os.DirFS("../.."))
	names := hostOnlyTests()
	for _, s := range matrix {
		names = append(names, testsOfOtherKernels(s.name)...)
		names = append(names, fullTests(s.name)...)
	}
	for _, pattern := range gateTests() {
		names = append(names, strings.Split(strings.Trim(pattern, "^()$"), "|")...)
	}
	for _, name := range names {
		if !tests[name] {
			t.Errorf("a list names %s, but there is no such test", name)
		}
	}
	for _, step := range slices.Concat(slices.Collect(maps.Keys(slowSteps())), slices.Collect(maps.Keys(gateTests())), fullSteps()) {
		if !slices.ContainsFunc(defaultPackages, func(p string) bool { return path.Base(p) == step }) {
			t.Errorf("a list names %s, but no default package has that name", step)
		}
		if !slices.ContainsFunc(matrix, func(s series) bool { return !omitted(s.name, step) }) {
			t.Errorf("%s runs on no kernel", step)
		}
	}
}

// testNames returns the names of all tests in defaultPackages.
func testNames(t *testing.T, root fs.FS) map[string]bool {
	t.Helper()
	names, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
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
