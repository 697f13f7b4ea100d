package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
	"github.com/purser-registry/purser/cmd/purser/internal/mirror"
	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/operatorfile"
	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/upstream"
)

func copyCommand(src *command.Source) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "copy SOURCE [DESTINATION]",
		Short: "Mirror repositories of another registry",
		Long: "Copy repositories of another registry to this one, with signatures and whatever else is attached to\n" +
			"their images. SOURCE is a repository (HOST/REPOSITORY), all with a prefix (HOST/PREFIX/) or all of a\n" +
			"registry (HOST). DESTINATION is the name of the copy, or the prefix of several; without it names stay.\n" +
			"Tags that point to the same manifest already are left alone, so that the command can be repeated. Tags\n" +
			"that the source no longer has stay. It goes on after what can't be copied; the exit code is 1 then.\n\n" +
			"The source's credentials are those of docker's configuration (\"docker login\"). Another host at which\n" +
			"the source lets clients log in gets them too, by https, and is named.\n\n" +
			"--catalog lists the repositories by the API of a product where /v2/_catalog is missing or isn't for\n" +
			"everybody. SOURCE then ends with a slash behind a project of Harbor, a namespace of Quay or Docker Hub,\n" +
			"or a group or project of GitLab. Harbor's may also be HOST.\n\n" +
			"The source isn't trusted: what it can make the command do is limited. --limit changes a limit:\n" + limitsHelp(),
		Example: "  purser copy docker.io/library/alpine mirror/alpine --tags '^3\\.'\n" +
			"  purser copy registry.example.com/team/\n" +
			"  purser copy old.example.com --repositories '^(app|web)/' --dry-run\n" +
			"  purser copy harbor.example.com/acme/ --catalog harbor",
		Args: cobra.RangeArgs(1, 2),
	}
	out := command.AddFormat(cmd)
	var o mirror.Options
	o.Parallel = 4
	cmd.Flags().Var(command.Number(&o.Parallel, 1, 64), "parallel", "copy `N` tags at the same time")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "show what would be copied, and copy nothing")
	cmd.Flags().BoolVar(&o.NoReferrers, "no-referrers", false, "leave out what is attached to images by referrers")
	cmd.Flags().BoolVar(&o.PlainHTTP, "source-plain-http", false, "speak plain http to the source")
	cmd.Flags().Var(listFlag{&o.Trusted, checkHost}, "trust-host", "let the source lead to this `HOST` at an address that isn't public, and send it credentials by plain http too")
	var catalog string
	textFlag(cmd, &catalog, "catalog", "", "list the source's repositories by the API of `PRODUCT`: "+strings.Join(upstream.CatalogKinds(), ", ")+"; PRODUCT=HOST if another host has it", checkCatalog)
	authorities := cmd.Flags().String("source-ca", "", "trust the certificate authorities in this PEM `FILE` too, at the source and where it leads")
	cmd.Flags().Var(&limitsFlag{&o.Limits}, "limit", "change a limit on what the source can do, as in `NAME=VALUE`; may be repeated")
	repositories := cmd.Flags().String("repositories", "", "copy only the repositories in whose name this `REGEXP` is found")
	tags := cmd.Flags().String("tags", "", "copy only the tags in whose name this `REGEXP` is found, and what is attached to their images")
	cmd.RunE = withClient(src, func(cmd *cobra.Command, c *api.Client, args []string) (err error) {
		if o.Repositories, err = pattern("repositories", *repositories); err != nil {
			return err
		}
		if o.Tags, err = pattern("tags", *tags); err != nil {
			return err
		}
		if catalog != "" {
			if o.Catalog, err = upstream.ParseCatalog(catalog); err != nil {
				return err
			}
		}
		if o.TLS, err = sourceTLS(cmd.Context(), *authorities); err != nil {
			return command.Usagef("--source-ca: %w", err)
		}
		o.Source, o.Server = args[0], c.Server()
		if len(args) > 1 {
			o.To = args[1]
		}
		if o.User, o.Password, err = c.RegistryLogin(); err != nil {
			return err
		}
		told := &copyProgress{source: o.Source, line: command.NewProgressLine(cmd.ErrOrStderr())}
		o.Told, o.Begins, o.CredentialsTo = told.tag, told.begins, told.credentialsTo
		sum, err := mirror.Copy(cmd.Context(), o)
		if err != nil {
			return err
		}
		told.line.Clear()
		list := told.list
		slices.SortFunc(list, func(a, b mirror.Tag) int { return strings.Compare(a.Source, b.Source) })
		result := struct {
			mirror.Summary
			Tags []mirror.Tag `json:"tags"`
		}{sum, list}
		if err := out.Print(cmd.OutOrStdout(), result, func(w io.Writer) error { return writeCopied(w, sum, list, o.DryRun) }); err != nil {
			return err
		}
		if sum.Failed > 0 {
			return command.ExitCode(1)
		}
		return nil
	})
	return addServer(cmd)
}

