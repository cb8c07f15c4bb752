// SPDX-License-Identifier: Apache-2.0

package agent

import "context"

// background is a goroutine that runs until it is stopped, or ends by itself.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startBackground starts a goroutine that ends when its context does.
func startBackground(run func(ctx context.Context)) *background {
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{cancel, make(chan struct{})}
	go func() {
		defer close(b.done)
		run(ctx)
	}()
	return b
}

// stop ends the goroutine and waits for it. It may be called again, and on nil.
func (b *background) stop() {
	if b != nil {
		b.cancel()
		<-b.done
	}
}
