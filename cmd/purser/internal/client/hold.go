package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

func holdCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("hold", "Report what is deployed, and see who holds what",
		holdListCommand(src), holdShowCommand(src), holdReportCommand(src), holdDeleteCommand(src))
	cmd.Long = "What a reporter holds isn't deleted: a reporter is a cluster, a host or a pipeline that tells the registry which digests\n" +
		"it runs. Its holds end together when it hasn't reported for longer than its lease."
	return addServer(cmd)
}

// addNamespace adds the flag --namespace, without which reporters are those of the registry.
func addNamespace(cmd *cobra.Command) *url.Values {
	q := &url.Values{}
	var namespace string
	textFlag(cmd, &namespace, "namespace", "", "the `NAMESPACE` in which the holds are in force (default: the whole registry)", notEmpty)
	cmd.PreRun = func(*cobra.Command, []string) {
		if namespace != "" {
			q.Set("namespace", namespace)
		}
	}
	return q
}

func reporterCells(r hold.Reporter) []string {
	return []string{r.Name, r.Kind, r.State, humanize.Comma(r.Digests), clock(&r.Reported), clock(&r.Expires)}
}

func holdListCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the reporters of a namespace, or of the whole registry", Args: cobra.NoArgs}
	format, limit, namespace := command.AddFormat(cmd), addLimit(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, _ []string) error {
		list, more, err := api.Collect(*limit, func(cursor string, n int) ([]hold.Reporter, string, error) {
			var page struct {
				Reporters []hold.Reporter `json:"reporters"`
				NextPage  string          `json:"next_page"`
			}
			q := parameters("namespace", namespace.Get("namespace"), "next_page", cursor, "limit", fmt.Sprint(n))
			err := c.Get(cmd.Context(), api.Path("holds"), q, &page)
			return page.Reporters, page.NextPage, err
		})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), list, func(w io.Writer) error {
			rows := make([][]string, len(list))
			for i, r := range list {
				rows[i] = reporterCells(r)
			}
			return table(w, []string{"REPORTER", "KIND", "STATE", "DIGESTS", "REPORTED", "ENDS"}, rows, more)
		})
	})
	return cmd
}

// shownReporter is a reporter with its digests, as holdShowCommand prints it.
type shownReporter struct {
	hold.Reporter
	Held []hold.Held `json:"held"`
}

func holdShowCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "show REPORTER", Short: "Show a reporter and the digests that it holds", Args: cobra.ExactArgs(1)}
	format, limit, namespace := command.AddFormat(cmd), addLimit(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		var r shownReporter
		if err := c.Get(cmd.Context(), api.Path("holds", args[0]), *namespace, &r); err != nil {
			return err
		}
		var err error
		var more bool
		r.Held, more, err = api.Collect(*limit, func(cursor string, n int) ([]hold.Held, string, error) {
			var page struct {
				Digests  []hold.Held `json:"digests"`
				NextPage string      `json:"next_page"`
			}
			q := parameters("namespace", namespace.Get("namespace"), "next_page", cursor, "limit", fmt.Sprint(n))
			err := c.Get(cmd.Context(), api.Path("holds", args[0], "digests"), q, &page)
			return page.Digests, page.NextPage, err
		})
		if err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), r, func(w io.Writer) error {
			err := fields(w, "reporter", r.Name, "kind", r.Kind, "state", r.State, "digests", humanize.Comma(r.Digests), "account", r.Account,
				"lease", (time.Duration(r.Lease) * time.Second).String(), "reported", clock(&r.Reported), "ends", clock(&r.Expires))
			if err != nil || len(r.Held) == 0 {
				return err
			}
			rows := make([][]string, len(r.Held))
			for i, h := range r.Held {
				rows[i] = []string{h.Digest.String(), h.UsedBy, clock(&h.Since)}
			}
			return table(w, []string{"DIGEST", "USED BY", "SINCE"}, rows, more)
		})
	})
	return cmd
}

func holdDeleteCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "delete REPORTER", Short: "Delete a reporter, which ends its holds at once", Args: cobra.ExactArgs(1)}
	yes, namespace := addYes(cmd), addNamespace(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := confirm(cmd, *yes, "Delete reporter %s? What it holds may then be deleted.", args[0]); err != nil {
			return err
		}
		if err := c.Delete(cmd.Context(), api.Path("holds", args[0]), *namespace); err != nil {
			return err
		}
		return say(cmd, "Deleted reporter %s.\n", args[0])
	})
	return cmd
}

func holdReportCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "report REPORTER [FILE]", Short: "Report the whole list of deployed digests, from a file or standard input", Args: cobra.RangeArgs(1, 2),
		Long: "Report the whole list of deployed digests, from a file or standard input. A line has a digest, or an image's name with @ and\n" +
			"its digest, and after a space who uses it; or a JSON object with digest and used_by. Digests that the last report had and\n" +
			"this one hasn't are held no more, so the list must be complete.",
		Example: "  docker ps -q | xargs docker inspect -f '{{.Image}} container {{.Name}}' > running && purser hold report host-7 running --namespace app",
	}
	format, namespace := command.AddFormat(cmd), addNamespace(cmd)
	var lease, kind string
	textFlag(cmd, &lease, "lease", "", "the holds end after `AGE` without another report, such as 12h or 7d (default: as before; 1d at first)", checkAge)
	textFlag(cmd, &kind, "kind", "", "what the reporter is, for people: a `WORD` such as docker", notEmpty)
	empty := cmd.Flags().Bool("allow-empty", false, "report an empty list too: nothing is held then")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		in := cmd.InOrStdin()
		if len(args) > 1 {
			f, err := os.Open(args[1])
			if err != nil {
				return fmt.Errorf("opening the list: %w", err)
			}
			defer f.Close() //nolint:errcheck // only read
			in = f
		}
		items, err := readDeployed(in)
		if err != nil {
			return err
		}
		if len(items) == 0 && !*empty {
			return command.Refuse("The list is empty, so nothing was reported. With --allow-empty, the reporter holds nothing any more.")
		}
		q := parameters("namespace", namespace.Get("namespace"), "lease", lease, "kind", kind)
		var done hold.Reported
		body := map[string]any{"digests": items}
		if err := c.Do(cmd.Context(), http.MethodPut, api.Path("holds", args[0]), q, body, &done); err != nil {
			return err
		}
		return format.Print(cmd.OutOrStdout(), done, func(w io.Writer) error {
			missing := "unknown"
			if done.Missing != nil {
				missing = humanize.Comma(*done.Missing)
			}
			return fields(w, "digests", humanize.Comma(done.Digests), "added", humanize.Comma(done.Added), "removed", humanize.Comma(done.Removed),
				"not in the registry", missing, "held until", clock(&done.Expires))
		})
	})
	return cmd
}

// readDeployed reads a list of deployed digests, one a line. It skips empty lines.
func readDeployed(in io.Reader) ([]hold.Item, error) {
	items := []hold.Item{}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		item, err := parseDeployed(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of the list: %w", n, err)
		}
		items = append(items, item)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	return items, nil
}

func parseDeployed(line []byte) (item hold.Item, err error) {
	if line[0] == '{' {
		if err := json.Unmarshal(line, &item); err != nil {
			return item, err
		}
		if item.Digest.IsZero() {
			return item, errors.New("it has no digest")
		}
		return item, nil
	}
	name, by, _ := strings.Cut(strings.ReplaceAll(string(line), "\t", " "), " ")
	if _, digest, ok := strings.Cut(name, "@"); ok {
		name = digest
	}
	item.UsedBy = strings.TrimSpace(by)
	item.Digest, err = oci.ParseDigest(name)
	return item, err
}
