/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_GUARD_CLASSES_H
#define ROPEWALK_GUARD_CLASSES_H

/*
 * The class of an address: that of the longest prefix that contains it. Go's GuardClass is
 * generated from this enum (make generate). Each line is `GUARD_NAME, // help`. A change is one
 * of the maps' layout (guard.go).
 */
enum guard_class {
	GUARD_NONE,    // no prefix contains the address
	GUARD_LOCAL,   // pods of this node
	GUARD_REMOTE,  // pods of another node, which the tunnel reaches
	GUARD_UNKNOWN, // the cluster's prefixes for pods, where no accepted prefix of a node contains the address
	GUARD_EXEMPT,  // pods that are reached without the tunnel, as those of a node without it
	GUARD_CLASSES,
};

#endif
