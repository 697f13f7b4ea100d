package api

import (
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/auth"
)

// WebhookView is a webhook in answers.
type WebhookView struct {
	UUID           uuid.UUID `json:"uuid" format:"uuid"`
	Title          string    `json:"title"`
	URL            string    `json:"url" example:"https://hooks.example.com/purser"`
	Events         []string  `json:"events" nullable:"false"`
	Enabled        bool      `json:"enabled" doc:"False: the webhook gets no new notices, and those that wait aren't sent"`
	DisabledReason string    `json:"disabled_reason,omitempty" doc:"Why the registry has disabled the webhook"`
	CreatedAt      time.Time `json:"created_at"`
	UpdatedAt      time.Time `json:"updated_at"`
}

// WebhookMade is the answer to the creation of a webhook.
type WebhookMade struct {
	WebhookView
	Secret string `json:"secret" doc:"Key that notices are signed with. Only this answer has it"`
}

// WebhookList is a page of the webhooks of a namespace.
type WebhookList struct {
	Webhooks []WebhookView `json:"webhooks" nullable:"false" doc:"Oldest first"`
	NextPage string        `json:"next_page,omitempty" doc:"Where the next page begins; missing on the last page"`
}

// Entries implements Page.
func (l WebhookList) Entries() ([]WebhookView, string) { return l.Webhooks, l.NextPage }

// WebhookForm is a webhook in requests.
type WebhookForm struct {
	Title   *string  `json:"title,omitempty" doc:"A line for people, up to 256 bytes"`
	URL     *string  `json:"url,omitempty" doc:"Where requests are sent: http or https, without a user, and at a public address unless webhooks.allow_private is set" example:"https://hooks.example.com/purser"`
	Secret  *string  `json:"secret,omitempty" doc:"Key that notices are signed with: whsec_ and base64 of 24 to 64 bytes, or other text of 24 to 512 bytes. Absent: a new webhook gets a random key, an existing one keeps its own"`
	Events  []string `json:"events,omitempty" doc:"Some of push, tag, pull, delete, prune, gc. Quay's repo_push is push" example:"[\"push\",\"delete\"]"`
	Enabled *bool    `json:"enabled,omitempty" doc:"Default true"`
}

// TransformSchema adds the read-only members of a webhook.
func (WebhookForm) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return ReadOnly(s, "uuid", "disabled_reason", "created_at", "updated_at")
}

// WebhookDelivery is a notice in answers.
type WebhookDelivery struct {
	UUID        uuid.UUID  `json:"uuid" format:"uuid" doc:"The notice's webhook-id"`
	Event       string     `json:"event"`
	State       string     `json:"state" enum:"waiting,delivered,given_up"`
	Attempts    int        `json:"attempts" doc:"Number of attempts to deliver it, including one under way"`
	LastError   string     `json:"last_error,omitempty" doc:"Why the last attempt failed"`
	CreatedAt   time.Time  `json:"created_at"`
	NextAttempt *time.Time `json:"next_attempt,omitempty" doc:"When a waiting notice is tried next"`
	EndedAt     *time.Time `json:"ended_at,omitempty" doc:"When it was delivered or given up"`
	Body        string     `json:"body,omitempty" doc:"The body of the request. Lists leave it out"`
}

// DeliveryList is a page of the notices of a webhook.
type DeliveryList struct {
	Deliveries []WebhookDelivery `json:"deliveries" nullable:"false" doc:"Newest first"`
	NextPage   string            `json:"next_page,omitempty" doc:"Where to go on. Missing on the last page"`
}

// Entries implements Page.
func (l DeliveryList) Entries() ([]WebhookDelivery, string) { return l.Deliveries, l.NextPage }

// QueuedNotice names a notice that is sent, and QueuedNotices counts them.
type (
	QueuedNotice struct {
		UUID uuid.UUID `json:"uuid" format:"uuid" doc:"Identifier of the notice"`
	}
	QueuedNotices struct {
		Deliveries int64 `json:"deliveries" doc:"Number of notices that are sent again"`
	}
)

