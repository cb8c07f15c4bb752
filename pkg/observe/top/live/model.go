// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// sampled is the message with a new screen, or the error of taking a sample.
type sampled struct {
	screen Screen
	err    error
}

// sampleDue is the message that it is time for the next sample.
type sampleDue struct{}

// model is the bubbletea model. Update changes it in place: one goroutine uses it.
type model struct {
	take     func(flows bool) (Screen, error)
	flows    atomic.Bool // flows are shown; read by sample
	interval time.Duration
	options  top.Options
	reverse  bool
	covered  top.View // the view that help covers
	screen   Screen
}

func newModel(c Config, first Screen) *model {
	m := &model{take: c.Next, interval: clampInterval(c.Interval), options: c.Options}
	m.options.Keys = true
	m.flows.Store(m.options.View == top.Flows)
	m.show(first)
	return m
}

func clampInterval(d time.Duration) time.Duration { return min(max(d, MinInterval), MaxInterval) }

// show sorts and displays s.
func (m *model) show(s Screen) {
	m.screen = s
	m.sort()
}

func (m *model) sort() { m.screen.Sort(m.options.Order, m.reverse) }

// Init implements tea.Model. The first frame has one sample and no rates, so the second sample follows within 500 ms.
func (m *model) Init() tea.Cmd { return scheduleSample(min(m.interval, time.Second/2)) }

func scheduleSample(d time.Duration) tea.Cmd {
	return tea.Tick(d, func(time.Time) tea.Msg { return sampleDue{} })
}

// sample takes a sample, in another goroutine than the key handler's.
func (m *model) sample() tea.Msg {
	s, err := m.take(m.flows.Load())
	return sampled{s, err}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.options.Width, m.options.Height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	case sampleDue:
		return m, m.sample
	case sampled:
		m.update(msg)
		return m, scheduleSample(m.interval)
	}
	return m, nil
}

// update shows a new screen. Sampling continues while paused, so that the first rates after the pause cover one interval.
func (m *model) update(s sampled) {
	if s.err != nil {
		m.options.Note = s.err.Error()
		return
	}
	m.options.Note = ""
	if !m.options.Paused {
		m.show(s.screen)
	}
}

// key handles a key press.
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
		m.interval = clampInterval(m.interval / 2)
	case "-":
		m.interval = clampInterval(m.interval * 2)
	default:
		m.navigate(key)
	}
	return nil
}

// navigate changes or scrolls the view.
func (m *model) navigate(key string) {
	switch key {
	case "tab", "right":
		m.next()
	case "1", "2", "3", "4", "5", "6":
		m.showScreen(top.View(key[0] - '1'))
	case "?", "h":
		m.help()
	case "esc":
		m.closeHelp()
	default:
		m.scroll(key)
	}
}

func (m *model) showScreen(v top.View) {
	m.options.View, m.options.Scroll = v%top.Help, 0
	m.flows.Store(m.options.View == top.Flows)
}

// next shows the next view, or closes help.
func (m *model) next() {
	if !m.closeHelp() {
		m.showScreen(m.options.View.Next())
	}
}

func (m *model) closeHelp() bool {
	covered := m.options.View == top.Help
	if covered {
		m.showScreen(m.covered)
	}
	return covered
}

// help opens or closes help.
func (m *model) help() {
	if m.closeHelp() {
		return
	}
	m.covered, m.options.View, m.options.Scroll = m.options.View, top.Help, 0
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
	m.options.Scroll = max(min(m.options.Scroll, m.screen.MaxScroll(m.options)), 0)
}

// View implements tea.Model. It is empty until the terminal has reported its size.
func (m *model) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	v.WindowTitle = "ropewalk top"
	if m.options.Width > 0 && m.options.Height > 0 {
		v.Content = strings.TrimSuffix(m.screen.Render(m.options), "\n")
	}
	return v
}
