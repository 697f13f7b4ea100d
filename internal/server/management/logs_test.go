package management_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/auth"
)

// logAnswer is a page of audit entries in the API's answer. It has the members that Quay's
// clients read, and some that only Purser has.
type logAnswer struct {
	StartTime string `json:"start_time"`
	EndTime   string `json:"end_time"`
	NextPage  string `json:"next_page"`
	Logs      []struct {
		Kind      string
		Metadata  map[string]any
		IP        string
		Datetime  string
		Performer *struct {
			Kind, Name string
			IsRobot    bool `json:"is_robot"`
		}
		Repository, Tag, Digest, Policy, Run string
	}
}

// logs reads all pages of the audit entries of the scope with the given path.
func (r *registry) logs(t testing.TB, path string, query url.Values) (all logAnswer) {
	t.Helper()
	for {
		var page logAnswer
		r.Manage(t, "GET", path+"/logs?"+query.Encode(), "").Into(t, 200, &page)
		page.Logs = append(all.Logs, page.Logs...)
		if all = page; all.NextPage == "" {
			return all
		}
		query.Set("next_page", all.NextPage)
	}
}

// fill writes 60 audit entries, one minute apart, about three repositories in two namespaces.
func (r *registry) fill(t testing.TB, policy, run uuid.UUID) {
	t.Helper()
	var list []audit.Entry
	for i := range 60 {
		e := audit.Entry{
			Time: time.Date(2026, 3, 5, 23, 30, 0, 0, time.UTC).Add(time.Duration(i) * time.Minute),
			Kind: []audit.Kind{audit.PushRepo, audit.PullRepo, audit.AutopruneTagDelete}[i%3], Actor: []string{"ana", "acme+ci"}[i%2],
			Address: "192.0.2.7", Repository: []string{"acme/app", "acme/web", "other/app"}[i/20], Tag: fmt.Sprintf("v%d", i%5),
			Digest: digest(fmt.Sprint(i % 7)),
		}
		if e.Kind == audit.AutopruneTagDelete {
			e.Policy, e.Run, e.Detail = policy, run, map[string]any{"bytes": 7}
		}
		list = append(list, e)
	}
	if err := audit.New(r.DB).Append(t.Context(), list...); err != nil {
		t.Fatal(err)
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	policy, run := uuid.New(), uuid.New()
	r.fill(t, policy, run)
	for _, tt := range []struct {
		path, query string
		want        int
	}{
		{"/superuser", "", 60},
		{"/superuser", "limit=7", 60},
		{"/organization/acme", "limit=1", 40},
		{"/repository/acme/app", "", 20},
		{"/repository/acme%2Fapp", "limit=3", 20},
		{"/repository/acme/nothing", "", 0},
		{"/superuser", "kind=push_repo", 20},
		{"/superuser", "kind=push_repo,pull_repo&limit=9", 40},
		{"/superuser", "actor=ana", 30},
		{"/superuser", "address=192.0.2.7", 60},
		{"/organization/acme", "address=192.0.0.0/16", 40},
		{"/superuser", "address=192.0.2.8", 0},
		{"", "address=192.0.2.7", 60}, // without access control, everybody may read everything
		{"/superuser", "performer=acme%2Bci&kind=push_repo", 10},
		{"/organization/acme", "tag=v1", 8},
		{"/superuser", "digest=" + digest("3").String(), 9},
		{"/superuser", "policy=" + policy.String(), 20},
		{"/superuser", "run=" + run.String() + "&limit=3", 20},
		{"/repository/other/app", "run=" + run.String(), 7},
		{"/superuser", "run=" + uuid.NewString(), 0},
		{"/superuser", "from=2026-03-06", 30},
		{"/superuser", "to=2026-03-06", 30},
		{"/superuser", "from=2026-03-05T23:40:00Z&to=2026-03-06T00:10:00%2B00:00", 30},
		{"/superuser", "starttime=03/06/2026&endtime=03/06/2026", 30},
		{"/superuser", "endtime=03/05/2026", 30},
	} {
		query, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		got := r.logs(t, tt.path, query)
		if len(got.Logs) != tt.want {
			t.Errorf("%s?%s: %d entries, want %d", tt.path, tt.query, len(got.Logs), tt.want)
		}
	}
}

// TestLogEntry: an audit entry that the API returns must have the members that Quay's clients
// expect, and those that only Purser has.
func TestLogEntry(t *testing.T) {
	t.Parallel()
	r := setup(t)
	policy, run := uuid.New(), uuid.New()
	r.fill(t, policy, run)
	got := r.logs(t, "/superuser", url.Values{"kind": {"autoprune_tag_delete"}, "starttime": {"03/05/2026"}, "endtime": {"03/05/2026"}})
	if len(got.Logs) != 10 || got.StartTime != "Thu, 05 Mar 2026 00:00:00 -0000" || got.EndTime != "Fri, 06 Mar 2026 00:00:00 -0000" {
		t.Fatalf("%d entries from %q to %q", len(got.Logs), got.StartTime, got.EndTime)
	}
	e := got.Logs[0] // the 30th
	if e.Kind != "autoprune_tag_delete" || e.IP != "192.0.2.7" || e.Datetime != "Thu, 05 Mar 2026 23:59:00 -0000" ||
		e.Performer == nil || e.Performer.Name != "acme+ci" || e.Performer.Kind != "user" || !e.Performer.IsRobot ||
		e.Repository != "acme/web" || e.Tag != "v4" || e.Digest != digest("1").String() ||
		e.Policy != policy.String() || e.Run != run.String() {
		t.Errorf("the entry is %+v", e)
	}
	want := map[string]any{"namespace": "acme", "repo": "web", "tag": "v4", "manifest_digest": digest("1").String(), "bytes": 7.0}
	if a, b := encode(t, e.Metadata), encode(t, want); a != b {
		t.Errorf("metadata is %s, want %s", a, b)
	}
}

// TestLogFilterRefused: each invalid filter gets its own error.
func TestLogFilterRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for query, text := range map[string]string{
		"from=yesterday":                       `from.*yesterday.*2026-03-05T07:00:00Z`,
		"to=2026-13-01":                        `to.*2026-13-01`,
		"starttime=2026-03-05":                 `starttime.*month first`,
		"endtime=31/12/2026":                   `endtime.*month first`,
		"from=2026-03-05&starttime=03/05/2026": `starttime.*both`,
		"from=2026-03-05&to=2026-03-05":        `to.*not after`,
		"address=192.0.2":                      `address.*192\.0\.2\.0/24`,
		"address=fe80::1%25eth0":               `address.*network`,
		"kind=push":                            `kind.*"push".*push_repo`,
		"actor=a&performer=b":                  `performer.*both`,
		"digest=sha256:1":                      `digest`,
		"policy=7":                             `policy.*UUID`,
		"run=7":                                `run.*UUID`,
		"next_page=7":                          `next_page.*begin again`,
		"limit=0":                              `limit`,
		"kinds=push_repo":                      `kinds`,
	} {
		r.Manage(t, "GET", "/superuser/logs?"+query, "").Refused(t, 400, "invalid_request", text)
		if !strings.Contains(query, "limit") && !strings.Contains(query, "next_page") {
			r.Manage(t, "GET", "/repository/acme/app/logs/export?"+query, "").Refused(t, 400, "invalid_request", text)
		}
	}
}

