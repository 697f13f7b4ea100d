package autoprune

import "context"

// Work is one turn of the worker.
func (p *Pruner) Work(ctx context.Context) (more bool, err error) { return p.work(ctx) }
