package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/report"
	"github.com/purser-registry/purser/cmd/purser/internal/report/kube"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/hold"
	"github.com/purser-registry/purser/internal/oci"
)

func reportCommand(src *command.Source) *cobra.Command {
	cmd := command.Group("report", "Tell a registry what is deployed, so that it isn't deleted",
		reportKubernetesCommand(src), reportDockerCommand(src), reportContainerdCommand(src), reportStdinCommand(src))
	cmd.Long = "Tell a registry what is deployed, so that it isn't deleted. The registry keeps the digests of a report until the reporter\n" +
		"hasn't reported for its lease; those that a later report leaves out, for the rest of the lease that they had. If what is deployed can't be\n" +
		"read completely, nothing is reported. An image that the registry doesn't know, or that the account may not read, is named,\n" +
		"and what the reporter held under its name stays held: the exit code is 4 then. With --namespace, images of other namespaces\n" +
		"of the registry are left out."
	return addServer(cmd)
}

// reporting has the flags that all sources of a report share.
type reporting struct {
	format        *command.Format
	namespace     *string
	lease, kind   string
	hosts         []string       // of the registry, as images name it; none: the server's
	known         []string       // further ones
	cluster       string         // whose images these are; "": unknown
	replace       bool           // it replaces the reporter's cluster
	others        map[string]int // images of other hosts, by host
	dryRun, empty bool
	interval      time.Duration // 0: report once
	renewal
}

func addReporting(cmd *cobra.Command, kind string) *reporting {
	r := &reporting{format: command.AddFormat(cmd), namespace: addNamespace(cmd), kind: kind}
	textFlag(cmd, &r.lease, "lease", "", "the holds end after `AGE` without another report, such as 12h or 7d (default: as before; 1d at first)", checkAge)
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "print what would be reported, and report nothing")
	cmd.Flags().BoolVar(&r.empty, "allow-empty", false, "report an empty list too: what was held stays so for the rest of its lease")
	return r
}

// addInterval adds the flags of sources that can be read again and again.
func (r *reporting) addInterval(cmd *cobra.Command) {
	cmd.Flags().Var(listFlag{&r.hosts, report.CheckHost}, "registry", "report the images of these `HOSTS`, by which images name the registry (default: the server's host)")
	cmd.Flags().Var(listFlag{&r.known, report.CheckHost}, "also-known-as", "report the images of these `HOSTS` too: second names of the registry, such as that by which nodes use it as a mirror; may be repeated")
	cmd.Flags().DurationVar(&r.interval, "interval", 0, "report again after this `TIME`, such as 5m, until the process is stopped (default: report once)")
}

// source reads what is deployed.
type source func(context.Context) (report.Deployed, error)

// images is a source that has images alone.
func images(read func(context.Context) ([]report.Image, error)) source {
	return func(ctx context.Context) (report.Deployed, error) {
		list, err := read(ctx)
		return report.Deployed{Images: list}, err
	}
}

