// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Types of conditions.
const (
	TunnelUp       = "TunnelUp"
	PeersReachable = "PeersReachable"
	Encrypted      = "Encrypted"
	Strict         = "Strict"
	PostQuantum    = "PostQuantum"
)

// Reasons of conditions that other packages look for.
const (
	NoPeers         = "NoPeers"         // of a node that has none
	GuardMissing    = "GuardMissing"    // the guard is not at all devices
	GuardNotInFront = "GuardNotInFront" // other programs may take packets before it
	// PostQuantumBlocked is of a node that gets no data from peers for lack of keys.
	PostQuantumBlocked = "Blocked"
)

// Status is a condition's, in the words of Kubernetes.
type Status string

// The values.
const (
	True    Status = "True"
	False   Status = "False"
	Unknown Status = "Unknown"
)

// Condition is a statement about a node, with the reason in CamelCase.
type Condition struct {
	Type            string
	Status          Status
	Reason, Message string
}

// Same reports whether a condition says the same as another one, whatever its example is.
func (c Condition) Same(o Condition) bool {
	return c.Type == o.Type && c.Status == o.Status && c.Reason == o.Reason
}

// Facts are a node's observations.
type Facts struct {
	// Tunnel is the fault of the tunnel, and TunnelError its message; "": none.
	Tunnel      TunnelFault
	TunnelError string
	Peers       Summary
	Guard       GuardFacts
	// Strictness is from the last reconcile that succeeded.
	Strictness  Strictness
	PostQuantum PostQuantumFacts
}

// TunnelFault is why a tunnel is not up, and the reason of its condition.
type TunnelFault string

// The faults.
const (
	EngineAbsent   TunnelFault = "EngineAbsent"   // no engine serves the interface
	EngineOutdated TunnelFault = "EngineOutdated" // it lacks features
	ForeignTunnel  TunnelFault = "ForeignTunnel"  // another program serves the interface
	PortInUse      TunnelFault = "PortInUse"      // another program has the UDP port
	RoutesMissing  TunnelFault = "RoutesMissing"  // they could not be set
	OtherFault     TunnelFault = "TunnelError"    // anything else
)

// Strictness is why a node is strict, or that it is not.
type Strictness string

// The values.
const (
	NotApplied Strictness = "" // no reconcile has succeeded yet
	Permissive Strictness = "Permissive"
	Latched    Strictness = "Latched" // all peers were proved once
	Never      Strictness = "Never"   // it is configured so
)

// isStrict reports whether packets for other nodes' pods are known not to leave in the clear.
func (s Strictness) isStrict() bool { return s == Latched || s == Never }

// GuardFacts are the guard's observations at the devices by which packets leave the node.
type GuardFacts struct {
	// Fault is why there is no guard at some of these devices, such as the lack of a kernel's
	// feature. "" means that the guard is at all of them.
	Fault string
	// Behind are programs in front of the guard, which may take packets that it does not see.
	Behind []string
	// Beside is the last packet to another node's pod that was to leave beside the tunnel, although
	// routes to that pod lead into it. If the node was strict then, it was dropped.
	Beside Packet
	// Clear is the last packet to another node's pod that was to leave in the clear. No route to
	// that pod leads into the tunnel. If the node was strict then, it was dropped.
	Clear Packet
	// Tunneled is when a packet of a pod last entered the tunnel; zero: never.
	Tunneled time.Time
}

// Packet is a packet that the guard has seen; the zero value: none.
type Packet struct {
	Time            time.Time
	Device, Address string
}

const (
	// besideTime is the time after a packet beside the tunnel in which the node is not encrypted,
	// because the next one may be rare.
	besideTime = 5 * time.Minute
	// clearTime is the same after a packet that was to leave in the clear. Its node may get a tunnel
	// at any time.
	clearTime = 30 * time.Second
	// lostShare is the part of the peers, one in so many, that may be lost on a node that is not
	// cut off itself.
	lostShare = 10
)

// ConditionsOf returns the five conditions.
func ConditionsOf(now time.Time, f *Facts) []Condition {
	return []Condition{tunnelUp(f), peersReachable(f), encrypted(now, f), strict(f), postQuantum(f)}
}

func tunnelUp(f *Facts) Condition {
	if f.Tunnel != "" {
		return Condition{TunnelUp, False, string(f.Tunnel), f.TunnelError}
	}
	return Condition{TunnelUp, True, "TunnelUp", "the engine has the node's key, the interface is up, and the routes are set"}
}

