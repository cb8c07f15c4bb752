// SPDX-License-Identifier: Apache-2.0

// Package heavyhitter finds the flows with most traffic in a stream, in a fixed amount of memory: Space-Saving (Metwally, Agrawal and
// El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005) with weights that decay.
//
// A new key takes the entry with the least weight and inherits that weight. So in a table of N entries each key with more than 1/N of
// the decayed weight of the stream has an entry. The counters of an entry begin at zero when its key takes it: they are never too high.
//
// The package reads no clock and knows neither packets nor lanes. Start reading at Table.
package heavyhitter
