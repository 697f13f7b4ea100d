package management

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/purser-registry/purser/internal/api"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/server"
	"github.com/purser-registry/purser/internal/webhook"
)

func viewWebhook(h webhook.Hook) api.WebhookView {
	return api.WebhookView{
		UUID: h.ID, Title: h.Title, URL: h.URL, Events: h.Events, Enabled: h.Enabled, DisabledReason: h.DisabledReason,
		CreatedAt: h.Created.UTC(), UpdatedAt: h.Updated.UTC(),
	}
}

// readOnlyOfWebhooks are the members of api.WebhookView that a request can't set.
var readOnlyOfWebhooks = []string{"uuid", "disabled_reason", "created_at", "updated_at"}

// WebhookForm describes a webhook in requests. It is exported because huma makes JSON
// schemas only of exported types.
type WebhookForm struct {
	Title   *string  `json:"title,omitempty" doc:"A line for people, up to 256 bytes"`
	URL     *string  `json:"url,omitempty" doc:"Where requests are sent: http or https, without a user, and at a public address unless webhooks.allow_private is set" example:"https://hooks.example.com/purser"`
	Secret  *string  `json:"secret,omitempty" doc:"Key that notices are signed with: whsec_ and base64 of 24 to 64 bytes, or other text of 24 to 512 bytes. Absent: a new webhook gets a random key, an existing one keeps its own"`
	Events  []string `json:"events,omitempty" doc:"Some of push, tag, pull, delete, prune, gc. Quay's repo_push is push" example:"[\"push\",\"delete\"]"`
	Enabled *bool    `json:"enabled,omitempty" doc:"Default true"`
}

// TransformSchema adds the read-only members of a webhook.
func (WebhookForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return readOnly(s, readOnlyOfWebhooks...)
}

func (f WebhookForm) change() webhook.HookChange {
	return webhook.HookChange{Title: f.Title, URL: f.URL, Secret: f.Secret, Events: f.Events, Enabled: f.Enabled}
}

