package config

import (
	"errors"
	"net/url"
	"time"
)

// Autoprune configures auto-pruning.
type Autoprune struct {
	Enabled  bool          // whether this process prunes; policies can be managed in any case
	Interval time.Duration // least time between two runs in a namespace
	KeepRuns time.Duration
	Grace    time.Duration // of policies that don't have their own
	// DefaultPolicy is a policy, as JSON, that applies in all namespaces. If it is "",
	// there is no such policy.
	DefaultPolicy string
	Webhook       Webhook
}

// autopruneSettings are the settings of auto-pruning.
var autopruneSettings = []setting{
	{key: "autoprune.enabled", def: "true", also: "FEATURE_AUTO_PRUNE", field: func(c *Config) field { return boolField{&c.Autoprune.Enabled} }},
	{key: "autoprune.interval", def: "30s", also: "AUTO_PRUNING_POLL_PERIOD", field: func(c *Config) field {
		return secondsField{durationField{&c.Autoprune.Interval, time.Second, time.Hour}}
	}},
	{key: "autoprune.default_policy", also: "DEFAULT_NAMESPACE_AUTOPRUNE_POLICY", field: func(c *Config) field {
		return objectField{&c.Autoprune.DefaultPolicy}
	}},
	{key: "autoprune.keep_runs", def: "90d", field: func(c *Config) field {
		return durationField{&c.Autoprune.KeepRuns, time.Minute, maxDuration}
	}},
	{key: "autoprune.grace", def: "0s", field: func(c *Config) field { return durationField{&c.Autoprune.Grace, 0, maxDuration} }},
}

// Trash configures how long deleted repositories and namespaces can be restored.
type Trash struct {
	Keep time.Duration // 0: they can't
}

// trashSettings are the settings of the trash.
var trashSettings = []setting{
	{key: "trash.keep", def: "24h", decides: true, field: func(c *Config) field { return durationField{&c.Trash.Keep, 0, maxDuration} }},
}

// Clock configures when the clocks are fit to delete by.
type Clock struct {
	Tolerance      time.Duration // how far the clocks may differ
	LongestAbsence time.Duration // how long the registry may have been stopped without a question
}

// clockSettings are the settings of the clocks.
var clockSettings = []setting{
	{key: "clock.tolerance", def: "5m", decides: true, field: func(c *Config) field { return durationField{&c.Clock.Tolerance, time.Minute, 24 * time.Hour} }},
	{key: "clock.longest_absence", def: "3d", decides: true, field: func(c *Config) field {
		return durationField{&c.Clock.LongestAbsence, time.Minute, maxDuration}
	}},
}

// Webhook is the receiver of notices about auto-pruning's runs.
type Webhook struct {
	URL          Secret // a secret, since the URLs of many receivers contain tokens; "": no receiver
	Secret       Secret // "": notices aren't signed
	AllowPrivate bool   // the receiver may have an address that isn't public
}

// webhookSettings are the settings of auto-pruning's notices.
var webhookSettings = []setting{
	{key: "autoprune.webhook.url", field: func(c *Config) field { return secretField{&c.Autoprune.Webhook.URL} }},
	{key: "autoprune.webhook.secret", field: func(c *Config) field { return secretField{&c.Autoprune.Webhook.Secret} }},
	{key: "autoprune.webhook.allow_private", def: "false", field: func(c *Config) field {
		return boolField{&c.Autoprune.Webhook.AllowPrivate}
	}},
}

// Webhooks configures the webhooks of namespaces.
type Webhooks struct {
	AllowPrivate bool // receivers may have addresses that aren't public
}

// hookSettings are the settings of namespaces' webhooks.
var hookSettings = []setting{
	{key: "webhooks.allow_private", def: "false", field: func(c *Config) field { return boolField{&c.Webhooks.AllowPrivate} }},
}

// validateWebhook checks the form of the URL of auto-pruning's webhook. It reports other
// settings of that webhook if they are set and the URL isn't.
func (c *Config) validateWebhook(report func(key, format string, args ...any)) {
	w := c.Autoprune.Webhook
	if w.URL == "" {
		for _, s := range webhookSettings {
			if s.field(c).show() != s.def {
				report(s.key, "it is set but autoprune.webhook.url isn't; set that, or remove it")
			}
		}
		return
	}
	if err := parseWebhookURL(string(w.URL)); err != nil {
		report("autoprune.webhook.url", "%v", err)
	}
}

// parseWebhookURL checks the URL of a webhook. Its errors don't repeat the URL, which may
// contain a secret token.
func parseWebhookURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("it is no http or https URL; write it as https://host/path")
	}
	if u.User != nil {
		return errors.New("it may not hold a user or a password")
	}
	return nil
}
