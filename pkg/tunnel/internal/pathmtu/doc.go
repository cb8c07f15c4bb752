// SPDX-License-Identifier: Apache-2.0

// Package pathmtu keeps the limits of outer packets to a peer that are known without probes. They
// are the MTU of the route, and sizes that routers or the host have reported. It paces the lookups
// of routes.
package pathmtu
