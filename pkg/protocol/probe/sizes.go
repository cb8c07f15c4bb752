// SPDX-License-Identifier: Apache-2.0

package probe

// BaseSize is the size of a packet that almost every path carries (BASE_PLPMTU, RFC 8899 section 5.1.2): the minimum MTU of IPv6.
const BaseSize = 1280

// FloorIPv4 is the smallest size that is tried over IPv4: every host must be able to receive it (RFC 1122, section 3.3.3).
const FloorIPv4 = 576

// Sizes are the sizes that a search tries, in bytes of the outer IP packet.
type Sizes struct {
	Floor  int // the smallest size to try; BaseSize for IPv6
	Max    int // the size of the largest packet that data can have
	Offset int // Offset + k*Step are the sizes that data can have: overhead and padding
	Step   int
}

// base returns the size that is expected to pass.
func (s *Sizes) base() int { return max(min(BaseSize, s.Max), s.Floor) }

// common are frequent MTUs of tunnels, PPPoE, Ethernet and jumbo frames, in ascending order.
var common = [...]int{576, 1024, 1280, 1360, 1400, 1420, 1436, 1450, 1460, 1476, 1480, 1492, 1500, 2000, 4000, 4352, 8500, 8900, 9000, 9216}

// between returns the size to try next if low passes and high does not. It is the middle one of
// the common sizes between them, then of all sizes that make a difference. It returns 0 if there
// is none left.
func (s *Sizes) between(low, high int) int {
	first, last := len(common), -1
	for i, size := range common {
		if size > low && size < high {
			first, last = min(first, i), i
		}
	}
	if first <= last {
		return common[(first+last+1)/2]
	}
	k, end := (low-s.Offset)/s.Step+1, (high-1-s.Offset)/s.Step // the first above low, and the last below high
	if k > end {
		return 0
	}
	return s.Offset + (k+end+1)/2*s.Step
}

// Plateau returns the largest common MTU below size: the estimate for a router that does not report its MTU (RFC 1191, section 5).
func Plateau(size int) int {
	found := FloorIPv4
	for _, mtu := range common {
		if mtu < size {
			found = mtu
		}
	}
	return found
}

// above returns the size to try when a larger one than low may pass by now.
func (s *Sizes) above(low int) int {
	for _, size := range common {
		if size > low && size < s.Max {
			return size
		}
	}
	return s.Max
}
