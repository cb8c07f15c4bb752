// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LevelSilent is above every level of a log line, so that nothing is logged.
const LevelSilent = slog.Level(100)

// levelName is a level and one of its names.
type levelName struct {
	name  string
	level slog.Level
}

// levelNames lists the levels, the most verbose first, and then the other names that wireguard-go has for them.
func levelNames() []levelName {
	return []levelName{
		{"debug", slog.LevelDebug},
		{"info", slog.LevelInfo},
		{"warn", slog.LevelWarn},
		{"error", slog.LevelError},
		{"silent", LevelSilent},
		{"verbose", slog.LevelDebug},
		{"warning", slog.LevelWarn},
	}
}

// Levels returns the names of the levels, the most verbose first.
func Levels() []string { return []string{"debug", "info", "warn", "error", "silent"} }

// ParseLevel returns the level that a name, in upper or lower case, stands for. It also accepts wireguard-go's names.
func ParseLevel(name string) (slog.Level, error) {
	names := levelNames()
	i := slices.IndexFunc(names, func(l levelName) bool { return strings.EqualFold(l.name, name) })
	if i < 0 {
		return 0, fmt.Errorf("log level %.20q: want debug, info, warn, error or silent", name)
	}
	return names[i].level, nil
}

// LevelName is the inverse of ParseLevel.
func LevelName(level slog.Level) string {
	names := levelNames()
	i := slices.IndexFunc(names, func(l levelName) bool { return l.level == level })
	if i < 0 {
		return level.String()
	}
	return names[i].name
}

// log implements the log operation: it changes the log level if the request has one, and answers with the level.
func (s *Server) log(lines *lineReader) ([]byte, error) {
	if s.Level == nil {
		return nil, refuse(lines, &Error{Errno: unix.EOPNOTSUPP, Err: errors.New("this program has no log level of its own: only ropewalk run does")})
	}
	key, value, ok, err := lines.pair()
	if err == nil && ok {
		err = s.setLevel(key, value, lines)
	}
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "level=%s\n", LevelName(s.Level.Level())), nil
}

func (s *Server) setLevel(key, value string, lines *lineReader) error {
	level, err := ParseLevel(value)
	switch {
	case key != "level":
		return refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Err: errors.New("want level=")})
	case err != nil:
		return refuse(lines, &Error{Errno: unix.EINVAL, Line: lines.line, Key: key, Err: errors.New("unknown log level")})
	}
	if err := readEnd(lines); err != nil {
		return err
	}
	s.Level.Set(level)
	s.logger().Info("log level set", "level", LevelName(level))
	return nil
}

// LogLevel returns the name of the daemon's log level. Only ropewalk's daemon has this operation: others close the
// connection.
func (c *Client) LogLevel() (string, error) { return c.logLevel("") }

// SetLogLevel changes the daemon's log level until the daemon ends, and returns the level's name. See LogLevel.
func (c *Client) SetLogLevel(name string) (string, error) { return c.logLevel("level=" + name + "\n") }

func (c *Client) logLevel(body string) (level string, err error) {
	err = c.send([]byte(opLog + "\n" + body + "\n"))
	if err == nil {
		err = readAnswer(c.lines, func(key, value string) error {
			if key == "level" {
				level = value
			}
			return nil
		})
	}
	if err != nil {
		return "", fmt.Errorf("requesting the log level of interface %s: %w", c.name, err)
	}
	return level, nil
}
