package hold

import "context"

// Watch runs one batch of the watcher.
func (h *Holds) Watch(ctx context.Context) (more bool, err error) { return h.watch(ctx) }