// run reports the images that `read` finds, once or again and again.
func (r *reporting) run(cmd *cobra.Command, c *api.Client, reporter string, read source) error {
	if err := r.check(cmd, "use at least 1s, or leave it out to report once"); err != nil {
		return err
	}
	for {
		err := r.once(cmd, c, reporter, read)
		switch {
		case r.interval == 0:
			return err
		case cmd.Context().Err() != nil: // it was told to stop, maybe in the middle of a report
			return nil
		case errors.Is(err, errStuck):
			return err
		}
		wait, _ := r.wait(cmd, err, r.interval)
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// once reports once, within the time that a report may take.
func (r *reporting) once(cmd *cobra.Command, c *api.Client, reporter string, read source) error {
	return r.limited(cmd.Context(), func(ctx context.Context) error { return r.report(ctx, cmd, c, reporter, read) })
}

func (r *reporting) report(ctx context.Context, cmd *cobra.Command, c *api.Client, reporter string, read source) error {
	found, err := read(ctx)
	if err != nil {
		return err
	}
	for _, text := range found.Unread {
		fmt.Fprintln(cmd.ErrOrStderr(), text)
	}
	hosts := r.hosts
	if len(hosts) == 0 {
		hosts = []string{c.Server().Host}
	}
	hosts = slices.Concat(hosts, r.known)
	r.cluster, r.others = found.Cluster, report.Others(found.Images, hosts)
	return r.resolve(ctx, cmd, c, reporter, report.Of(found.Images, hosts), fmt.Sprintf("None of the %d deployed images is of %s", len(found.Images), strings.Join(hosts, " or ")))
}

// resolve reports the digests of images. `none` says that there are none.
func (r *reporting) resolve(ctx context.Context, cmd *cobra.Command, c *api.Client, reporter string, images []report.Image, none string) error {
	namespace := *r.namespace
	in := report.In(images, namespace)
	if others := len(images) - len(in); others > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s of other namespaces than %s left out\n", counted(int64(others), "image is", "images are"), namespace)
		none += " in namespace " + namespace
	}
	found, err := report.Resolve(in, asked{ctx, c, r.requestTime()})
	if err != nil {
		return report.Incomplete(err)
	}
	tellUnresolved(cmd, found.Unresolved)
	if len(found.Items)+len(found.Unresolved) == 0 && !r.empty && !r.dryRun {
		return command.Refuse(none + ", so nothing was reported. Name the registry as images do with --registry, or add\n" +
			"--allow-empty: then what the reporter holds may be deleted when its lease is over.")
	}
	if err := r.send(ctx, cmd, c, reporter, found); err != nil {
		return err
	}
	if len(found.Unresolved) > 0 {
		return command.ExitCode(command.ExitFindings)
	}
	return nil
}

// send reports the whole list of what is deployed, or prints it.
func (r *reporting) send(ctx context.Context, cmd *cobra.Command, c *api.Client, reporter string, found report.Found) error {
	items := found.Items
	if r.dryRun {
		return r.format.Print(cmd.OutOrStdout(), items, func(w io.Writer) error {
			rows := make([][]string, len(items))
			for i, item := range items {
				rows[i] = []string{item.Digest.String(), item.UsedBy}
			}
			return table(w, []string{"DIGEST", "USED BY"}, rows, false)
		})
	}
	body := api.HoldReport{Digests: make([]api.HoldItem, len(items))}
	for i, item := range items {
		body.Digests[i] = api.HoldItem(item)
	}
	for _, image := range found.Unresolved {
		body.Unresolved = append(body.Unresolved, api.UnresolvedImage(image))
	}
	ctx, cancel := registryLimit(ctx, r.requestTime())
	defer cancel()
	done, err := api.ReportHolds.Call(ctx, c, api.HoldReportInput{HoldReporting: api.HoldReporting{
		HoldReporterItem: api.HoldReporterItem{Reporter: reporter, Namespace: *r.namespace}, Lease: r.lease, Kind: r.kind,
		Cluster: r.cluster, ReplaceCluster: r.replace, AllowEmpty: r.empty,
	}, Body: body})
	if err != nil {
		return err
	}
	r.ends = done.Expires
	answer := struct {
		hold.Reported
		Others map[string]int `json:"other_hosts,omitempty"` // images by host
	}{done, r.others}
	return r.format.Print(cmd.OutOrStdout(), answer, func(w io.Writer) error {
		missing := "unknown"
		if done.Missing != nil {
			missing = humanize.Comma(*done.Missing)
		}
		return fields(w, "digests", humanize.Comma(done.Digests), "added", humanize.Comma(done.Added), "removed", humanize.Comma(done.Removed),
			"left out, held for now", humanize.Comma(done.Ending), "not resolved", humanize.Comma(done.Unresolved),
			"kept for those", humanize.Comma(done.Kept), "not in the registry", missing, "held until", clock(&done.Expires),
			"of other hosts", r.otherHosts())
	})
}

// maxHosts is how many other hosts are named.
const maxHosts = 10

// otherHosts says how many images are of other hosts, those with the most first. One of them may be
// a second name of the registry.
func (r *reporting) otherHosts() string {
	hosts := slices.SortedFunc(maps.Keys(r.others), func(a, b string) int { return cmp.Or(cmp.Compare(r.others[b], r.others[a]), cmp.Compare(a, b)) })
	all := 0
	for _, n := range r.others {
		all += n
	}
	text := humanize.Comma(int64(all))
	for i, host := range hosts {
		switch {
		case i == maxHosts:
			return text + ", and others"
		case i == 0:
			text += ": "
		default:
			text += ", "
		}
		text += host + " " + humanize.Comma(int64(r.others[host]))
	}
	return text
}

func reportKubernetesCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "kubernetes REPORTER", Short: "Report what a Kubernetes cluster runs, and what it would roll back to", Args: cobra.ExactArgs(1),
		Long: "Report what a Kubernetes cluster runs, and what it would roll back to: the images of pods, of the newest revisions of Deployments,\n" +
			"StatefulSets and DaemonSets, of CronJobs, and of Jobs that haven't finished. In a pod, the command uses the pod's service account;\n" +
			"elsewhere the kubeconfig that kubectl would use. It needs the right to list pods,\n" +
			"podtemplates, replicationcontrollers, replicasets, controllerrevisions, cronjobs and jobs. With the right to list\n" +
			"customresourcedefinitions, it also reads custom resources that have templates of pods, as far as it may list them.",
		Example: "  purser report kubernetes prod-eu --server https://registry.example.com --namespace acme --interval 5m",
	}
	r := addReporting(cmd, "kubernetes")
	r.addInterval(cmd)
	var o kube.Options
	cmd.Flags().StringVar(&o.Kubeconfig, "kubeconfig", "", "path of a kubeconfig `FILE`")
	cmd.Flags().StringVar(&o.Context, "context", "", "the `CONTEXT` of the kubeconfig (default: the current one)")
	cmd.Flags().Var(listFlag{&o.Namespaces, kube.CheckNamespace}, "kubernetes-namespace", "read only these `NAMESPACES` of the cluster (default: all)")
	var watch bool
	cmd.Flags().BoolVar(&watch, "watch", false, "report as soon as a pod runs another image, and after each --interval (default 5m), until the process is stopped")
	cmd.Flags().BoolVar(&r.replace, "replace-cluster", false, "the reporter is of this cluster from now on: the one that has reported under its name is gone")
	cmd.Flags().IntVar(&o.Rollbacks, "rollbacks", 2, "report so many earlier revisions of each workload: `N`, at least 0")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if o.Rollbacks < 0 {
			return command.Usagef("--rollbacks: %d isn't possible: use 0 or more", o.Rollbacks)
		}
		read := func(ctx context.Context) (report.Deployed, error) { return kube.Read(ctx, o) }
		if watch {
			return r.watch(cmd, c, args[0], o, read)
		}
		return r.run(cmd, c, args[0], read)
	})
	return cmd
}

func reportDockerCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "docker REPORTER", Short: "Report the images of a host's containers in Docker", Args: cobra.ExactArgs(1),
		Long: "Report the images of a host's containers in Docker, also of stopped ones. DOCKER_HOST says where Docker listens.",
	}
	r := addReporting(cmd, "docker")
	r.addInterval(cmd)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		host := report.DefaultDocker
		for _, entry := range src.Environ {
			if value, ok := strings.CutPrefix(entry, "DOCKER_HOST="); ok && value != "" {
				host = value
			}
		}
		return r.run(cmd, c, args[0], images(func(ctx context.Context) ([]report.Image, error) { return report.Docker(ctx, host) }))
	})
	return cmd
}

func reportContainerdCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{Use: "containerd REPORTER", Short: "Report the images of a host's containers in containerd", Args: cobra.ExactArgs(1)}
	r := addReporting(cmd, "containerd")
	r.addInterval(cmd)
	var socket string
	textFlag(cmd, &socket, "socket", report.DefaultContainerd, "the `PATH` of containerd's socket", notEmpty)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		return r.run(cmd, c, args[0], images(func(ctx context.Context) ([]report.Image, error) { return report.Containerd(ctx, socket) }))
	})
	return cmd
}

func reportStdinCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use: "stdin REPORTER [FILE]", Short: "Report a list from standard input or a file", Args: cobra.RangeArgs(1, 2),
		Long: "Report a list from standard input or a file. A line has a digest, or an image's name with its digest or its tag, and after a\n" +
			"space who uses it; or a JSON object with digest and used_by. Names are taken as names of this registry, whatever their host.\n" +
			"Digests that the last report had and this one hasn't stay held only for the rest of their lease, so the list must be complete.",
		Example: "  nomad job inspect web | jq -r '.Job.TaskGroups[].Tasks[].Config.image' | purser report stdin nomad-web --namespace acme",
	}
	r := addReporting(cmd, "")
	textFlag(cmd, &r.kind, "kind", "", "what the reporter is, for people: a `WORD` such as nomad", notEmpty)
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) error {
		if err := r.check(cmd, ""); err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if len(args) > 1 {
			f, err := os.Open(args[1])
			if err != nil {
				return fmt.Errorf("opening the list: %w", err)
			}
			defer f.Close() //nolint:errcheck // only read
			in = f
		}
		found, err := readDeployed(in)
		if err != nil {
			return err
		}
		none := "The list has nothing"
		if len(found) == 0 {
			none = "The list is empty"
		}
		return r.limited(cmd.Context(), func(ctx context.Context) error { return r.resolve(ctx, cmd, c, args[0], found, none) })
	})
	return cmd
}

// readDeployed reads a list of deployed images, one a line. It skips empty lines.
func readDeployed(in io.Reader) ([]report.Image, error) {
	var found []report.Image
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		i, err := parseDeployed(line)
		if err != nil {
			return nil, fmt.Errorf("line %d of the list: %w", n, err)
		}
		found = append(found, i)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the list: %w", err)
	}
	return found, nil
}

func parseDeployed(line []byte) (report.Image, error) {
	if line[0] == '{' {
		var item report.Item
		if err := json.Unmarshal(line, &item); err != nil {
			return report.Image{}, err
		}
		if item.Digest.IsZero() {
			return report.Image{}, errors.New("it has no digest")
		}
		return report.Image{Digest: item.Digest, UsedBy: item.UsedBy}, nil
	}
	name, by, _ := strings.Cut(strings.ReplaceAll(string(line), "\t", " "), " ")
	by = strings.TrimSpace(by)
	if d, err := oci.ParseDigest(name); err == nil {
		return report.Image{Digest: d, UsedBy: by}, nil
	}
	i, err := report.Parse(name)
	i.UsedBy = by
	return i, err
}

// tellUnresolved tells which images couldn't be resolved.
func tellUnresolved(cmd *cobra.Command, unresolved []report.Unresolved) {
	for _, i := range unresolved {
		used := ""
		if i.UsedBy != "" {
			used = ", used by " + i.UsedBy
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s%s: %s\n", i.Name, used, i.Reason)
	}
	if len(unresolved) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s not resolved: what was held of them before stays held\n", counted(int64(len(unresolved)), "image was", "images were"))
	}
}
