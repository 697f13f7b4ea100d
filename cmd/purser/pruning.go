package main

import (
	"context"
	"time"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/webhook"
	"github.com/purser-registry/purser/internal/worker"
)

// openPruning makes what prunes by policies and tells of it, and what of that runs
// in the background.
func openPruning(cfg config.Autoprune, c *catalog.Catalog, p parts, loops *worker.Metrics) (*autoprune.Pruner, []func(context.Context) error, error) {
	metrics, err := webhook.NewMetrics(p.metrics)
	if err != nil {
		return nil, nil, err
	}
	hook := cfg.Webhook
	sender, err := webhook.New(webhook.Options{
		DB: p.db, URL: string(hook.URL), Secret: string(hook.Secret), AllowPrivate: hook.AllowPrivate,
		Log: p.log, Metrics: metrics, Worker: loops,
	})
	if err != nil {
		return nil, nil, err
	}
	o := autoprune.Options{
		DB: p.db, Catalog: c, Interval: cfg.Interval, KeepRuns: cfg.KeepRuns, Log: p.log, Metrics: p.metrics, Worker: loops,
	}
	if sender.Configured() {
		o.Notified = sender.Wake
		o.Notify = func(ctx context.Context, tx audit.Execer, event string, data any) error {
			return sender.Queue(ctx, tx, webhook.Event{Type: event, Time: time.Now(), Data: data})
		}
	}
	pruneByPulls(&o, p.pulls)
	pruner, err := autoprune.New(o)
	if err != nil {
		return nil, nil, err
	}
	background := []func(context.Context) error{sender.Run}
	if cfg.Enabled {
		background = append(background, pruner.Run)
	}
	return pruner, background, nil
}