// webhookMade is the answer to the creation of a webhook.
type webhookMade struct {
	api.WebhookView
	Secret string `json:"secret" doc:"Key that notices are signed with. Only this answer has it"`
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

// WebhookItem and WebhookDeliveryItem have the path parameters that name a webhook and one of
// the notices that were sent to it. They are exported because huma finds parameters only in
// exported types.
type (
	WebhookItem struct {
		Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
		UUID      string `path:"uuid" doc:"Identifier of the webhook" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
	WebhookDeliveryItem struct {
		WebhookItem
		Delivery string `path:"delivery" doc:"Identifier of the notice" example:"5a3f6b0e-6f0f-4b5e-9d55-0d7f6e0b6a3c"`
	}
)

func (i WebhookItem) id() (uuid.UUID, error) { return pathUUID(i.UUID) }

func (i WebhookDeliveryItem) ids() (hook, delivery uuid.UUID, err error) {
	if hook, err = i.id(); err == nil {
		delivery, err = pathUUID(i.Delivery)
	}
	return hook, delivery, err
}

func pathUUID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, server.Refusal(http.StatusBadRequest, "%q is not a UUID", text)
	}
	return id, nil
}

// webhookOperation describes an operation on a namespace's webhooks.
func webhookOperation(id, method, path, summary string) huma.Operation {
	op := huma.Operation{
		OperationID: id, Method: method, Path: "/organization/{orgname}/webhook" + path, Tags: []string{"webhook"}, Summary: summary,
		Errors: []int{http.StatusNotFound},
	}
	if method != http.MethodGet && method != http.MethodDelete {
		op.Errors = append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// addWebhooks adds the operations on the webhooks of namespaces, and on the notices that the
// registry sends to the webhooks' URLs.
func (a *API) addWebhooks() {
	hooks := a.opt.Webhooks
	if hooks == nil {
		return
	}
	type webhookList struct {
		Webhooks []api.WebhookView `json:"webhooks" nullable:"false" doc:"Oldest first"`
		NextPage string            `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
	}
	type listInput struct {
		ScopeOfNamespace
		Paging
	}
	type listOutput struct{ Body webhookList }
	add(a, auth.Administer, webhookOperation("listOrgWebhooks", http.MethodGet, "", "List the webhooks of a namespace"),
		func(ctx context.Context, in *listInput) (*listOutput, error) {
			var after webhook.HookPlace
			if _, err := parseCursor(in.NextPage, "webhook", &after); err != nil {
				return nil, err
			}
			found, more, err := hooks.Hooks(ctx, in.Namespace, after, in.most())
			out := &listOutput{webhookList{Webhooks: []api.WebhookView{}}}
			if more {
				last := found[len(found)-1]
				out.Body.NextPage = cursor("webhook", webhook.HookPlace{Created: last.Created, ID: last.ID})
			}
			for _, h := range found {
				out.Body.Webhooks = append(out.Body.Webhooks, viewWebhook(h))
			}
			return out, err
		})
	type createInput struct {
		ScopeOfNamespace
		Body WebhookForm
	}
	type createOutput struct{ Body webhookMade }
	create := webhookOperation("createOrgWebhook", http.MethodPost, "", "Make a webhook of a namespace")
	create.DefaultStatus = http.StatusCreated
	create.Description = "From now on the URL is told of events by signed requests. Only this answer has the secret."
	add(a, auth.Administer, create, func(ctx context.Context, in *createInput) (*createOutput, error) {
		h, secret, err := hooks.CreateHook(ctx, in.Namespace, in.Body.change())
		if err != nil {
			return nil, err
		}
		return &createOutput{webhookMade{viewWebhook(h), secret}}, nil
	})
	type output struct{ Body api.WebhookView }
	add(a, auth.Administer, webhookOperation("getOrgWebhook", http.MethodGet, "/{uuid}", "Get a webhook of a namespace"),
		func(ctx context.Context, in *WebhookItem) (*output, error) {
			id, err := in.id()
			if err != nil {
				return nil, err
			}
			h, err := hooks.Hook(ctx, in.Namespace, id)
			return &output{viewWebhook(h)}, err
		})
	a.addWebhookChanges(hooks)
	a.addDeliveries(hooks)
	a.addRedelivery(hooks)
}

func (a *API) addWebhookChanges(hooks *webhook.Sender) {
	type updateInput struct {
		WebhookItem
		Body WebhookForm
	}
	update := webhookOperation("updateOrgWebhook", http.MethodPut, "/{uuid}", "Change a webhook of a namespace")
	update.DefaultStatus = http.StatusNoContent
	update.Description = "Members that the body leaves out stay as they are. Read-only members are ignored. A webhook that is enabled is " +
		"told of events from now on; notices that wait for it are sent to the URL that it has then."
	add(a, auth.Administer, update, func(ctx context.Context, in *updateInput) (*struct{}, error) {
		id, err := in.id()
		if err != nil {
			return nil, err
		}
		return nil, hooks.UpdateHook(ctx, in.Namespace, id, in.Body.change())
	})
	remove := webhookOperation("deleteOrgWebhook", http.MethodDelete, "/{uuid}", "Delete a webhook of a namespace")
	remove.DefaultStatus, remove.Description = http.StatusNoContent, "Notices that wait for the webhook aren't sent any more."
	add(a, auth.Administer, remove, func(ctx context.Context, in *WebhookItem) (*struct{}, error) {
		id, err := in.id()
		if err != nil {
			return nil, err
		}
		return nil, hooks.DeleteHook(ctx, in.Namespace, id)
	})
}

func (a *API) addDeliveries(hooks *webhook.Sender) {
	type listInput struct {
		WebhookItem
		State    string `query:"state" enum:"waiting,delivered,given_up" doc:"Only notices in this state"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most notices of a page. More than 1000 counts as 1000"`
		NextPage string `query:"next_page" doc:"Where to go on"`
	}
	type deliveryList struct {
		Deliveries []api.WebhookDelivery `json:"deliveries" nullable:"false" doc:"Newest first"`
		NextPage   string                `json:"next_page,omitempty" doc:"Where to go on. Missing on the last page"`
	}
	type listOutput struct{ Body deliveryList }
	op := webhookOperation("listOrgWebhookDeliveries", http.MethodGet, "/{uuid}/deliveries", "List the notices of a webhook")
	op.Description = "Lists notices that wait, and those that were delivered or given up in the last 7 days."
	add(a, auth.Administer, op, func(ctx context.Context, in *listInput) (*listOutput, error) {
		id, err := in.id()
		if err != nil {
			return nil, err
		}
		found, next, err := hooks.Deliveries(ctx, in.Namespace, id, in.State, in.NextPage, in.Limit)
		if errors.Is(err, webhook.ErrCursor) {
			return nil, badQuery("next_page", "%v", err)
		}
		out := &listOutput{deliveryList{[]api.WebhookDelivery{}, next}}
		for _, d := range found {
			out.Body.Deliveries = append(out.Body.Deliveries, viewDelivery(d))
		}
		return out, err
	})
	type output struct{ Body api.WebhookDelivery }
	add(a, auth.Administer, webhookOperation("getOrgWebhookDelivery", http.MethodGet, "/{uuid}/deliveries/{delivery}", "Get a notice of a webhook, with its body"),
		func(ctx context.Context, in *WebhookDeliveryItem) (*output, error) {
			hook, id, err := in.ids()
			if err != nil {
				return nil, err
			}
			d, err := hooks.Delivery(ctx, in.Namespace, hook, id)
			return &output{viewDelivery(d)}, err
		})
}

func (a *API) addRedelivery(hooks *webhook.Sender) {
	again := webhookOperation("redeliverOrgWebhookDelivery", http.MethodPost, "/{uuid}/deliveries/{delivery}/redeliver", "Send a notice of a webhook once more")
	again.DefaultStatus, again.Errors = http.StatusAccepted, append(again.Errors, http.StatusConflict)
	again.Description = "The notice is sent now, even if it was delivered or given up, with the same webhook-id and body, and is tried as often as a new one."
	type queuedNotice struct {
		UUID uuid.UUID `json:"uuid" format:"uuid" doc:"Identifier of the notice"`
	}
	type acceptedOutput struct{ Body queuedNotice }
	add(a, auth.Administer, again, func(ctx context.Context, in *WebhookDeliveryItem) (*acceptedOutput, error) {
		hook, id, err := in.ids()
		if err != nil {
			return nil, err
		}
		return &acceptedOutput{queuedNotice{id}}, hooks.Redeliver(ctx, in.Namespace, hook, id)
	})
	all := webhookOperation("redeliverOrgWebhook", http.MethodPost, "/{uuid}/redeliver", "Send the notices of a webhook that were given up once more")
	all.DefaultStatus, all.Errors = http.StatusAccepted, append(all.Errors, http.StatusConflict)
	type queuedNotices struct {
		Deliveries int64 `json:"deliveries" doc:"Number of notices that are sent again"`
	}
	type manyOutput struct{ Body queuedNotices }
	add(a, auth.Administer, all, func(ctx context.Context, in *WebhookItem) (*manyOutput, error) {
		id, err := in.id()
		if err != nil {
			return nil, err
		}
		n, err := hooks.RedeliverGivenUp(ctx, in.Namespace, id)
		return &manyOutput{queuedNotices{n}}, err
	})
	test := webhookOperation("testOrgWebhook", http.MethodPost, "/{uuid}/test", "Send a webhook a test notice")
	test.DefaultStatus, test.Errors = http.StatusAccepted, append(test.Errors, http.StatusConflict)
	test.Description = "The notice's type is ping. Get the notice to see how its delivery went."
	add(a, auth.Administer, test, func(ctx context.Context, in *WebhookItem) (*acceptedOutput, error) {
		id, err := in.id()
		if err != nil {
			return nil, err
		}
		ping, err := hooks.Ping(ctx, in.Namespace, id)
		return &acceptedOutput{queuedNotice{ping}}, err
	})
}
