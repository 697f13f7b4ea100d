package ui

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/purser-registry/purser/internal/server/ui/format"

	"github.com/purser-registry/purser/internal/api"
)

// Paths of the pages of webhooks.
const (
	webhooksPath = "/ui/namespaces/{namespace}/-/webhooks"
	webhookPath  = webhooksPath + "/{webhook}"
	deliveryPath = webhookPath + "/deliveries/{delivery}"
)

func (u *UI) addWebhooks() {
	u.add(webhooksPath, func(q *request) error { return q.showWebhooks(http.StatusOK, nil, webhookForm{}) }, createWebhook)
	u.add(webhookPath, func(q *request) error { return q.showWebhook(http.StatusOK, q.doneNotice(webhookDone), webhookForm{}) }, changeWebhook)
	u.add(deliveryPath, func(q *request) error { return q.showDelivery(http.StatusOK, q.doneNotice(webhookDone)) }, resendDelivery)
}

// webhookEvents are the events that a webhook may ask for, with what happens then.
var webhookEvents = []field{
	{"push", "a manifest is pushed"}, {"tag", "a tag is made, moved or restored without a push"}, {"pull", "manifests are pulled (their number, once a minute)"},
	{"delete", "tags, manifests or a repository are deleted"}, {"prune", "policies delete tags"}, {"gc", "garbage collection deletes manifests (their number, once a minute)"},
}

// webhookDone has the sentences about what a form has done, by the value of the parameter "done".
var webhookDone = map[string]string{
	"saved": "The webhook was saved.", unchanged: unchangedText,
	"enable":  "The webhook is enabled: it is told of events from now on.",
	"disable": "The webhook is disabled: nothing is sent to it until you enable it.",
	"delete":  "The webhook was deleted. Notices that waited for it aren't sent.",
	"test":    "A test notice is on its way. This page says how it goes.",
	"again":   "The notice is sent again, unless it is being sent at this moment.",
}

// doneNotice returns the notice for the parameter "done" of the query, nil for none.
func (q *request) doneNotice(sentences map[string]string) *notice {
	if text := sentences[q.query("done")]; text != "" {
		return &notice{Text: text}
	}
	return nil
}

// webhookValues are what the forms of webhooks ask for, besides the secret.
type webhookValues struct {
	Title, URL string
	Events     []string
}

// webhookForm is the form of a new or an existing webhook.
type webhookForm struct {
	webhookValues
	Was        *webhookValues // what the page had shown; nil for a new webhook
	Typed      bool           // somebody has sent it, and it comes back
	OwnSecret  bool           // somebody has typed a secret, which doesn't come back
	Wrong, Why string         // the member that the registry has refused, and the reason
}

// Choices returns the events with those picked that the form asks for.
func (f webhookForm) Choices() (list []eventChoice) {
	for _, e := range webhookEvents {
		list = append(list, eventChoice{e, slices.Contains(f.Events, e.Name)})
	}
	return list
}

type eventChoice struct {
	field
	Picked bool
}

// typedWebhook reads the form of a webhook. Its events are never nil, which would leave them as they are.
func (q *request) typedWebhook() webhookForm {
	f := q.form
	typed := webhookForm{Typed: true, OwnSecret: f.Get("secret") != ""}
	typed.Title, typed.URL, typed.Events = strings.TrimSpace(f.Get("title")), strings.TrimSpace(f.Get("url")), append([]string{}, f["event"]...)
	if f.Has("was_url") {
		typed.Was = &webhookValues{f.Get("was_title"), f.Get("was_url"), f["was_event"]}
	}
	return typed
}

// refused adds the registry's reason to a form, and returns the notice of the page.
func (f *webhookForm) refused(err error) *notice {
	n := failure(err)
	refusal, ok := errors.AsType[*apiError](err)
	var details struct{ Field string }
	if !ok || json.Unmarshal(refusal.details, &details) != nil {
		return n
	}
	label := map[string]string{"title": "title", "url": "URL", "secret": "secret", "events": "events"}[details.Field]
	if label == "" {
		return n
	}
	f.Wrong, f.Why = details.Field, format.Sentence(strings.TrimPrefix(refusal.message, details.Field+": "))
	n.Text = "Not saved: look at the " + label + " below."
	return n
}

// webhooksPage returns the frame of a page below the tab of webhooks.
func (q *request) webhooksPage(n *notice) page {
	out := q.placePage(place{namespace: q.values["namespace"]}, "/-/webhooks")
	out.Notice = n
	return out
}