func checkCatalog(text string) error {
	_, err := upstream.ParseCatalog(text)
	return err
}

// sourceTLS returns the configuration that trusts the authorities in a PEM file, and those of the system:
// the source may lead to hosts that these know. It returns nil without a file.
func sourceTLS(ctx context.Context, path string) (*tls.Config, error) {
	if path == "" {
		return nil, nil
	}
	file, err := operatorfile.Read(ctx, path, operatorfile.MaxPEM)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	if !pool.AppendCertsFromPEM(file.Text) {
		return nil, fmt.Errorf("%s: %w", path, operatorfile.ErrNoCertificate)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// copyProgress tells on a line what a copy does, and collects the tags that it has looked at.
type copyProgress struct {
	source string

	mu   sync.Mutex
	line *command.ProgressLine
	list []mirror.Tag

	nth, repositories int // of the repository that is being copied
	tags, before      int // tags of it, and of those before that were looked at
}

// begins notes that a repository is copied from now on.
func (c *copyProgress) begins(nth, of, tags int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nth, c.repositories, c.tags, c.before = nth, of, tags, len(c.list)
}

// share returns how much of the copy is done, if repositories take the same time.
func (c *copyProgress) share() float64 {
	if c.repositories == 0 {
		return 0
	}
	return (float64(c.nth-1) + min(1, command.Share(int64(len(c.list)-c.before), int64(c.tags)))) / float64(c.repositories)
}

func (c *copyProgress) tag(t mirror.Tag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, t)
	if t.Outcome == mirror.Failed {
		fmt.Fprintf(c.line, "%s: %s\n", command.Printable(t.Source), command.Printable(t.Error)) //nolint:errcheck // the summary counts it
	}
	c.line.Measure(command.Measured{
		Text:  fmt.Sprintf("%s: %s %s", command.Count(int64(len(c.list)), "tag"), command.Printable(t.Source), t.Outcome),
		Share: c.share(), Count: int64(len(c.list)), Unit: "tag",
	})
}

func (c *copyProgress) credentialsTo(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.line, "%s lets clients log in at %s: it gets the credentials\n", command.Printable(c.source), command.Printable(host)) //nolint:errcheck // said for information
}

// pattern compiles the value of a flag; "" is nil.
func pattern(flag, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	p, err := regexp.Compile(text)
	if err != nil {
		return nil, command.Usagef("--%s: %w", flag, err)
	}
	return p, nil
}

func writeCopied(w io.Writer, sum mirror.Summary, list []mirror.Tag, dry bool) error {
	if dry {
		for _, t := range list {
			if t.Outcome == mirror.WouldBe {
				if _, err := fmt.Fprintf(w, "%s → %s\n", command.Printable(t.Source), command.Printable(t.Destination)); err != nil {
					return err
				}
			}
		}
	}
	verb, attached, empty := "Copied", "", ""
	if dry {
		verb = "Would copy"
	} else if sum.Attached > 0 {
		attached = ", and " + counted(int64(sum.Attached), "manifest", "manifests") + " attached to images"
	}
	if sum.Empty > 0 {
		empty = " The source lists " + counted(int64(sum.Empty), "repository", "repositories") + " in which it has no tags."
	}
	_, err := fmt.Fprintf(w, "%s %s of %s%s. %s up to date already, %s failed.%s\n", verb, command.Count(int64(sum.Copied), "tag"),
		counted(int64(sum.Repositories), "repository", "repositories"), attached, counted(int64(sum.UpToDate), "tag was", "tags were"), humanize.Comma(int64(sum.Failed)), empty)
	return err
}

