// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// once runs each target that is not unpredictable for the time or count of -once, from its archive, and keeps nothing but findings. It ends at
// the first one.
func once(ctx context.Context, o options, targets []target, diag io.Writer) (err error) {
	o.work, err = os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.work)) }()
	targets = slices.DeleteFunc(targets, unpredictable)
	if len(targets) == 0 {
		return errors.New("running each target once: only targets match that -once leaves out, use -hours for them")
	}
	r, err := newRunner(o, targets, diag)
	if err != nil {
		return err
	}
	for i, t := range targets {
		if err := r.fuzzOnce(ctx, t); err != nil {
			return err
		}
		if i+1 == len(targets) || targets[i+1].dir != t.dir {
			if err := r.builder.remove(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (r *runner) fuzzOnce(ctx context.Context, t target) error {
	binary, err := r.builder.fuzzing(ctx, t)
	if err != nil {
		return err
	}
	o, err := fuzz(ctx, r.exec, binary, t, r.cache(t), r.once)
	if err != nil {
		return fmt.Errorf("fuzzing %s: %w", t, err)
	}
	fmt.Fprintf(r.diag, "%s: %s executions\n", t, thousands(o.executions))
	if o.finding != "" {
		return fmt.Errorf("%s fails with %s:\n%s", t, o.finding, o.output)
	}
	return nil
}
