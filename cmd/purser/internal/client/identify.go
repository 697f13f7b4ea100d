package client

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
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
	if e, ok := errors.AsType[*api.Error](err); ok && e.Status == http.StatusForbidden {
		return "", command.Usagef("%s: %q isn't possible: you may not list what it could stand for. Write the whole UUID", what, text)
	}
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

// identifyUUID is like identify, for what has no names: another text needs no list.
func identifyUUID(what, names, text string, list func() (items []item, more bool, err error)) (string, error) {
	if err := checkArg(what, text, checkUUID); err != nil {
		return "", err
	}
	return identify(what, names, text, list)
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

// identifyDelivery returns the UUID of a notice that was sent to a webhook, which has no name.
func identifyDelivery(ctx context.Context, c *api.Client, of api.WebhookItem, text string) (string, error) {
	return identifyUUID("DELIVERY", "its UUID, or how that begins, with at least 4 digits, as \"purser webhook deliveries\" shows it", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListDeliveries, api.DeliveryQuery{WebhookItem: of}, mostNamed)
		for _, d := range list {
			items = append(items, item{uuid: d.UUID.String(), about: d.Event + " " + d.State + " " + clock(&d.CreatedAt)})
		}
		return items, more, err
	})
}

// identifyRun returns the UUID of a run of auto-pruning, which has no name.
func identifyRun(ctx context.Context, c *api.Client, text string) (string, error) {
	return identifyUUID("RUN", "its UUID, or how that begins, with at least 4 digits, as \"purser prune runs\" shows it", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListPruneRuns, api.PruneRunQuery{}, mostNamed)
		for _, r := range list {
			items = append(items, item{uuid: r.ID, about: r.Namespace + " " + r.State + " " + clock(&r.Started)})
		}
		return items, more, err
	})
}

// identifyToken returns the UUID of one of the user's own tokens, which is written as its title or UUID.
func identifyToken(ctx context.Context, c *api.Client, text string) (string, error) {
	return identify("TOKEN", "its title, its UUID, or how that begins, as \"purser token list\" shows them", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListTokens, api.TokenQuery{}, mostNamed)
		for _, t := range list {
			items = append(items, item{t.UUID, []string{t.Title}, t.Kind + " " + t.Title})
		}
		return items, more, err
	})
}

// identifySession returns the id of a log-in of a browser, which has no name.
func identifySession(ctx context.Context, c *api.Client, text string) (string, error) {
	return identifyUUID("ID", "its ID, or how that begins, with at least 4 digits, as \"purser session list\" shows it", text, func() (items []item, more bool, err error) {
		list, more, err := api.List(ctx, c, api.ListSessions, api.Paging{}, mostNamed)
		for _, s := range list {
			items = append(items, item{uuid: s.ID, about: s.Address + " " + clock(&s.LastUsedAt) + " " + s.UserAgent})
		}
		return items, more, err
	})
}

// ofPolicies are the kinds of audit entries that have a policy or a run.
var ofPolicies = []string{
	string(audit.AutopruneTagDelete), string(audit.RunAutoprune), string(audit.UndoAutoprune), string(audit.ChangeExemptions), string(audit.FreeSpace), string(audit.AnnounceAutoprune),
	string(audit.AskAutoprune), string(audit.ApproveAutoprune), string(audit.RestAutoprune), string(audit.ConfirmAutoprune), string(audit.ObserveAutoprune), string(audit.ChangeDefault),
	string(audit.CreateNamespacePolicy), string(audit.UpdateNamespacePolicy), string(audit.DeleteNamespacePolicy), string(audit.CreateRepositoryPolicy), string(audit.UpdateRepositoryPolicy),
	string(audit.DeleteRepositoryPolicy), string(audit.DeleteTag), string(audit.RevertTag),
}

// identifyInLog returns the UUID of a policy or a run that entries of a part of the audit log have, of those that
// `idOf` returns, "" for none. Deleted policies are among them.
func identifyInLog(ctx context.Context, c *api.Client, what, text string, part api.LogExport, idOf func(api.LogEntry) string) (string, error) {
	part.Policy, part.Run = "", ""
	if len(part.Kinds) == 0 {
		part.Kinds = ofPolicies
	}
	return identifyUUID(what, "a UUID that these entries have, or how it begins, with at least 4 digits", text, func() (items []item, more bool, err error) {
		list, more, err := listLog(ctx, c, part, mostNamed)
		for _, e := range list {
			if id := idOf(e); id != "" && !slices.ContainsFunc(items, func(i item) bool { return i.uuid == id }) {
				row := logView(e).row()
				items = append(items, item{uuid: id, about: strings.Join([]string{row[0], row[1], row[3]}, " ")})
			}
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
