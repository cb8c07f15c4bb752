// SPDX-License-Identifier: Apache-2.0

// Package engine is the fast path. Its goroutines move trains between the queues of one TUN device and the lanes of one
// underlay port. It knows sessions and routes, but no handshakes, timers or configuration. Everything except data messages of
// live sessions goes to the Control and SlowPath interfaces, which package device implements.
//
// Only package device calls it. Start with engine.go and lane.go. The send direction is transmit.go (read and enqueue),
// txbatch.go and pendingruns.go (build runs), sealahead.go (share splitting and sealing with workers), send.go. The receive direction
// is receive.go, rxqueue.go (order of handling), budget.go (memory of the queues), receiveahead.go and openahead.go (share receiving
// and opening with workers). spray.go sends one flow from several ports, and order.go and ordersleep.go put such flows back into order.
// slowlane.go sends the rest. pathmtu.go and icmperrors.go handle packets that do not fit or cannot be delivered.
//
// Concurrency: each lane has one transmit and one receive goroutine. They share no lock; sessions, routes and peers are
// read through atomic pointers. In steady state neither allocates.
package engine