func TestExportLogs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(t, uuid.New(), uuid.New())
	for path, want := range map[string]int{
		"/superuser/logs/export?kind=push_repo":      20,
		"/organization/acme/logs/export?tag=v1":      8,
		"/repository/acme/app/logs/export?from=2026": 0,
		"/repository/acme/web/logs/export":           21, // including the entry of the export itself
	} {
		a := r.Manage(t, "GET", path, "")
		if strings.Contains(path, "from=2026") {
			a.Refused(t, 400, "invalid_request", "from")
			continue
		}
		if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("%s: %d %s", path, a.StatusCode, a.Content)
		}
		var times []time.Time
		for text := range bytes.Lines(a.Content) {
			var e audit.Entry
			if err := json.Unmarshal(text, &e); err != nil {
				t.Fatalf("%s: %q: %v", path, text, err)
			}
			times = append(times, e.Time)
		}
		if len(times) != want || !slices.IsSortedFunc(times, func(a, b time.Time) int { return b.Compare(a) }) {
			t.Errorf("%s: %d entries, want %d, newest first", path, len(times), want)
		}
	}
	r.WantLog(t, audit.Filter{Kinds: []audit.Kind{audit.ExportLog}},
		`export_logs     {"kind": "push_repo"}`, `export_logs acme    {"tag": "v1"}`, `export_logs acme acme/web   {}`)
}

// TestNoLog: a client asks a registry that has no audit log for audit entries. The answer must
// be 503 with a text that says why.
func TestNoLog(t *testing.T) {
	t.Parallel()
	r := setup(t, withoutLog)
	r.Manage(t, "GET", "/superuser/logs", "").Refused(t, 503, "unavailable", "no audit log")
	r.Manage(t, "GET", "/superuser/logs/export", "").Refused(t, 503, "unavailable", "no audit log")
}