// copyLimit is a limit that --limit of "purser copy" sets.
type copyLimit struct {
	name, of string
	number   func(*upstream.Limits) *int
	bytes    func(*upstream.Limits) *int64
	period   func(*upstream.Limits) *time.Duration
}

var copyLimits = []copyLimit{
	{name: "pages", of: "pages of a list of repositories or tags", number: func(l *upstream.Limits) *int { return &l.Pages }},
	{name: "names", of: "names in a list", number: func(l *upstream.Limits) *int { return &l.Names }},
	{name: "list", of: "size of a list", bytes: func(l *upstream.Limits) *int64 { return &l.ListBytes }},
	{name: "depth", of: "depth of indexes in indexes, and of what is attached", number: func(l *upstream.Limits) *int { return &l.Depth }},
	{name: "manifests", of: "manifests in a tag and attached to it", number: func(l *upstream.Limits) *int { return &l.Manifests }},
	{name: "blob", of: "size of a blob", bytes: func(l *upstream.Limits) *int64 { return &l.BlobBytes }},
	{name: "redirects", of: "redirects of a request", number: func(l *upstream.Limits) *int { return &l.Redirects }},
	{name: "silence", of: "time in which nothing comes", period: func(l *upstream.Limits) *time.Duration { return &l.Silence }},
	{name: "rate", of: "fewest bytes a second, while they are waited for", bytes: func(l *upstream.Limits) *int64 { return &l.Rate }},
}

// text returns the limit's value.
func (c copyLimit) text(l upstream.Limits) string {
	switch {
	case c.number != nil:
		return humanize.Comma(int64(*c.number(&l)))
	case c.bytes != nil:
		return policy.Size(*c.bytes(&l)).String()
	}
	return c.period(&l).String()
}

// set parses the limit's value. Zero would mean the default, so it is refused.
func (c copyLimit) set(l *upstream.Limits, value string) error {
	switch {
	case c.number != nil:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("%q isn't a whole number above zero", value)
		}
		*c.number(l) = n
	case c.bytes != nil:
		n, err := parseSize(value)
		switch {
		case err != nil:
			return err
		case n > 1<<62:
			return fmt.Errorf("%q is more than 4194304TiB", value)
		}
		*c.bytes(l) = n
	default:
		d, err := time.ParseDuration(value)
		if err != nil || d < time.Second || d > 24*time.Hour {
			return fmt.Errorf("%q isn't a duration from 1s to 24h", value)
		}
		*c.period(l) = d
	}
	return nil
}

// limitsFlag is the value of --limit.
type limitsFlag struct{ limits *upstream.Limits }

// String implements pflag.Value. The defaults are in the command's help.
func (f *limitsFlag) String() string { return "" }

// Type implements pflag.Value.
func (f *limitsFlag) Type() string { return "NAME=VALUE" }

// Set implements pflag.Value.
func (f *limitsFlag) Set(text string) error {
	name, value, _ := strings.Cut(text, "=")
	for _, c := range copyLimits {
		if c.name == name {
			return c.set(f.limits, value)
		}
	}
	return fmt.Errorf("there is no limit %q", name)
}

// limitsHelp lists the limits with their defaults.
func limitsHelp() string {
	var b strings.Builder
	for _, c := range copyLimits {
		fmt.Fprintf(&b, "  %-10s %s (%s)\n", c.name, c.of, c.text(upstream.Limits{}.WithDefaults()))
	}
	return strings.TrimRight(b.String(), "\n")
}

// checkHost returns an error unless the text is a host's name or address, with or without a port.
func checkHost(text string) error {
	if u, err := url.Parse("https://" + text); err != nil || u.Hostname() == "" || u.Host != text || strings.ContainsAny(text, "*%@ ") {
		return errors.New("it should be a host's name or address, such as auth.example.com or 10.0.0.5:5000")
	}
	return nil
}
