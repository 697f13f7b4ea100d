package ui

import (
	"net/http"
	"strconv"
	"time"

	"github.com/purser-registry/purser/internal/api"
)

// shownBody is how many bytes of HTML a page has for the body of a notice, in which there is text from
// clients.
const shownBody = 40 << 10

// deliveryData is the page of a delivery.
type deliveryData struct {
	Action   string
	Webhook  api.WebhookView
	Delivery api.WebhookDelivery
	Body     string // indented
	Cut      bool   // there is more of it
	Headers  []pair
	Outcome  string
	WasOther bool // the webhook has changed since the notice was made
	Refresh  int  // seconds after which the page looks again, 0: never
}

// showDelivery shows a notice with the request that carries it, and how its delivery went.
func (q *request) showDelivery(status int, n *notice) error {
	item := q.webhookItem()
	var d deliveryData
	var err error
	if d.Webhook, err = run(q, api.GetWebhook, item); err != nil {
		return err
	}
	d.Delivery, err = run(q, api.GetDelivery, api.DeliveryItem{WebhookItem: item, Delivery: q.values["delivery"]})
	if err != nil {
		return err
	}
	id, delivery := d.Webhook.UUID.String(), d.Delivery.UUID.String()
	d.Action = link(deliveryPath, item.Namespace, id, delivery)
	words := room(shownBody)
	body, _ := indented(d.Delivery.Body, shownBody)
	d.Body = words.clip(shownBody, body)
	d.Cut = len(d.Body) < len(body) || len(body) >= shownBody
	d.Headers = []pair{
		{"Content-Type", "application/json"}, {"Content-Length", strconv.Itoa(len(d.Delivery.Body))}, {"User-Agent", "purser-webhook"}, {"Webhook-Id", delivery},
	}
	d.Outcome = outcomeOf(d.Delivery, d.Webhook.Enabled)
	d.WasOther = d.Webhook.UpdatedAt.After(d.Delivery.CreatedAt)
	if d.Delivery.State == "waiting" && d.Webhook.Enabled {
		d.Refresh = 2
		if next := d.Delivery.NextAttempt; next != nil && time.Until(*next) > 15*time.Second {
			d.Refresh = 30
		}
	}
	p := q.webhooksPage(n)
	p.Crumbs = append(p.Crumbs, crumb{item.Namespace, link("/ui/namespaces/{namespace}", item.Namespace)}, crumb{"Webhooks", link(webhooksPath, item.Namespace)},
		crumb{webhookName(d.Webhook), link(webhookPath, item.Namespace, id)})
	p.Title, p.Data = "Delivery of "+d.Delivery.Event, d
	at := apiPath("/organization/%s/webhook/%s/deliveries/%s", item.Namespace, id, delivery)
	p.Same = []same{
		command("purser webhook show %s %s %s", item.Namespace, id, delivery), command("purser webhook redeliver %s %s %s", item.Namespace, id, delivery),
		call("GET", at), call("POST", at+"/redeliver"),
	}
	return q.showStatus(status, "webhook-delivery", p)
}

// outcomeOf says how a delivery went so far. The registry keeps no more of an answer than the state and,
// of the last attempt that failed, the reason.
func outcomeOf(d api.WebhookDelivery, enabled bool) string {
	switch {
	case d.State == "delivered":
		return "The receiver has accepted it with a status from 200 to 299, at attempt " + strconv.Itoa(d.Attempts) + ". Which status that was isn't kept, and neither is its answer."
	case d.State == "given_up":
		return "It was given up after " + plural(d.Attempts, "attempt", "attempts") + ". It is sent again only if somebody asks for that."
	case !enabled:
		return "The webhook is disabled, so the notice isn't sent. It is sent when somebody enables the webhook within 7 days."
	case d.Attempts == 0:
		return "It waits for its first attempt."
	case d.NextAttempt != nil && d.NextAttempt.After(time.Now()) && d.LastError == "":
		return "Attempt " + strconv.Itoa(d.Attempts) + " is under way."
	}
	return plural(d.Attempts, "attempt was made, or is under way.", "attempts were made, the last one may be under way.") + " If it fails, another one follows."
}

// resendDelivery sends a notice once more.
func resendDelivery(q *request) error {
	item := api.DeliveryItem{WebhookItem: q.webhookItem(), Delivery: q.values["delivery"]}
	_, err := run(q, api.Redeliver, item)
	if err == nil {
		return q.redirect(link(deliveryPath, item.Namespace, item.UUID, item.Delivery) + "?done=again")
	}
	if status := formStatus(err); status != 0 && status != http.StatusNotFound {
		return q.showDelivery(status, failure(err))
	}
	return err
}
