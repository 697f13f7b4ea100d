package client

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/purser-registry/purser/internal/policy"
	"github.com/purser-registry/purser/internal/upstream"
)

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
