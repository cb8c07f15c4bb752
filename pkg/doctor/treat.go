// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
)

// Hands read and change a host's settings. Values are as a Change has them.
type Hands interface {
	Read(Change) (string, error)
	Write(c Change, value string) error
	// Place tells where the settings are in force.
	Place() (Place, error)
}

// Place is a network namespace between two starts of its machine. Settings do not outlive it.
type Place struct {
	Boot    string `json:"boot_id"`
	Network string `json:"network_namespace"`
}

// Outcome is what became of one change.
type Outcome struct {
	Change Change
	Note   string // why nothing was done; empty if it was
}

var (
	errMoved   = errors.New("it has been changed meanwhile")
	errIgnored = errors.New("the kernel took the value and did not keep it")
	// ErrElsewhere is in the chain of the error for an undo record that was made in another network namespace.
	ErrElsewhere = errors.New("it was written in another network namespace")
)

// Treat makes changes, one after the other, and stops at the first that fails. What it is about to do it first adds to the
// undo record, a file. It returns those that it made.
func Treat(hands Hands, record string, changes []Change) (made []Change, err error) {
	for _, c := range changes {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	place, err := hands.Place()
	if err != nil {
		return nil, err
	}
	log, err := readRecord(record)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && log.Place.Boot != place.Boot:
		log = newRecord(place)
	case err != nil:
		return nil, err
	case log.Place != place:
		return nil, fmt.Errorf("adding to the undo record %s: %w", record, ErrElsewhere)
	}
	log.add(changes)
	if err := log.write(record); err != nil {
		return nil, err
	}
	for _, c := range changes {
		if err := exchange(hands, c, c.Before, c.After); err != nil {
			return made, fmt.Errorf("changing %s: %w", c.Setting(), err)
		}
		made = append(made, c)
	}
	return made, nil
}

// exchange replaces a value, if it is the one that it is thought to be.
func exchange(hands Hands, c Change, from, to string) error {
	if now, err := hands.Read(c); err != nil {
		return err
	} else if now != from {
		return fmt.Errorf("%w: it is %q, not %q", errMoved, now, from)
	}
	if err := hands.Write(c, to); err != nil {
		return err
	}
	if now, err := hands.Read(c); err != nil {
		return err
	} else if now != to {
		return fmt.Errorf("%w: it is %q, not %q", errIgnored, now, to)
	}
	return nil
}

// Undo takes back what the undo record lists, last first, and removes the record. What somebody has changed since, and
// what is gone, stays as it is. After a restart there is nothing to take back. Errors: os.ErrNotExist without a record,
// ErrElsewhere, and the first change's that could not be taken back: the record then has those that are left.
func Undo(hands Hands, record string) (outcomes []Outcome, err error) {
	log, err := readRecord(record)
	if err != nil {
		return nil, err
	}
	place, err := hands.Place()
	if err != nil {
		return nil, err
	}
	if log.Place.Boot != place.Boot {
		for _, c := range log.Changes {
			outcomes = append(outcomes, Outcome{c, "the machine has been started since"})
		}
		return outcomes, os.Remove(record)
	}
	if log.Place != place {
		return nil, fmt.Errorf("undoing %s: %w", record, ErrElsewhere)
	}
	for len(log.Changes) > 0 {
		c := log.Changes[len(log.Changes)-1]
		note, err := takeBack(hands, c)
		if err != nil {
			return outcomes, errors.Join(fmt.Errorf("taking back the change of %s: %w", c.Setting(), err), log.write(record))
		}
		outcomes = append(outcomes, Outcome{c, note})
		log.Changes = log.Changes[:len(log.Changes)-1]
	}
	return outcomes, os.Remove(record)
}

func takeBack(hands Hands, c Change) (note string, err error) {
	if err := c.check(); err != nil {
		return "", err
	}
	now, err := hands.Read(c)
	switch {
	case gone(err):
		return "it is gone", nil
	case err != nil:
		return "", err
	case now == c.Before:
		return "it is as it was", nil
	case now != c.After:
		return fmt.Sprintf("somebody has set it to %q since", now), nil
	}
	return "", exchange(hands, c, c.After, c.Before)
}

// add merges changes into those of before: of one setting the oldest value and the newest count.
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