func peersReachable(f *Facts) Condition {
	c := Condition{Type: PeersReachable, Status: Unknown}
	s := &f.Peers
	switch {
	case f.Tunnel != "":
		c.Reason, c.Message = "TunnelDown", "no tunnel with which to ask"
	case s.Peers == 0:
		c.Reason, c.Message = NoPeers, "no other node has a tunnel"
	case s.Judged == 0:
		c.Reason, c.Message = "NotAsked", "no peer has been judged yet"
	case s.JudgedLost*lostShare > s.Judged:
		c.Status, c.Reason = False, "PeersLost"
		c.Message = fmt.Sprintf("%d of %d peers that were asked do not answer: UDP to them, or from them, may be blocked", s.JudgedLost, s.Judged)
	default:
		c.Status, c.Reason, c.Message = True, "PeersAnswer", "at least nine in ten peers answer"
	}
	return c
}

// encrypted says first what disproves encryption, then what is missing for a proof.
func encrypted(now time.Time, f *Facts) Condition {
	c := Condition{Type: Encrypted, Status: Unknown}
	g, s := &f.Guard, &f.Peers
	unguarded, fault := g.missing()
	switch {
	case !g.Beside.Time.IsZero() && now.Sub(g.Beside.Time) < besideTime:
		c.Status, c.Reason = False, "BesideTunnel"
		verb := "leave"
		if f.Strictness.isStrict() {
			verb = "are dropped"
		}
		c.Message = fmt.Sprintf("packets to pods of other nodes %s beside the tunnel, such as one to %s by %s: the network plugin does not hand them to the node's routing", verb, g.Beside.Address, g.Beside.Device)
	case f.Strictness == Permissive && !g.Clear.Time.IsZero() && now.Sub(g.Clear.Time) < clearTime:
		c.Status, c.Reason = False, "NoTunnel"
		c.Message = fmt.Sprintf("packets to pods of nodes without a working tunnel leave in the clear, such as one to %s by %s", g.Clear.Address, g.Clear.Device)
	case f.Tunnel != "":
		c.Reason, c.Message = "TunnelDown", "there is no tunnel at present"
	case s.Unproven > 0:
		c.Status, c.Reason = False, "RoutesUnproven"
		c.Message = fmt.Sprintf("%d peers answer probes, but no datagrams: the routes to them do not lead through the tunnel, or their engines do not reflect", s.Unproven)
	case unguarded != "":
		c.Reason, c.Message = unguarded, fault
	case s.Reachable+s.Proven == 0:
		c.Reason, c.Message = NoPeers, "no peer is reachable"
	case f.Strictness == Permissive && s.Unrouted > 0:
		c.Reason, c.Message = "NotRouted", "traffic to some peers does not take the tunnel: they do not answer, or not yet"
	case s.Reachable > s.Unprovable:
		c.Reason, c.Message = "Proving", "the routes to some peers have not been proved yet"
	case !g.Tunneled.After(g.Beside.Time):
		c.Reason, c.Message = "NoTraffic", "no pod's packet has been seen in the tunnel yet"
	default:
		c.Status, c.Reason, c.Message = True, "SeenInTunnel", "pods' packets enter the tunnel, and none to other nodes' pods was seen beside it"
	}
	return c
}

// strict claims nothing without the guard in front: a program may send packets past the routes.
func strict(f *Facts) Condition {
	c := Condition{Type: Strict, Status: Unknown}
	reason, fault := f.Guard.missing()
	switch {
	case f.Strictness == NotApplied:
		c.Reason, c.Message = "NotApplied", "no reconcile of this agent has succeeded yet: the node keeps the state that an earlier agent left"
	case f.Strictness == Permissive:
		c.Status, c.Reason, c.Message = False, string(Permissive), "packets to pods of nodes without a tunnel may leave in the clear"
	case reason != "":
		c.Reason, c.Message = reason, "routes alone keep packets to other nodes' pods from leaving in the clear: "+fault
	case f.Strictness == Latched:
		c.Status, c.Reason, c.Message = True, string(Latched), "packets to other nodes' pods do not leave in the clear: all peers were proved once"
	default:
		c.Status, c.Reason, c.Message = True, string(Never), "packets to other nodes' pods do not leave in the clear, by configuration"
	}
	return c
}

// missing returns why the guard does not see all packets, as a reason and a message; "": it does.
func (g *GuardFacts) missing() (reason, message string) {
	switch {
	case g.Fault != "":
		return GuardMissing, g.Fault
	case len(g.Behind) > 0:
		return GuardNotInFront, "programs run before the guard, which may miss packets: " + strings.Join(slices.Compact(slices.Sorted(slices.Values(g.Behind))), ", ")
	}
	return "", ""
}
