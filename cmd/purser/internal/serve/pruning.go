package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/config"
	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/webhook"
	"github.com/purser-registry/purser/internal/worker"
)

// openWebhooks makes the sender of notices. It sends notices about auto-pruning to the
// webhook of the settings (autoprune.webhook), and notices of other events to the webhooks
// that namespaces have for them.
func openWebhooks(cfg *config.Config, p dependencies, loops *worker.Metrics) (*webhook.Sender, error) {
	metrics := webhook.NewMetrics(p.metrics)
	hook := cfg.Autoprune.Webhook
	return webhook.New(webhook.Options{
		DB: p.db, URL: string(hook.URL), Secret: string(hook.Secret), AllowPrivate: hook.AllowPrivate,
		AllowPrivateHooks: cfg.Webhooks.AllowPrivate, Pulls: cfg.Audit.Pulls, MostHooks: cfg.Limits.Webhooks,
		MayDelete: p.clocks.Check, Log: p.log, Metrics: metrics, Worker: loops,
	})
}

// openPruning makes the worker that prunes tags. If autoprune.webhook is configured, the
// worker queues notices about the deleted tags for it.
func openPruning(cfg *config.Config, c *catalog.Catalog, notices *webhook.Sender, p dependencies, loops *worker.Metrics) (*autoprune.Pruner, error) {
	byDefault, err := command.DefaultPolicy(cfg)
	if err != nil {
		return nil, err
	}
	warnOfDefault(p.log, byDefault)
	o := autoprune.Options{
		DB: p.db, Catalog: c, Background: p.prunes, Interval: cfg.Autoprune.Interval, KeepRuns: cfg.Autoprune.KeepRuns, Default: byDefault,
		Grace: cfg.Autoprune.Grace, MostPolicies: cfg.Limits.Policies, Clock: p.clocks, Store: p.store, Log: p.log, Metrics: p.metrics, Worker: loops,
	}
	if notices.Configured() {
		o.Notified = notices.Wake
		o.Notify = func(ctx context.Context, tx db.Querier, event string, data any) error {
			return notices.Queue(ctx, tx, webhook.Event{Type: event, Time: time.Now(), Data: data})
		}
	}
	PruneByPulls(&o, p.pulls.sync, p.pulls.flush)
	return autoprune.New(o)
}

// warnOfDefault logs what the default policy of the configuration surely wasn't meant to do. That doesn't
// keep the server from starting: where the policy would do it, it rests until somebody confirms that.
func warnOfDefault(log *slog.Logger, of *policy.Policy) {
	if of == nil {
		return
	}
	for _, warning := range of.Warnings() {
		log.Warn("the default policy may do what it wasn't meant to", "setting", policies.SettingName, "policy", of.String(), "warning", warning)
	}
}

// openHolds makes the holds of what is deployed, with the worker that watches the reporters. If
// autoprune.webhook is configured, the worker queues notices about silent reporters for it.
func openHolds(cfg *config.Config, notices *webhook.Sender, p dependencies) (*hold.Holds, error) {
	o := hold.Options{DB: p.db, MostReporters: cfg.Limits.Reporters, MayDelete: p.clocks.Check, CheckTime: p.clocks.CheckTime, Log: p.log, Metrics: p.metrics, Worker: p.loops}
	if notices.Configured() {
		o.Notified = notices.Wake
		o.Notify = func(ctx context.Context, tx db.Querier, event string, data any) error {
			return notices.Queue(ctx, tx, webhook.Event{Type: event, Time: time.Now(), Data: data})
		}
	}
	return hold.New(o)
}
