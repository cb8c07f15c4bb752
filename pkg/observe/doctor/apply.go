// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// Settings reads and writes a host's settings. Values have the form used in Change.
type Settings interface {
	Read(Change) (string, error)
	Write(c Change, value string) error
	// Scope returns the boot and network namespace in which the settings apply.
	Scope() (Scope, error)
}

// Scope identifies a boot and a network namespace. Settings do not survive either of them.
type Scope struct {
	Boot    string `json:"boot_id"`
	Network string `json:"network_namespace"`
}

// Outcome is the result of undoing one change.
type Outcome struct {
	Change Change
	Note   string // why the change was not undone; empty if it was
}

var (
	errValueChanged = errors.New("its value has changed since the check")
	errNotStored    = errors.New("the kernel accepted the value but did not store it")
	// ErrOtherNamespace is wrapped in the error for an undo record from another network namespace.
	ErrOtherNamespace = errors.New("the undo record belongs to another network namespace")
)

// Apply makes changes one after the other and stops at the first failure. It first adds all of them to the undo record,
// a file. It returns the changes that it made.
func Apply(settings Settings, record string, changes []Change) (made []Change, err error) {
	for _, c := range changes {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	scope, err := settings.Scope()
	if err != nil {
		return nil, err
	}
	log, err := readRecord(record)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && log.Scope.Boot != scope.Boot:
		log = newRecord(scope)
	case err != nil:
		return nil, err
	case log.Scope != scope:
		return nil, fmt.Errorf("adding to the undo record %s: %w", record, ErrOtherNamespace)
	}
	log.add(changes)
	if err := log.write(record); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if err := compareAndSet(settings, c, c.Before, c.After); err != nil {
			return made, fmt.Errorf("changing %s: %w", c.Setting(), err)
		}
		made = append(made, c)
	}
	return made, nil
}

// compareAndSet writes the value to if the current value is from, and reads it back.
func compareAndSet(settings Settings, c Change, from, to string) error {
	if now, err := settings.Read(c); err != nil {
		return err
	} else if now != from {
		return fmt.Errorf("%w: got %q, want %q", errValueChanged, now, from)
	}
	if err := settings.Write(c, to); err != nil {
		return err
	}
	if now, err := settings.Read(c); err != nil {
		return err
	} else if now != to {
		return fmt.Errorf("%w: got %q, want %q", errNotStored, now, to)
	}
	return nil
}

// Undo reverts the changes of the undo record, last first, and removes the record. It skips settings that another program
// has changed since and settings that no longer exist. After a reboot it reverts nothing.  Errors: os.ErrNotExist without a record,
// ErrOtherNamespace, and the error of the first change that could not be reverted. The record then holds the remaining changes.
func Undo(settings Settings, record string) (outcomes []Outcome, err error) {
	log, err := readRecord(record)
	if err != nil {
		return nil, err
	}
	scope, err := settings.Scope()
	if err != nil {
		return nil, err
	}
	if log.Scope.Boot != scope.Boot {
		for _, c := range log.Changes {
			outcomes = append(outcomes, Outcome{c, "the machine has rebooted since"})
		}
		return outcomes, os.Remove(record)
	}
	if log.Scope != scope {
		return nil, fmt.Errorf("undoing %s: %w", record, ErrOtherNamespace)
	}
	for len(log.Changes) > 0 {
		c := log.Changes[len(log.Changes)-1]
		note, err := revert(settings, c)
		if err != nil {
			return outcomes, errors.Join(fmt.Errorf("reverting %s: %w", c.Setting(), err), log.write(record))
		}
		outcomes = append(outcomes, Outcome{c, note})
		log.Changes = log.Changes[:len(log.Changes)-1]
	}
	return outcomes, os.Remove(record)
}

func revert(settings Settings, c Change) (note string, err error) {
	if err := c.check(); err != nil {
		return "", err
	}
	now, err := settings.Read(c)
	switch {
	case isNotFound(err):
		return "the setting no longer exists", nil
	case err != nil:
		return "", err
	case now == c.Before:
		return "already has its old value", nil
	case now != c.After:
		return fmt.Sprintf("another program has set it to %q since", now), nil
	}
	return "", compareAndSet(settings, c, c.After, c.Before)
}

// add merges changes into the record. For one setting it keeps the oldest Before and the newest After.
func (r *record) add(changes []Change) {
	for _, c := range changes {
		same := func(old Change) bool { return old.Kind == c.Kind && old.Target == c.Target && old.Key == c.Key }
		if i := slices.IndexFunc(r.Changes, same); i >= 0 {
			r.Changes[i].After = c.After
			continue
		}
		r.Changes = append(r.Changes, c)
	}
}
