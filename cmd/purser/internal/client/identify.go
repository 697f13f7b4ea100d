package client

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
)

// mostNamed limits how many items are looked at for a name.
const mostNamed = 10_000

// item is something that a command can be told by its UUID, or by names that people know.
type item struct {
	uuid  string
	names []string // more than one item may have a name; "" is none
	about string   // says which it is, in the list of those that may be meant
}

// beginsUUID matches the beginning of a UUID that is long enough to be one.
var beginsUUID = regexp.MustCompile(`^[0-9a-f]{4}[0-9a-f-]*$`)

// identify returns the UUID of the item that the user has written: by its UUID, which needs no list, by
// the beginning of it, or by a name. `what` is the argument's name in errors, `names` says what may be
// written. The item must be the only one that is meant; otherwise the error lists those that are.
func identify(what, names, text string, list func() (items []item, more bool, err error)) (string, error) {
	if id, err := uuid.Parse(text); err == nil {
		return id.String(), nil
	}
	items, more, err := list()
	if err != nil {
		return "", err
	}
	begin := strings.ToLower(strings.TrimSuffix(text, "…"))
	items = slices.DeleteFunc(items, func(i item) bool {
		return !slices.Contains(i.names, text) && (!beginsUUID.MatchString(begin) || !strings.HasPrefix(i.uuid, begin))
	})
	switch {
	case len(items) == 1 && !more && text != "":
		return items[0].uuid, nil
	case len(items) == 0 || text == "":
		return "", command.Usagef("%s: %q isn't possible: none is called so. Write %s", what, text, names)
	case len(items) == 1:
		return "", command.Usagef("%s: %q isn't possible: there are so many that another one may be called so. Write the UUID", what, text)
	}
	rows := make([][]string, len(items))
	for n, i := range items {
		rows[n] = []string{i.uuid, i.about}
	}
	return "", command.Ambiguous(what+": several are called "+command.Printable(text)+"; write the UUID", []string{"UUID", what}, rows[:min(len(rows), 20)], more || len(rows) > 20)
}

// identifyRule returns the UUID of a protection rule at a place, which is written as its pattern or UUID.
func identifyRule(ctx context.Context, c *api.Client, at api.At, text string) (string, error) {
	return identify("RULE", "its pattern, its UUID, or how that begins, as \"purser protection list\" shows them", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListProtection, api.ProtectionQuery{At: at}, mostNamed)
		for _, r := range list {
			items = append(items, item{r.UUID, []string{r.Pattern}, r.Pattern})
		}
		return items, more, err
	})
}

// identifyWebhook returns the UUID of a webhook of a namespace, which is written as its title, URL or UUID.
func identifyWebhook(ctx context.Context, c *api.Client, namespace, text string) (string, error) {
	return identify("WEBHOOK", "its title, its URL, its UUID, or how that begins, as \"purser webhook list\" shows them", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListWebhooks, api.WebhookQuery{InNamespace: api.InNamespace{Namespace: namespace}}, mostNamed)
		for _, h := range list {
			items = append(items, item{h.UUID.String(), []string{h.Title, h.URL}, strings.TrimSpace(h.URL + "  " + h.Title)})
		}
		return items, more, err
	})
}

// writePolicy says how a policy is written.
const writePolicy = "its UUID, or how that begins, with at least 4 digits"

// identifyPolicy returns the UUID of a policy at a place, which has no name.
func identifyPolicy(ctx context.Context, c *api.Client, at api.PolicyAt, text string) (string, error) {
	return identify("POLICY", writePolicy+", as \"purser policy list\" shows it", text, func() (items []item, more bool, err error) {
		list, err := api.ListPolicies.Call(ctx, c, at)
		for _, p := range list.Policies {
			items = append(items, item{uuid: p.UUID, about: policyWords(policyView(p))})
		}
		return items, false, err
	})
}

// policyWords says what a policy does, in a line.
func policyWords(p policyView) string {
	row := p.row()
	return strings.Join(strings.Fields(strings.Join(row[1:5], " ")), " ")
}

// onlyOf returns the UUID of one of those policies, which is written as its UUID or how that begins.
func onlyOf(text string, uuids []string) (string, error) {
	return identify("POLICY", writePolicy, text, func() (items []item, more bool, err error) {
		for _, id := range uuids {
			if !slices.ContainsFunc(items, func(i item) bool { return i.uuid == id }) {
				items = append(items, item{uuid: id})
			}
		}
		return items, false, nil
	})
}
