// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestReceiveCPUsParseKernelListFormat(t *testing.T) {
	for text, want := range map[string]struct {
		cpus ReceiveCPUs
		text string
	}{
		"off":         {ReceiveCPUs{}, "off"},
		"OFF":         {ReceiveCPUs{}, "off"},
		"Auto":        {ReceiveCPUs{Auto: true}, "auto"},
		"0":           {ReceiveCPUs{List: []int{0}}, "0"},
		"3,1,2,1":     {ReceiveCPUs{List: []int{1, 2, 3}}, "1-3"},
		"0-3,8":       {ReceiveCPUs{List: []int{0, 1, 2, 3, 8}}, "0-3,8"},
		"8, 10 ,0-1":  {ReceiveCPUs{List: []int{0, 1, 8, 10}}, "0-1,8,10"},
		"0-255,0-255": {ReceiveCPUs{List: upTo(256)}, "0-255"},
		"8191":        {ReceiveCPUs{List: []int{8191}}, "8191"},
	} {
		got, err := ParseReceiveCPUs(text)
		if err != nil || !got.Equal(want.cpus) || got.String() != want.text {
			t.Errorf("%q: got %+v (%v), %v, want %+v (%s)", text, got, got, err, want.cpus, want.text)
		}
	}
	for _, text := range []string{"", "on", "all", "1-", "-1", "3-1", "0,,1", "0-256", "0-255,256", "8192", "99999999999999999999", "0x1", "1-2-3"} {
		if got, err := ParseReceiveCPUs(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

func TestParseCPUsEnforcesLimit(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want []int
	}{
		{"0-3", 4, upTo(4)},
		{"2-3,0-1,0-3", 4, upTo(4)},
		{"0-3", 3, nil},
		{"0,1,2,3", 3, nil},
		{"0-8191", 8192, upTo(8192)},
		{"0-8192", 9000, nil},
		{"", 4, nil},
	} {
		if got, ok := ParseCPUs(test.text, test.most); ok != (test.want != nil) || !slices.Equal(got, test.want) {
			t.Errorf("%q, at most %d: got %v, %v, want %v, %v", test.text, test.most, got, ok, test.want, (test.want != nil))
		}
	}
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestReceiveCPUsConflictWithXDP(t *testing.T) {
	on, auto := ReceiveCPUs{List: []int{0}}, ReceiveCPUs{Auto: true}
	for _, test := range []struct {
		mode UnderlayMode
		cpus ReceiveCPUs
		ok   bool
	}{
		{UnderlayXDP, on, false},
		{UnderlayXDP, auto, false},
		{UnderlayXDP, ReceiveCPUs{}, true},
		{UnderlayUDP, on, true},
		{UnderlayAuto, auto, true},
	} {
		if err := CheckReceiveCPUs(test.mode, test.cpus); (err == nil) != test.ok || err != nil && !errors.Is(err, ErrReceiveCPUs) {
			t.Errorf("%v and %v: %v", test.mode, test.cpus, err)
		}
	}
}

func FuzzParseReceiveCPUs(f *testing.F) {
	for _, s := range []string{"off", "auto", "0-3,8", "1,1", "0-255", "5-", "8191"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseReceiveCPUs(s)
		if err != nil {
			if c.On() {
				t.Errorf("%q is rejected and %v", s, c)
			}
			return
		}
		if len(c.List) > MaxReceiveCPUs || !slices.IsSorted(c.List) || c.Auto && c.List != nil {
			t.Errorf("%q is %+v", s, c)
		}
		if again, err := ParseReceiveCPUs(c.String()); err != nil || !again.Equal(c) || strings.ContainsAny(c.String(), " \t") {
			t.Errorf("%q is %+v, and that %+v, %v", s, c, again, err)
		}
	})
}