// TestMaintainedLogs: an account reads the log of all namespaces that it maintains, by itself or by a team,
// as long as it does, as a list and as an export, and nothing of others: not of a namespace that had the
// name before, not of one in which it has a smaller role, and not what its token isn't for.
func TestMaintainedLogs(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	for _, name := range []string{"beta", "gamma", "delta"} {
		c.root.Put(t, name+"/app", "v1", c.root.Simple(t, name+"/app", 1, nil))
	}
	c.Grant(t, "beta", "maintainer", auth.Administrator)
	c.Grant(t, "gamma", "maintainer", auth.Writer)
	c.Grant(t, "delta/app", "maintainer", auth.Maintainer)
	of := func(as *registry, query string) string {
		t.Helper()
		namespaces := map[string]bool{}
		var page struct {
			Logs []struct {
				Namespace string `json:"namespace_name"`
			}
			Next string `json:"next_page"`
		}
		for next := ""; ; next = page.Next {
			page.Next, page.Logs = "", nil
			as.Manage(t, "GET", "/logs?limit=3&next_page="+next+query, "").Into(t, 200, &page)
			for _, e := range page.Logs {
				namespaces[e.Namespace] = true
			}
			if page.Next == "" {
				return strings.Join(slices.Sorted(maps.Keys(namespaces)), " ")
			}
		}
	}
	want := func(as *registry, query, namespaces string) {
		t.Helper()
		if got := of(as, query); got != namespaces {
			t.Errorf("the log%s is of %q, want %q", query, got, namespaces)
		}
	}
	want(c.maintainer, "", "acme beta")
	want(c.maintainer, "&kind=push_repo&actor=root", "acme beta")
	want(c.maintainer, "&actor=nobody", "")
	want(c.root, "&kind=push_repo", "acme beta delta gamma")
	for _, as := range []*registry{c.writer, c.reader, c.stranger} {
		want(as, "", "")
		if a := as.Manage(t, "GET", "/logs/export", "").WantStatus(t, 200); len(a.Content) > 0 {
			t.Errorf("an account that maintains no namespace exports %s", a.Content)
		}
	}
	c.nobody.Manage(t, "GET", "/logs", "").WantStatus(t, 401)

	rows, err := csv.NewReader(bytes.NewReader(c.maintainer.Manage(t, "GET", "/logs/export?format=csv&kind=push_repo", "").WantStatus(t, 200).Content)).ReadAll()
	if err != nil || len(rows) != 3 || rows[0][0] != "time" || rows[1][5] != "beta" || rows[2][5] != "acme" {
		t.Errorf("the export is %v: %v", rows, err)
	}
	c.WantLog(t, audit.Filter{Kinds: []audit.Kind{audit.ExportLog}}, `export_logs acme    {"kind": "push_repo"}`, `export_logs beta    {"kind": "push_repo"}`)
	if a := c.maintainer.Manage(t, "GET", "/organization/acme/logs/export?format=csv", ""); a.Header.Get("Content-Type") != "text/csv; charset=utf-8; header=present" {
		t.Errorf("the content is of type %s", a.Header.Get("Content-Type"))
	}
	c.root.Manage(t, "GET", "/logs/export?format=xml", "").Refused(t, 400, "invalid_request", "format")

	c.root.Manage(t, "DELETE", "/organization/beta", "").WantStatus(t, 204)
	want(c.maintainer, "", "acme")
	c.root.Put(t, "beta/app", "v2", c.root.Simple(t, "beta/app", 2, nil))
	want(c.maintainer, "", "acme") // it is another namespace, in which the account has no role
	c.Grant(t, "beta", "maintainer", auth.Maintainer)
	var page struct{ Logs []struct{ Tag string } }
	c.maintainer.Manage(t, "GET", "/logs?kind=push_repo&tag=v1", "").Into(t, 200, &page)
	if len(page.Logs) != 1 { // that of acme
		t.Errorf("%d entries of v1, want 1: the log has what was in the namespace before", len(page.Logs))
	}
}

// TestMaintainedLogsOfMany: whoever maintains more namespaces than a list may take is told to name one.
func TestMaintainedLogsOfMany(t *testing.T) {
	t.Parallel()
	c := restricted(t)
	if _, err := c.DB.Pool.Exec(t.Context(), `
		WITH made AS (INSERT INTO top_level_namespaces (name) SELECT 'many' || n FROM generate_series(1, 1700) n RETURNING id, name)
		INSERT INTO grants (account_id, top_level_namespace_id, role)
		SELECT a.id, made.id, CASE WHEN substr(made.name, 5)::int <= 499 THEN 'maintainer' ELSE 'reader' END
		FROM made, accounts a WHERE a.name = 'maintainer'`); err != nil {
		t.Fatal(err)
	}
	c.maintainer.Manage(t, "GET", "/logs", "").WantStatus(t, 200) // 500 with acme; in how many others have given it a role doesn't matter
	if _, err := c.DB.Pool.Exec(t.Context(), "UPDATE grants SET role = 'maintainer'"); err != nil {
		t.Fatal(err)
	}
	c.maintainer.Manage(t, "GET", "/logs", "").Refused(t, 400, "invalid_request", "log of one")
}
