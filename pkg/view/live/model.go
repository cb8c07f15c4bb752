// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ropewalk/ropewalk/pkg/view"
)

// sampled is a message: what a sample was, or why there is none.
type sampled struct {
	sample view.Sample
	err    error
}

// due is a message: it is time for the next sample.
type due struct{}

// model is bubbletea's model. Its Update returns it changed: it is used by one goroutine.
type model struct {
	take     func() (view.Sample, error)
	interval time.Duration
	options  view.Options
	reverse  bool
	before   view.View // what help covers
	last     view.Sample
	frame    *view.Frame
}

func newModel(c Config, first view.Sample) *model {
	m := &model{take: c.Sample, interval: bounded(c.Interval), options: c.Options, last: first}
	m.options.Keys = true
	m.show(view.Compare(&view.Sample{}, &first))
	return m
}

func bounded(d time.Duration) time.Duration { return min(max(d, MinInterval), MaxInterval) }

// show makes f what is drawn.
func (m *model) show(f *view.Frame) {
	m.frame = f
	m.sort()
}

func (m *model) sort() { m.frame.Sort(m.options.Order, m.reverse) }

// Init implements tea.Model. The first frame is of one sample: the second comes soon.
func (m *model) Init() tea.Cmd { return after(min(m.interval, time.Second/2)) }

func after(d time.Duration) tea.Cmd { return tea.Tick(d, func(time.Time) tea.Msg { return due{} }) }

// sample takes one, away from the goroutine that handles keys.
func (m *model) sample() tea.Msg {
	s, err := m.take()
	return sampled{s, err}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.options.Width, m.options.Height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	case due:
		return m, m.sample
	case sampled:
		m.accept(msg)
		return m, after(m.interval)
	}
	return m, nil
}

// accept compares a sample with the one before. While paused, samples go on being taken, so that the rates after the pause are
// those of the last interval.
func (m *model) accept(s sampled) {
	if s.err != nil {
		m.options.Note = s.err.Error()
		return
	}
	m.options.Note = ""
	before := m.last
	m.last = s.sample
	if !m.options.Paused {
		m.show(view.Compare(&before, &s.sample))
	}
}

// key does what a key says.
func (m *model) key(key string) tea.Cmd {
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "space", "p":
		m.options.Paused = !m.options.Paused
	case "s":
		m.options.Order = m.options.Order.Next()
		m.sort()
	case "r":
		m.reverse = !m.reverse
		m.sort()
	case "+":
		m.interval = bounded(m.interval / 2)
	case "-":
		m.interval = bounded(m.interval * 2)
	default:
		m.turn(key)
	}
	return nil
}

// turn changes the view, or scrolls it.
func (m *model) turn(key string) {
	switch key {
	case "tab", "right":
		m.next()
	case "1", "2", "3", "4", "5":
		m.look(view.View(key[0] - '1'))
	case "?", "h":
		m.help()
	case "esc":
		m.uncover()
	default:
		m.scroll(key)
	}
}

func (m *model) look(v view.View) { m.options.View, m.options.Scroll = v%view.Help, 0 }

// next shows the next view; after help, the one that it covered.
func (m *model) next() {
	if !m.uncover() {
		m.look(m.options.View.Next())
	}
}

func (m *model) uncover() bool {
	covered := m.options.View == view.Help
	if covered {
		m.look(m.before)
	}
	return covered
}

// help covers what was shown, or uncovers it.
func (m *model) help() {
	if m.uncover() {
		return
	}
	m.before, m.options.View, m.options.Scroll = m.options.View, view.Help, 0
}

func (m *model) scroll(key string) {
	page := max(m.options.Height-6, 1)
	switch key {
	case "up", "k":
		m.options.Scroll--
	case "down", "j":
		m.options.Scroll++
	case "pgup":
		m.options.Scroll -= page
	case "pgdown":
		m.options.Scroll += page
	case "home", "g":
		m.options.Scroll = 0
	case "end", "G":
		m.options.Scroll = 1 << 30
	}
	m.options.Scroll = max(min(m.options.Scroll, view.MaxScroll(m.frame, m.options)), 0)
}

// View implements tea.Model. Before the terminal has told its size there is nothing.
func (m *model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	v.WindowTitle = "ropewalk top"
	if m.options.Width > 0 && m.options.Height > 0 {
		v.Content = strings.TrimSuffix(view.Render(m.frame, m.options), "\n")
	}
	return v
}