// showWebhooks lists the webhooks of a namespace, with the form for a new one.
func (q *request) showWebhooks(status int, n *notice, typed webhookForm) error {
	namespace := q.values["namespace"]
	list, err := run(q, api.ListWebhooks, api.WebhookQuery{InNamespace: api.InNamespace{Namespace: namespace}, Paging: q.paging("page", 40)})
	if err != nil {
		return err
	}
	if n == nil {
		n = q.doneNotice(webhookDone)
	}
	p := q.webhooksPage(n)
	p.Title, p.Heading = "Webhooks of "+namespace, namespace
	p.Data = struct {
		Namespace, Action string
		Webhooks          []api.WebhookView
		Pages             pages
		Form              webhookForm
	}{namespace, link(webhooksPath, namespace), list.Webhooks, q.pagesOf(nil, list.NextPage), typed}
	p.Same = []same{
		command("purser webhook list %s", namespace), command("purser webhook create %s --url URL --events push,delete", namespace),
		call("GET", apiPath("/organization/%s/webhook", namespace)), call("POST", apiPath("/organization/%s/webhook", namespace)),
	}
	return q.showStatus(status, "webhooks", p)
}

// createWebhook makes a webhook, and shows its page with its secret.
func createWebhook(q *request) error {
	namespace, typed := q.values["namespace"], q.typedWebhook()
	form := api.WebhookForm{Title: &typed.Title, URL: &typed.URL, Events: typed.Events}
	if typed.OwnSecret {
		own := q.form.Get("secret")
		form.Secret = &own
	}
	made, err := run(q, api.CreateWebhook, api.WebhookNew{InNamespace: api.InNamespace{Namespace: namespace}, Body: form})
	if err != nil {
		n := typed.refused(err)
		if status := formStatus(err); status != 0 {
			return q.showWebhooks(status, n, typed)
		}
		return err
	}
	d := webhookData{Webhook: made.WebhookView}
	text := "The webhook was made. It signs with the secret that you gave it."
	if !typed.OwnSecret {
		d.Made = &secret{For: webhookName(made.WebhookView), What: "secret", Value: made.Secret}
		text = "The webhook was made. Give its receiver the secret, by which it knows that notices come from here."
	}
	return q.showMade(text, d.Made, func() error { return q.showWebhookData(http.StatusOK, &notice{Text: text}, d) })
}

// webhookName returns the title of a webhook, or the host of its URL if it has none.
func webhookName(w api.WebhookView) string {
	if w.Title != "" {
		return w.Title
	}
	if u, err := url.Parse(w.URL); err == nil && u.Host != "" {
		return u.Host
	}
	return w.UUID.String()
}

// webhookItem returns the webhook of the request's path.
func (q *request) webhookItem() api.WebhookItem {
	return api.WebhookItem{Namespace: q.values["namespace"], UUID: q.values["webhook"]}
}

// deliveryStates are the states by which deliveries are listed.
var deliveryStates = []field{{"", "All"}, {"waiting", "Waiting"}, {"delivered", "Delivered"}, {"given_up", "Given up"}}

// webhookData is the page of a webhook.
type webhookData struct {
	Namespace, Action string
	Webhook           api.WebhookView
	Made              *secret
	Form              webhookForm
	State             string
	States            []tab
	Deliveries        []api.WebhookDelivery
	Pages             pages
}

// showWebhook shows the webhook of the request's path, with the form as it was typed.
func (q *request) showWebhook(status int, n *notice, typed webhookForm) error {
	found, err := run(q, api.GetWebhook, q.webhookItem())
	if err != nil {
		return err
	}
	if again, err := strconv.Atoi(q.query("again")); err == nil && again >= 0 && n == nil {
		n = &notice{Text: format.Plural(again, "notice that was given up is sent again.", "notices that were given up are sent again.")}
	}
	return q.showWebhookData(status, n, webhookData{Webhook: found, Form: typed})
}

// showWebhookData shows a webhook with its deliveries.
func (q *request) showWebhookData(status int, n *notice, d webhookData) error {
	namespace, id := q.values["namespace"], d.Webhook.UUID.String()
	d.Namespace, d.Action = namespace, link(webhookPath, namespace, id)
	if !d.Form.Typed {
		now := webhookValues{d.Webhook.Title, d.Webhook.URL, d.Webhook.Events}
		d.Form = webhookForm{webhookValues: now, Was: &now}
	}
	d.State = oneOf(q.query("state"), "", "waiting", "delivered", "given_up")
	list, err := run(q, api.ListDeliveries, api.DeliveryQuery{
		WebhookItem: api.WebhookItem{Namespace: namespace, UUID: id}, State: d.State, Limit: 40, NextPage: q.query("page"),
	})
	if err != nil {
		return err
	}
	d.Deliveries, d.Pages = list.Deliveries, q.pagesOf(q.keep("state"), list.NextPage)
	for _, s := range deliveryStates {
		d.States = append(d.States, tab{s.Value, d.Action + arguments("state", s.Name), s.Name == d.State})
	}
	p := q.webhooksPage(n)
	p.Crumbs = append(p.Crumbs, crumb{namespace, link("/ui/namespaces/{namespace}", namespace)}, crumb{"Webhooks", link(webhooksPath, namespace)})
	p.Title, p.Data = webhookName(d.Webhook), d
	at := apiPath("/organization/%s/webhook/%s", namespace, id)
	p.Same = []same{
		command("purser webhook show %s %s", namespace, id), command("purser webhook update %s %s --url URL", namespace, id), command("purser webhook test %s %s", namespace, id),
		command("purser webhook deliveries %s %s", namespace, id), command("purser webhook redeliver %s %s --given-up", namespace, id), command("purser webhook delete %s %s", namespace, id),
		call("GET", at), call("PUT", at), call("POST", at+"/test"), call("GET", at+"/deliveries"), call("POST", at+"/redeliver"), call("DELETE", at),
	}
	return q.showStatus(status, "webhook", p)
}

