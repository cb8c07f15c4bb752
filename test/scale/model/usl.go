// SPDX-License-Identifier: Apache-2.0

package model

// USL is Gunther's universal scalability law: n cores do n / (1 + Serial·(n-1) + Coherence·n·(n-1)) times the work of
// one. With no Coherence it is Amdahl's law.
type USL struct {
	One       float64 // throughput of one core
	Serial    float64
	Coherence float64
}

// At returns the throughput of n cores.
func (u USL) At(n int) float64 {
	x := float64(n)
	return u.One * x / (1 + u.Serial*(x-1) + u.Coherence*x*(x-1))
}

// FitUSL fits the law to the throughput of numbers of cores, by least squares over the time per unit and core. The first number
// must be one core, whose throughput is exact. Serial and Coherence are at least 0.
func FitUSL(cores []int, work []float64) USL {
	if len(cores) == 0 || len(work) != len(cores) || cores[0] != 1 || work[0] <= 0 {
		return USL{}
	}
	u := USL{One: work[0]}
	var aa, ab, bb, ay, by float64
	for i, n := range cores {
		if work[i] <= 0 {
			continue
		}
		// Errors are relative, so that large numbers of cores do not weigh more.
		w := 1 / (u.One * float64(n) / work[i])
		a, b := float64(n-1)*w, float64(n)*float64(n-1)*w
		y := 1 - w
		aa, ab, bb, ay, by = aa+a*a, ab+a*b, bb+b*b, ay+a*y, by+b*y
	}
	if det := aa*bb - ab*ab; det > 1e-12*aa*bb {
		u.Serial, u.Coherence = (ay*bb-by*ab)/det, (by*aa-ay*ab)/det
	}
	switch {
	case aa == 0:
		return u
	case u.Coherence < 0 || bb == 0:
		u.Serial, u.Coherence = ay/aa, 0
	case u.Serial < 0:
		u.Serial, u.Coherence = 0, by/bb
	}
	u.Serial, u.Coherence = max(u.Serial, 0), max(u.Coherence, 0)
	return u
}