// Inputs of the operations on webhooks.
type (
	WebhookQuery struct {
		InNamespace
		Paging
	}
	WebhookNew struct {
		InNamespace
		Body WebhookForm
	}
	WebhookItem struct {
		Namespace string `path:"orgname" doc:"Name of the namespace" example:"library"`
		UUID      string `path:"uuid" doc:"Identifier of the webhook" example:"f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e"`
	}
	WebhookChange struct {
		WebhookItem
		Body WebhookForm
	}
	DeliveryQuery struct {
		WebhookItem
		State    string `query:"state" enum:"waiting,delivered,given_up" doc:"Only notices in this state"`
		Limit    int    `query:"limit" minimum:"1" default:"100" doc:"Most notices of a page. More than 1000 counts as 1000"`
		NextPage string `query:"next_page" doc:"Where to go on"`
	}
	DeliveryItem struct {
		WebhookItem
		Delivery string `path:"delivery" doc:"Identifier of the notice" example:"5a3f6b0e-6f0f-4b5e-9d55-0d7f6e0b6a3c"`
	}
)

// Resource returns the namespace.
func (i WebhookItem) Resource() auth.Resource { return auth.OfNamespace(i.Namespace) }

// webhookOperation describes an operation on the webhooks of a namespace, at a path below theirs.
func webhookOperation[I, O any](id, method, path, summary, description string, status int, errors ...int) Operation[I, O] {
	errors = append([]int{http.StatusNotFound}, errors...)
	if method == http.MethodPost || method == http.MethodPut {
		errors = append(errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return Operation[I, O]{
		ID: id, Method: method, Path: "/organization/{orgname}/webhook" + path, Tag: "webhook", Access: auth.Administer,
		Summary: summary, Description: description, Status: status, Errors: errors,
	}
}

// The operations on webhooks, and on the notices that are sent to them.
var (
	ListWebhooks  = webhookOperation[WebhookQuery, WebhookList]("listOrgWebhooks", http.MethodGet, "", "List the webhooks of a namespace", "", 0)
	CreateWebhook = webhookOperation[WebhookNew, WebhookMade]("createOrgWebhook", http.MethodPost, "", "Make a webhook of a namespace",
		"From now on the URL is told of events by signed requests. Only this answer has the secret.", http.StatusCreated).
		needing(map[string]any{"url": "https://hooks.example.com/purser", "events": []string{"push"}})
	GetWebhook    = webhookOperation[WebhookItem, WebhookView]("getOrgWebhook", http.MethodGet, "/{uuid}", "Get a webhook of a namespace", "", 0)
	UpdateWebhook = webhookOperation[WebhookChange, None]("updateOrgWebhook", http.MethodPut, "/{uuid}", "Change a webhook of a namespace",
		"Members that the body leaves out stay as they are. Read-only members are ignored. A webhook that is enabled is "+
			"told of events from now on; notices that wait for it are sent to the URL that it has then.", http.StatusNoContent)
	DeleteWebhook = webhookOperation[WebhookItem, None]("deleteOrgWebhook", http.MethodDelete, "/{uuid}", "Delete a webhook of a namespace",
		"Notices that wait for the webhook aren't sent any more.", http.StatusNoContent)
	TestWebhook = webhookOperation[WebhookItem, QueuedNotice]("testOrgWebhook", http.MethodPost, "/{uuid}/test", "Send a webhook a test notice",
		"The notice's type is ping. Get the notice to see how its delivery went.", http.StatusAccepted, http.StatusConflict)

	ListDeliveries = webhookOperation[DeliveryQuery, DeliveryList]("listOrgWebhookDeliveries", http.MethodGet, "/{uuid}/deliveries", "List the notices of a webhook",
		"Lists notices that wait, and those that were delivered or given up in the last 7 days.", 0)
	GetDelivery = webhookOperation[DeliveryItem, WebhookDelivery]("getOrgWebhookDelivery", http.MethodGet, "/{uuid}/deliveries/{delivery}",
		"Get a notice of a webhook, with its body", "", 0)
	Redeliver = webhookOperation[DeliveryItem, QueuedNotice]("redeliverOrgWebhookDelivery", http.MethodPost, "/{uuid}/deliveries/{delivery}/redeliver",
		"Send a notice of a webhook once more", "The notice is sent now, even if it was delivered or given up, with the same webhook-id and body, and is tried as often as a new one.",
		http.StatusAccepted, http.StatusConflict)
	RedeliverGivenUp = webhookOperation[WebhookItem, QueuedNotices]("redeliverOrgWebhook", http.MethodPost, "/{uuid}/redeliver",
		"Send the notices of a webhook that were given up once more", "", http.StatusAccepted, http.StatusConflict)
)