// changeWebhook runs a form of the page of a webhook.
func changeWebhook(q *request) error {
	item, do := q.webhookItem(), q.form.Get("do")
	to := link(webhookPath, item.Namespace, item.UUID) + "?done="
	var typed webhookForm
	var err error
	switch do {
	case "save":
		var changed bool
		typed = q.typedWebhook()
		if changed, err = q.saveWebhook(item, typed); changed {
			to += "saved"
		} else {
			to += unchanged
		}
	case "enable", "disable":
		enabled := do == "enable"
		_, err = run(q, api.UpdateWebhook, api.WebhookChange{WebhookItem: item, Body: api.WebhookForm{Enabled: &enabled}})
		to += do
	case "test":
		var ping api.QueuedNotice
		ping, err = run(q, api.TestWebhook, item)
		to = link(deliveryPath, item.Namespace, item.UUID, ping.UUID.String()) + "?done=test"
	case "redeliver":
		var again api.QueuedNotices
		again, err = run(q, api.RedeliverGivenUp, item)
		to = link(webhookPath, item.Namespace, item.UUID) + "?again=" + strconv.FormatInt(again.Deliveries, 10)
	case "delete":
		_, err = run(q, api.DeleteWebhook, item)
		to = link(webhooksPath, item.Namespace) + "?done=delete"
	default:
		err = formError("The form doesn't say what to do.")
	}
	if err == nil {
		return q.redirect(to)
	}
	n := typed.refused(err)
	if status := formStatus(err); status != 0 {
		return q.showWebhook(status, n, typed)
	}
	return err
}

// saveWebhook changes those settings of a webhook that differ from what the page had shown. What somebody
// else has changed meanwhile stays.
func (q *request) saveWebhook(item api.WebhookItem, typed webhookForm) (changed bool, err error) {
	if typed.Was == nil {
		return false, formError("The form doesn't say what the page had shown: open the webhook's page again.")
	}
	var form api.WebhookForm
	if typed.Title != typed.Was.Title {
		form.Title, changed = &typed.Title, true
	}
	if typed.URL != typed.Was.URL {
		form.URL, changed = &typed.URL, true
	}
	if !sameElements(typed.Events, append([]string{}, typed.Was.Events...)) {
		form.Events, changed = typed.Events, true
	}
	if typed.OwnSecret {
		own := q.form.Get("secret")
		form.Secret, changed = &own, true
	}
	if changed {
		_, err = run(q, api.UpdateWebhook, api.WebhookChange{WebhookItem: item, Body: form})
	}
	return changed, err
}

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
	Headers  []format.Pair
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
	words := format.Room(shownBody)
	body, _ := format.Indented(d.Delivery.Body, shownBody)
	d.Body = words.Clip(shownBody, body)
	d.Cut = len(d.Body) < len(body) || len(body) >= shownBody
	d.Headers = []format.Pair{
		{Name: "Content-Type", Value: "application/json"}, {Name: "Content-Length", Value: strconv.Itoa(len(d.Delivery.Body))}, {Name: "User-Agent", Value: "purser-webhook"}, {Name: "Webhook-Id", Value: delivery},
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
		return "It was given up after " + format.Plural(d.Attempts, "attempt", "attempts") + ". It is sent again only if somebody asks for that."
	case !enabled:
		return "The webhook is disabled, so the notice isn't sent. It is sent when somebody enables the webhook within 7 days."
	case d.Attempts == 0:
		return "It waits for its first attempt."
	case d.NextAttempt != nil && d.NextAttempt.After(time.Now()) && d.LastError == "":
		return "Attempt " + strconv.Itoa(d.Attempts) + " is under way."
	}
	return format.Plural(d.Attempts, "attempt was made, or is under way.", "attempts were made, the last one may be under way.") + " If it fails, another one follows."
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
