// Package ui measures the pages of the web UI on a large registry.
//
//	go build -o /tmp/purser ./cmd/purser
//	go run ./bench ui -purser /tmp/purser
//
// It starts a registry with the given program in a directory that it removes afterwards, fills the
// database by SQL, and asks for each page several times. A page is slow if even its fastest answer
// took longer than -slow.
package ui

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/bench/instance"
	"github.com/purser-registry/purser/bench/meter"
)

//go:embed fill.sql
var fillSQL string

type settings struct {
	out                                             io.Writer
	purser, dir, only                               string
	namespaces, repositories, tags, entries, others int
	rounds, large                                   int
	slow                                            time.Duration
}

// Run runs this scenario with the flags in args.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flag := flag.NewFlagSet("ui", flag.ContinueOnError)
	flag.SetOutput(stderr)
	s := settings{out: stdout}
	flag.StringVar(&s.purser, "purser", "", "the program purser")
	flag.StringVar(&s.dir, "dir", "", "directory for the registry; default the temporary directory")
	flag.StringVar(&s.only, "only", "", "ask only for pages whose path contains this text")
	flag.IntVar(&s.namespaces, "namespaces", 200, "namespaces")
	flag.IntVar(&s.repositories, "repositories", 10_000, "repositories, of which one is large")
	flag.IntVar(&s.tags, "tags", 100_000, "tags of the large repository")
	flag.IntVar(&s.entries, "entries", 1_000_000, "entries of the audit log")
	flag.IntVar(&s.others, "rows", 100_000, "rows of each queue of garbage collection, and digests that are held")
	flag.IntVar(&s.rounds, "rounds", 10, "requests for each page, after one that isn't measured")
	flag.DurationVar(&s.slow, "slow", 100*time.Millisecond, "pages that take longer are marked")
	flag.IntVar(&s.large, "large", 100_000, "pages with more bytes are marked")
	if err := flag.Parse(args); err != nil {
		return err
	}
	if s.purser == "" || s.rounds < 1 || s.namespaces < 1 || s.repositories <= s.namespaces || s.tags < 1000 || s.entries < 1000 || s.others < 2000 {
		return errors.New("usage: ui -purser PROGRAM [flags]; more repositories than namespaces, at least 1000 tags and entries, 2000 rows")
	}
	return s.run(ctx)
}

func (s settings) run(ctx context.Context) error {
	base, err := os.MkdirTemp(s.dir, "purser-bench-ui-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base) //nolint:errcheck // a leftover directory harms nobody
	data := filepath.Join(base, "data")
	r, err := instance.Start(ctx, s.purser, data, true, "PURSER_AUTOPRUNE_ENABLED=false")
	if err != nil {
		return err
	}
	defer func() { r.Stop() }()
	member := fmt.Sprintf(`{"username": %q, "password": %q}`, memberName, memberPassword)
	if _, err := r.Want(ctx, http.StatusOK, "POST", "/api/v1/superuser/users", []byte(member)); err != nil {
		return err
	}
	dsn, err := exec.CommandContext(ctx, s.purser, "postgres", "url", "--data-dir", data).Output()
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, strings.TrimSpace(string(dsn)))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the registry ends anyway
	begin := time.Now()
	if err := s.fill(ctx, conn); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%d repositories, one of them with %d tags, filled in %s\n", s.repositories, s.tags, time.Since(begin).Round(time.Second))
	accounts := []account{{"admin", r.Basic, "team-0000"}, {memberName, basic(memberName, memberPassword), "team-0003"}}
	if err := haveStyle(ctx, r); err != nil {
		return err
	}
	for _, a := range accounts {
		list, err := pages(ctx, conn, a.namespace)
		if err != nil {
			return err
		}
		if err := s.measure(ctx, r, a, list); err != nil {
			return err
		}
	}
	return nil
}

// An account that administers a fifth of the namespaces.
const memberName, memberPassword = "member", "bench-of-access-control"

func basic(name, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
}

type account struct{ name, authorization, namespace string }

func (s settings) fill(ctx context.Context, conn *pgx.Conn) error {
	sql := fmt.Sprintf("SET bench.namespaces = %d; SET bench.repositories = %d; SET bench.tags = %d; SET bench.entries = %d; SET bench.rows = %d;",
		s.namespaces, s.repositories, s.tags, s.entries, s.others)
	for _, text := range []string{sql + fillSQL, "VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := conn.PgConn().Exec(ctx, text).ReadAll(); err != nil {
			return fmt.Errorf("filling the database: %w", err)
		}
	}
	return nil
}

// sheet finds the style sheet of a browser's first page.
var sheet = regexp.MustCompile(`<style data-sheet="/ui/static/([0-9a-f]+)/`)

// haveStyle lets the requests be those of a browser that has the file of the style sheet, as after its first page.
func haveStyle(ctx context.Context, r *instance.Registry) error {
	page, err := r.Want(ctx, http.StatusOK, "GET", "/ui/", nil)
	if m := sheet.FindSubmatch(page); m != nil {
		r.Cookie = "purser_style=" + string(m[1])
	}
	return err
}

// measure asks for each page and prints a line about it.
func (s settings) measure(ctx context.Context, r *instance.Registry, a account, list []string) error {
	fmt.Fprintf(s.out, "\nas %s:\n%6s %8s %9s %9s %9s  page\n", a.name, "status", "bytes", "least", "p50", "p99")
	slow, large := 0, 0
	for _, page := range list {
		if !strings.Contains(page, s.only) {
			continue
		}
		var took meter.Latencies
		status, size := 0, 0
		for i := range s.rounds + 1 {
			begin := time.Now()
			got, content, err := r.Send(ctx, "GET", page, nil, a.authorization)
			if err != nil {
				return err
			}
			if status, size = got, len(content); i > 0 {
				took = append(took, time.Since(begin))
			}
		}
		slices.Sort(took)
		mark := ""
		if took[0] > s.slow {
			mark, slow = mark+" SLOW", slow+1
		}
		if size > s.large {
			mark, large = mark+" LARGE", large+1
		}
		fmt.Fprintf(s.out, "%6d %8d %9s %9s %9s  %s%s\n", status, size, millis(took[0]), millis(took.At(50)), millis(took.At(99)), page, mark)
	}
	fmt.Fprintf(s.out, "%d pages are slower than %s and %d have more than %d bytes\n", slow, s.slow, large, s.large)
	return nil
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
