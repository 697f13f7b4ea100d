package client

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"

	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/internal/webhook"
)

func webhookCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("webhook", "Manage webhooks: URLs that are told of events in a namespace",
		webhookListCommand(src), webhookCreateCommand(src), webhookShowCommand(src), webhookUpdateCommand(src), webhookDeleteCommand(src),
		webhookTestCommand(src), webhookDeliveriesCommand(src), webhookRedeliverCommand(src))
	cmd.Long = "Manage the webhooks of a namespace, which are told of pushes, pulls, deletions and garbage collection. A webhook is a URL\n" +
		"that gets a signed request for each event that it asks for. WEBHOOK is its title, its URL, its UUID, or how that begins.\nThe events: " + strings.Join(webhook.Events(), ", ") + "."
	return addServer(cmd)
}

// webhookState says whether a webhook is enabled, and why not.
func webhookState(w api.WebhookView) string {
	switch {
	case w.Enabled:
		return "enabled"
	case w.DisabledReason != "":
		return "disabled: " + w.DisabledReason
	}
	return "disabled"
}

// withWebhook is like withClient, for commands whose arguments name a namespace, possibly a
// webhook of it, and possibly one of its notices. It passes what they name to `run`.
func withWebhook(src *command.Source, run func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error) func(*cobra.Command, []string) error {
	return withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := checkArg("NAMESPACE", args[0], checkNamespace); err != nil {
			return err
		}
		args = append(args, "", "")
		in := api.DeliveryItem{WebhookItem: api.WebhookItem{Namespace: args[0]}}
		if args[1] != "" {
			var err error
			if in.UUID, err = identifyWebhook(cmd.Context(), c, in.Namespace, args[1]); err != nil {
				return err
			}
		}
		if args[2] != "" {
			var err error
			if in.Delivery, err = identifyDelivery(cmd.Context(), c, in.WebhookItem, args[2]); err != nil {
				return err
			}
		}
		return run(cmd, c, in)
	})
}

func webhookListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list NAMESPACE", Short: "List the webhooks of a namespace", Args: cobra.ExactArgs(1)}
	listing := command.AddListing(cmd)
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		list, more, err := api.List(cmd.Context(), c, api.ListWebhooks, api.WebhookQuery{InNamespace: api.InNamespace{Namespace: in.Namespace}}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(h api.WebhookView) string { return h.UUID.String() }, func(w io.Writer) error {
			if len(list) == 0 {
				_, err := fmt.Fprintf(w, "%s has no webhooks.\n", in.Namespace)
				return err
			}
			rows := make([][]string, len(list))
			for i, h := range list {
				rows[i] = []string{h.UUID.String(), h.URL, strings.Join(h.Events, ","), webhookState(h), h.Title}
			}
			return table(w, []string{"UUID", "URL", "EVENTS", "STATE", "TITLE"}, rows, more)
		})
	})
	return cmd
}

// webhookFlags describe a webhook.
type webhookFlags struct {
	url, title, secret string // secret is a file's name
	events             []string
}

func addWebhookFlags(cmd *cobra.Command) *webhookFlags {
	f, flags := new(webhookFlags), cmd.Flags()
	textFlag(cmd, &f.url, "url", "", "`URL` that requests are sent to: https://host/path", notEmpty)
	flags.Var(listFlag{&f.events, checkEvent}, "events", "`EVENTS` with commas between them: "+strings.Join(webhook.Events(), ", "))
	flags.StringVar(&f.title, "title", "", "`TEXT` for people")
	textFlag(cmd, &f.secret, "secret-file", "", "`FILE` with the key to sign with, - for standard input (default: the registry makes one up)", notEmpty)
	return f
}

func checkEvent(name string) error { return checkChoice(webhook.Events()...)(name) }

// form returns the body of the request, with a member for each flag that was given.
func (f *webhookFlags) form(cmd *cobra.Command) (form api.WebhookForm, err error) {
	if cmd.Flags().Changed("url") {
		form.URL = &f.url
	}
	if cmd.Flags().Changed("title") {
		form.Title = &f.title
	}
	form.Events = f.events
	if f.secret != "" {
		secret, err := readSecret(cmd.InOrStdin(), f.secret)
		if err != nil {
			return form, command.Usagef("--secret-file: %v", err)
		}
		form.Secret = &secret
	}
	return form, nil
}

// maxSecret limits the length of a webhook's secret, in bytes.
const maxSecret = 4096

// readSecret reads a webhook's secret, at most maxSecret bytes, from the file at `path`, or
// from stdin if path is "-". It strips newlines at the end.
func readSecret(stdin io.Reader, path string) (string, error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close() //nolint:errcheck // only read
		stdin = f
	}
	b, err := io.ReadAll(io.LimitReader(stdin, maxSecret))
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func webhookCreateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAMESPACE", Short: "Make a webhook, and print the secret that it signs with", Args: cobra.ExactArgs(1),
		Long:    "Make a webhook: from now on the URL is told of the events. The secret that requests are signed with is\nprinted once, and can't be asked for again.",
		Example: "  purser webhook create app --url https://hooks.example.com/purser --events push,delete",
	}
	format, flags := command.AddFormat(cmd), addWebhookFlags(cmd)
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		form, err := flags.form(cmd)
		switch {
		case err != nil:
			return err
		case flags.url == "":
			return command.Usagef("--url is missing: give the URL that requests are sent to, https://host/path")
		case len(flags.events) == 0:
			return command.Usagef("--events is missing: name some of %s", strings.Join(webhook.Events(), ", "))
		}
		out, err := api.CreateWebhook.Call(cmd.Context(), c, api.WebhookNew{InNamespace: api.InNamespace{Namespace: in.Namespace}, Body: form})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), out, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "Created webhook %s.\nIts secret, which isn't told again: %s\n", out.UUID, out.Secret)
			return err
		})
	})
	return cmd
}

func webhookShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show NAMESPACE WEBHOOK [DELIVERY]", Short: "Show a webhook, or one of its notices with the body", Args: cobra.RangeArgs(2, 3),
	}
	format := command.AddFormat(cmd)
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		if in.Delivery != "" {
			d, err := api.GetDelivery.Call(cmd.Context(), c, in)
			if err != nil {
				return err
			}
			return format.Print(cmd.OutOrStdout(), d, func(w io.Writer) error {
				return fields(w, "uuid", d.UUID.String(), "event", d.Event, "state", d.State, "attempts", strconv.Itoa(d.Attempts), "created", clock(&d.CreatedAt),
					"next attempt", clock(d.NextAttempt), "ended", clock(d.EndedAt), "last error", d.LastError, "body", d.Body)
			})
		}
		h, err := api.GetWebhook.Call(cmd.Context(), c, in.WebhookItem)
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), h, func(w io.Writer) error {
			return fields(w, "uuid", h.UUID.String(), "title", h.Title, "url", h.URL, "events", strings.Join(h.Events, ", "), "state", webhookState(h),
				"created", clock(&h.CreatedAt), "saved", clock(&h.UpdatedAt))
		})
	})
	return cmd
}

func webhookUpdateCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "update NAMESPACE WEBHOOK", Short: "Change a webhook; settings that aren't given stay as they are", Args: cobra.ExactArgs(2),
		Example: "  purser webhook update app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e --disable",
	}
	flags := addWebhookFlags(cmd)
	enable := cmd.Flags().Bool("enable", false, "enable it: send it notices of events from now on, and those that wait")
	disable := cmd.Flags().Bool("disable", false, "disable it: make no notices for it, and send none")
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		form, err := flags.form(cmd)
		if err != nil {
			return err
		}
		switch {
		case *enable && *disable:
			return command.Usagef("--enable and --disable are given: leave one out")
		case *enable, *disable:
			form.Enabled = enable
		case reflect.ValueOf(form).IsZero():
			return command.Usagef("nothing is given to change: add --url, --events, --title, --secret-file, --enable or --disable")
		}
		if _, err := api.UpdateWebhook.Call(cmd.Context(), c, api.WebhookChange{WebhookItem: in.WebhookItem, Body: form}); err != nil {
			return err
		}
		return say(cmd, "Saved webhook %s.\n", in.UUID)
	})
	return cmd
}

func webhookDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete NAMESPACE WEBHOOK", Short: "Delete a webhook: what waits for it isn't sent", Args: cobra.ExactArgs(2)}
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		if _, err := api.DeleteWebhook.Call(cmd.Context(), c, in.WebhookItem); err != nil {
			return err
		}
		return say(cmd, "Deleted webhook %s.\n", in.UUID)
	})
	return cmd
}

func webhookTestCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "test NAMESPACE WEBHOOK", Short: "Send a webhook a test notice (ping)", Args: cobra.ExactArgs(2)}
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		out, err := api.TestWebhook.Call(cmd.Context(), c, in.WebhookItem)
		if err != nil {
			return err
		}
		return say(cmd, "Queued notice %s. \"purser webhook show %s %s %[1]s\" says how it went.\n", out.UUID, in.Namespace, in.UUID)
	})
	return cmd
}

func webhookDeliveriesCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "deliveries NAMESPACE WEBHOOK", Short: "List the notices of a webhook, the newest first", Args: cobra.ExactArgs(2)}
	listing := command.AddListing(cmd)
	var state string
	textFlag(cmd, &state, "state", "", "only notices in this `STATE`: waiting, delivered or given_up",
		checkChoice(webhook.Waiting, webhook.Delivered, webhook.GivenUp))
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		list, more, err := api.List(cmd.Context(), c, api.ListDeliveries, api.DeliveryQuery{WebhookItem: in.WebhookItem, State: state}, listing.Limit)
		if err != nil {
			return err
		}
		return command.PrintList(cmd, listing, list, more, func(d api.WebhookDelivery) string { return d.UUID.String() }, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, d := range list {
				rows[i] = []string{d.UUID.String(), clock(&d.CreatedAt), d.Event, d.State, strconv.Itoa(d.Attempts), d.LastError}
			}
			return table(w, []string{"DELIVERY", "CREATED", "EVENT", "STATE", "ATTEMPTS", "LAST ERROR"}, rows, more)
		})
	})
	return cmd
}

func webhookRedeliverCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "redeliver NAMESPACE WEBHOOK [DELIVERY]", Short: "Send a notice once more, or all that were given up", Args: cobra.RangeArgs(2, 3),
		Example: "  purser webhook redeliver app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e 5a3f6b0e-6f0f-4b5e-9d55-0d7f6e0b6a3c\n" +
			"  purser webhook redeliver app f6d1a7b0-9a8c-4a7e-9b0e-3a4f6f1c2d3e --given-up",
	}
	all := cmd.Flags().Bool("given-up", false, "all notices that were given up; leave DELIVERY out")
	cmd.RunE = withWebhook(src, func(cmd *cobra.Command, c *api.Client, in api.DeliveryItem) error {
		switch {
		case *all == (in.Delivery != ""):
			return command.Usagef("name one DELIVERY, or give --given-up")
		case *all:
			out, err := api.RedeliverGivenUp.Call(cmd.Context(), c, in.WebhookItem)
			if err != nil {
				return err
			}
			return say(cmd, "Queued %d notices once more.\n", out.Deliveries)
		}
		if _, err := api.Redeliver.Call(cmd.Context(), c, in); err != nil {
			return err
		}
		return say(cmd, "Queued notice %s once more.\n", in.Delivery)
	})
	return cmd
}
