package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/webhook"
)

// addWebhooks binds the operations on the webhooks of namespaces, and on the notices that the
// registry sends to them.
func (a *API) addWebhooks() {
	hooks := a.opt.Webhooks
	if hooks == nil {
		return
	}
	serve(a, api.ListWebhooks, a.listWebhooks)
	serve(a, api.CreateWebhook, func(ctx context.Context, in *api.WebhookNew) (*api.WebhookMade, error) {
		h, secret, err := hooks.CreateHook(ctx, in.Namespace, hookChange(in.Body))
		return &api.WebhookMade{WebhookView: viewWebhook(h), Secret: secret}, err
	})
	serve(a, api.GetWebhook, ofWebhook(func(ctx context.Context, in *api.WebhookItem, id uuid.UUID) (*api.WebhookView, error) {
		h, err := hooks.Hook(ctx, in.Namespace, id)
		out := viewWebhook(h)
		return &out, err
	}))
	serve(a, api.UpdateWebhook, func(ctx context.Context, in *api.WebhookChange) (*api.None, error) {
		id, err := pathUUID(in.UUID)
		if err != nil {
			return nil, err
		}
		return nil, hooks.UpdateHook(ctx, in.Namespace, id, hookChange(in.Body))
	})
	serve(a, api.DeleteWebhook, ofWebhook(func(ctx context.Context, in *api.WebhookItem, id uuid.UUID) (*api.None, error) {
		return nil, hooks.DeleteHook(ctx, in.Namespace, id)
	}))
	serve(a, api.TestWebhook, ofWebhook(func(ctx context.Context, in *api.WebhookItem, id uuid.UUID) (*api.QueuedNotice, error) {
		ping, err := hooks.Ping(ctx, in.Namespace, id)
		return &api.QueuedNotice{UUID: ping}, err
	}))
	serve(a, api.RedeliverGivenUp, ofWebhook(func(ctx context.Context, in *api.WebhookItem, id uuid.UUID) (*api.QueuedNotices, error) {
		n, err := hooks.RedeliverGivenUp(ctx, in.Namespace, id)
		return &api.QueuedNotices{Deliveries: n}, err
	}))
	serve(a, api.ListDeliveries, a.listDeliveries)
	serve(a, api.GetDelivery, ofDelivery(func(ctx context.Context, in *api.DeliveryItem, hook, id uuid.UUID) (*api.WebhookDelivery, error) {
		d, err := hooks.Delivery(ctx, in.Namespace, hook, id)
		out := viewDelivery(d)
		return &out, err
	}))
	serve(a, api.Redeliver, ofDelivery(func(ctx context.Context, in *api.DeliveryItem, hook, id uuid.UUID) (*api.QueuedNotice, error) {
		return &api.QueuedNotice{UUID: id}, hooks.Redeliver(ctx, in.Namespace, hook, id)
	}))
}

// ofWebhook returns a function that reads the UUID of a webhook before it calls `run`.
func ofWebhook[O any](run func(context.Context, *api.WebhookItem, uuid.UUID) (*O, error)) func(context.Context, *api.WebhookItem) (*O, error) {
	return func(ctx context.Context, in *api.WebhookItem) (*O, error) {
		id, err := pathUUID(in.UUID)
		if err != nil {
			return nil, err
		}
		return run(ctx, in, id)
	}
}

// ofDelivery is like ofWebhook, for a notice of a webhook.
func ofDelivery[O any](run func(_ context.Context, _ *api.DeliveryItem, hook, id uuid.UUID) (*O, error)) func(context.Context, *api.DeliveryItem) (*O, error) {
	return func(ctx context.Context, in *api.DeliveryItem) (*O, error) {
		hook, err := pathUUID(in.UUID)
		if err != nil {
			return nil, err
		}
		id, err := pathUUID(in.Delivery)
		if err != nil {
			return nil, err
		}
		return run(ctx, in, hook, id)
	}
}

func (a *API) listWebhooks(ctx context.Context, in *api.WebhookQuery) (*api.WebhookList, error) {
	var after webhook.HookPlace
	if _, err := parseCursor(in.NextPage, "webhook", &after); err != nil {
		return nil, err
	}
	found, more, err := a.opt.Webhooks.Hooks(ctx, in.Namespace, after, in.Most())
	out := &api.WebhookList{Webhooks: []api.WebhookView{}}
	if more {
		last := found[len(found)-1]
		out.NextPage = cursor("webhook", webhook.HookPlace{Created: last.Created, ID: last.ID})
	}
	for _, h := range found {
		out.Webhooks = append(out.Webhooks, viewWebhook(h))
	}
	return out, err
}

func (a *API) listDeliveries(ctx context.Context, in *api.DeliveryQuery) (*api.DeliveryList, error) {
	id, err := pathUUID(in.UUID)
	if err != nil {
		return nil, err
	}
	found, next, err := a.opt.Webhooks.Deliveries(ctx, in.Namespace, id, in.State, in.NextPage, in.Limit)
	if errors.Is(err, webhook.ErrCursor) {
		return nil, badQuery("next_page", "%v", err)
	}
	out := &api.DeliveryList{Deliveries: []api.WebhookDelivery{}, NextPage: next}
	for _, d := range found {
		out.Deliveries = append(out.Deliveries, viewDelivery(d))
	}
	return out, err
}

func hookChange(f api.WebhookForm) webhook.HookChange {
	return webhook.HookChange{Title: f.Title, URL: f.URL, Secret: f.Secret, Events: f.Events, Enabled: f.Enabled}
}

func viewWebhook(h webhook.Hook) api.WebhookView {
	return api.WebhookView{
		UUID: h.ID, Title: h.Title, URL: h.URL, Events: h.Events, Enabled: h.Enabled, DisabledReason: h.DisabledReason,
		CreatedAt: h.Created.UTC(), UpdatedAt: h.Updated.UTC(),
	}
}

func viewDelivery(d webhook.Delivery) api.WebhookDelivery {
	return api.WebhookDelivery{
		UUID: d.ID, Event: d.Event, State: d.State, Attempts: d.Attempts, LastError: d.LastError, CreatedAt: d.Created.UTC(),
		NextAttempt: inUTC(d.NextAttempt), EndedAt: inUTC(d.Settled), Body: d.Body,
	}
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

func pathUUID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, server.Refusal(http.StatusBadRequest, "%q is not a UUID", text)
	}
	return id, nil
}
