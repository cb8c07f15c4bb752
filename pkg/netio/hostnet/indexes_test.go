// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// listed returns a listing of links by index.
func listed(names map[int]string) func() ([]netlink.Link, error) {
	return func() (links []netlink.Link, _ error) {
		for index, name := range names {
			links = append(links, &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name}})
		}
		return links, nil
	}
}

// namedLink returns the data of a message about a link.
func namedLink(index int32, name string) []byte {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = index
	return append(m.Serialize(), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
}

func TestNewIndexOfUsedLinkIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		listings []map[int]string
		want     []string
	}{
		"nothing changed":         {[]map[int]string{{2: "eth0", 3: "eth1"}}, nil},
		"deleted and added":       {[]map[int]string{{9: "eth0"}}, []string{"eth0 2 9"}},
		"deleted, added later":    {[]map[int]string{{3: "eth1"}, {3: "eth1", 9: "eth0"}}, []string{"eth0 2 9"}},
		"added with its index":    {[]map[int]string{{3: "eth1"}, {2: "eth0"}}, nil},
		"added twice":             {[]map[int]string{{9: "eth0"}, {2: "eth0"}}, []string{"eth0 2 9", "eth0 9 2"}},
		"added and renamed":       {[]map[int]string{{9: "usb0"}, {9: "eth0"}}, []string{"eth0 2 9"}},
		"renamed before":          {[]map[int]string{{2: "lan"}, {8: "eth0", 9: "lan"}}, []string{"lan 2 9"}},
		"renamed, another has it": {[]map[int]string{{2: "lan", 9: "eth0"}}, nil},
		"not used":                {[]map[int]string{{2: "eth0"}, {2: "eth0", 9: "eth1"}}, nil},
		"another name":            {[]map[int]string{{9: "eth9"}, {}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			used := 2
			w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == used }, func(name string, from, to int) {
				got = append(got, fmt.Sprint(name, " ", from, " ", to))
				used = to
			})
			expect.NoError(t, w.update(listed(map[int]string{2: "eth0", 3: "eth1"})))
			for _, names := range c.listings {
				expect.NoError(t, w.update(listed(names)))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestLinkBetweenListingsIsFollowed: an endpoint is on a link that is added, and deleted and added again before the next listing.
func TestLinkBetweenListingsIsFollowed(t *testing.T) {
	var got []string
	w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == 7 }, func(name string, from, to int) {
		got = append(got, fmt.Sprint(name, " ", from, " ", to))
	})
	expect.NoError(t, w.update(listed(map[int]string{2: "eth0"})))
	w.note(unix.RTM_NEWLINK, namedLink(7, "uplink"))
	expect.NoError(t, w.update(listed(map[int]string{2: "eth0", 9: "uplink"})))
	if want := []string{"uplink 7 9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLinksAreListedOnlyIfNeeded: links of containers come and go on hosts with hundreds of them.
func TestLinksAreListedOnlyIfNeeded(t *testing.T) {
	w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == 2 }, func(string, int, int) {})
	expect.NoError(t, w.update(listed(map[int]string{2: "eth0"})))
	for _, c := range []struct {
		kind  uint16
		index int32
		name  string
		lists bool
	}{
		{unix.RTM_NEWLINK, 2, "eth0", false},
		{unix.RTM_NEWLINK, 7, "veth7", false},
		{unix.RTM_DELLINK, 7, "veth7", false},
		{unix.RTM_DELLINK, 2, "eth0", true},
		{unix.RTM_NEWLINK, 8, "veth8", false},
		{unix.RTM_DELLINK, 8, "veth8", false},
		{unix.RTM_NEWLINK, 9, "eth0", true},
	} {
		if got := w.note(c.kind, namedLink(c.index, c.name)); got != c.lists {
			t.Errorf("%+v: listed %v", c, got)
		}
		if c.lists {
			expect.NoError(t, w.update(listed(nil)))
		}
	}
}

// TestMessagesDuringListingCauseAnother: the listing may lack what they tell.
func TestMessagesDuringListingCauseAnother(t *testing.T) {
	var got []string
	w := newIndexWatch(new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == 2 }, func(name string, from, to int) {
		got = append(got, fmt.Sprint(name, " ", from, " ", to))
	})
	expect.NoError(t, w.update(func() ([]netlink.Link, error) {
		if !w.note(unix.RTM_DELLINK, namedLink(2, "eth0")) {
			t.Error("a deletion during a listing causes none")
		}
		return listed(map[int]string{2: "eth0"})()
	}))
	expect.NoError(t, w.update(func() ([]netlink.Link, error) {
		if !w.note(unix.RTM_NEWLINK, namedLink(9, "eth0")) {
			t.Error("an addition during a listing causes none")
		}
		return nil, nil
	}))
	expect.NoError(t, w.update(listed(map[int]string{9: "eth0"})))
	if want := []string{"eth0 2 9"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestClosedListerListsNothing(t *testing.T) {
	enterNamespace(t)
	l, err := newLinkLister()
	expect.NoError(t, err)
	if links, err := l.list(); err != nil || len(links) == 0 {
		t.Errorf("got %v, error %v, want the loopback interface", links, err)
	}
	var done sync.WaitGroup
	done.Go(l.close)
	_, _ = l.list()
	done.Wait()
	if links, err := l.list(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, error %v, want %v", links, err, os.ErrClosed)
	}
}

// TestAbsentLinksPassToNextWatch: the links are deleted in one process, and exist again in the next.
func TestAbsentLinksPassToNextWatch(t *testing.T) {
	var absent atomic.Pointer[AbsentLinks]
	var got []string
	watch := func(listings ...map[int]string) {
		w := newIndexWatch(&absent, func(int) bool { return true }, func(name string, from, to int) {
			got = append(got, fmt.Sprint(name, " ", from, " ", to))
		})
		for _, names := range listings {
			expect.NoError(t, w.update(listed(names)))
		}
	}
	watch(map[int]string{2: "eth0", 3: "eth1"}, nil)
	watch(map[int]string{8: "eth0"})
	watch(map[int]string{8: "eth0", 9: "eth1"})
	if want := []string{"eth0 2 8", "eth1 3 9"}; !slices.Equal(got, want) || len(*absent.Load()) != 0 {
		t.Errorf("got %q, want %q; %v are left", got, want, *absent.Load())
	}
}

func TestRecreatedLinkIsFoundInKernel(t *testing.T) {
	enterNamespace(t)
	addVeth(t, "uplink", "far")
	before, err := FindLink("uplink")
	expect.NoError(t, err)
	type found struct {
		name     string
		from, to int
	}
	moves := make(chan found, 10)
	expect.NoError(t, WatchIndexes(t.Context(), new(atomic.Pointer[AbsentLinks]), func(index int) bool { return index == before.Index }, func(name string, from, to int) {
		moves <- found{name, from, to}
	}))
	link, err := netlink.LinkByName("uplink")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkDel(link))
	addVeth(t, "other", "otherfar")
	addVeth(t, "uplink", "far")
	after, err := FindLink("uplink")
	expect.NoError(t, err)
	expect.Eventually(t, "the new index is reported", func() bool { return len(moves) > 0 })
	if got, want := <-moves, (found{"uplink", before.Index, after.Index}); got != want || before.Index == after.Index {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
