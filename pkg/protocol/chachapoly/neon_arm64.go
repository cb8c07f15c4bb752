// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

// passLen is how many bytes of text a pass of ChaCha20 encrypts: four blocks.
const passLen = 256

// spillLen is the memory that the kernels of eight blocks need.
const spillLen = 64 + 128

// laneGroup names the four blocks of a pass, which may be of different messages.
type laneGroup struct {
	counter, lo, hi [4]uint32 // the state's words 12, 14 and 15
}

// streamNEON writes 256 bytes of keystream for each of at least one group.
//
//go:noescape
func streamNEON(state *[16]uint32, lanes *laneGroup, passes int, out *byte)

//go:noescape
func streamSVE2(state *[16]uint32, lanes *laneGroup, passes int, out *byte)

// xorNEON adds the keystream from state's counter on to 256 bytes per pass, at least one.
//
//go:noescape
func xorNEON(state *[16]uint32, text *byte, passes int)

//go:noescape
func xorSVE2(state *[16]uint32, text *byte, passes int)

// xorMACNEON is xorNEON(state, text, passes) and macBlocks(mac, data, 16*passes) at once; data is another text.
//
//go:noescape
func xorMACNEON(state *[16]uint32, text *byte, passes int, mac *polyMAC, data *byte)

//go:noescape
func xorMACSVE2(state *[16]uint32, text *byte, passes int, mac *polyMAC, data *byte)

// macBlocks calls mac.block for each 16 bytes of data, at least once.
//
//go:noescape
func macBlocks(mac *polyMAC, data *byte, blocks int)

// xorMAC8NEON is xorMACNEON with passes of 512 bytes. spill is memory of spillLen bytes for keystream.
//
//go:noescape
func xorMAC8NEON(state *[16]uint32, text *byte, passes int, mac *polyMAC, data, spill *byte)

//go:noescape
func xorMAC8SVE2(state *[16]uint32, text *byte, passes int, mac *polyMAC, data, spill *byte)
