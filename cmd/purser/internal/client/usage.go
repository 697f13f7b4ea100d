package client

import (
	"fmt"
	"io"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/usage"
)

// mostLargest is how many namespaces the registry lists by what they store.
const mostLargest = 1000

func usageCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "usage [NAMESPACE]", Short: "Show what the registry or a namespace stores, the largest first", Args: cobra.MaximumNArgs(1),
		Long: "Show what the registry stores, and its largest namespaces; or what a namespace stores, and its largest repositories.\n" +
			"Each blob counts once, however many of them have it. \"Own\" is what no other has. Sizes are measured now and then, and are\n" +
			"as of the time that is printed. The registry is for its administrators, a namespace for its maintainers.",
		Example: "  purser usage\n  purser usage acme --limit 10",
	}
	listing := command.AddListing(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if len(args) == 0 {
			return printUsage(cmd, c, listing)
		}
		in := api.NamespaceUsageQuery{InNamespace: api.InNamespace{Namespace: args[0]}, Paging: api.Paging{Limit: 1}, Days: 1}
		all, err := api.GetNamespaceUsage.Call(cmd.Context(), c, in)
		if err != nil {
			return err
		}
		list, more, err := api.List(cmd.Context(), c, api.GetNamespaceUsage, in, listing.Limit)
		if err != nil {
			return err
		}
		values := []string{"namespace", args[0], "measured", since(&all.At), "stored", command.Size(all.Bytes)}
		if all.Own != nil {
			values = append(values, "of its own", command.Size(*all.Own))
		}
		all.Repositories, all.NextPage = list, ""
		return printSums(cmd, listing, all, values, "REPOSITORY", list, more)
	})
	return addServer(cmd)
}

// printUsage prints what the registry stores.
func printUsage(cmd *cobra.Command, c *api.Client, listing *command.Listing) error {
	most := listing.Limit
	if most == 0 || most > mostLargest {
		most = mostLargest
	}
	u, err := api.GetUsage.Call(cmd.Context(), c, api.UsageQuery{Limit: most, Days: 1})
	if err != nil {
		return err
	}
	values := []string{
		"measured", since(&u.At), "stored", command.Size(u.Bytes), "in repositories", command.Size(u.InRepositories()),
		"in the trash alone", command.Size(u.Trash), "in no repository", command.Size(u.Unreferenced),
	}
	for _, d := range u.Disks {
		values = append(values, "free for "+d.Of, command.Size(d.Free)+" of "+command.Size(d.Size))
	}
	return printSums(cmd, listing, u, values, "NAMESPACE", u.Namespaces, len(u.Namespaces) == most && most < mostLargest)
}

// printSums prints an answer as fields and a table of sums.
func printSums(cmd *cobra.Command, listing *command.Listing, answer any, values []string, what string, list []usage.Sums, more bool) error {
	return listing.Print(cmd, answer, more, func(w io.Writer) error {
		for _, s := range list {
			if _, err := fmt.Fprintln(w, command.Printable(s.Name)); err != nil {
				return fmt.Errorf("printing: %w", err)
			}
		}
		return nil
	}, func(w io.Writer) error {
		if err := fields(w, values...); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
		rows := make([][]string, len(list))
		for i, s := range list {
			rows[i] = []string{s.Name, command.Size(s.Bytes), command.Size(s.Own), command.Size(s.Shared()), humanize.Comma(s.Blobs)}
		}
		return table(w, []string{what, "STORED", "OWN", "SHARED", "BLOBS"}, rows, more)
	})
}
