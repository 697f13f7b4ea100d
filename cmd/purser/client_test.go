package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/cmd/purser/internal/servetest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestClientErrors: a command that gets no proper answer from the registry says what is
// wrong there, and what the user can do.
func TestClientErrors(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(nil)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer s.Close()
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   []string
	}{
		"the registry's own error": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(409)
			fmt.Fprint(w, `{"detail":"tag v1 is protected","status":409}`)
		}, []string{"purser: tag v1 is protected\n"}},
		"something else": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(404)
			fmt.Fprint(w, "<html>nothing here")
		}, []string{"answers 404 Not Found", "not as a Purser registry does"}},
		"another place": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://other.example/")
			w.WriteHeader(301)
		}, []string{"sends to https://other.example/", "--server"}},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") },
			[]string{"an answer that this program doesn't understand"}},
		"a broken answer": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{")
		}, []string{"reading the answer"}},
	} {
		answer = tc.answer
		code, _, stderr := purser(t, []string{"PURSER_SERVER=" + s.URL}, "namespace", "list")
		for _, want := range tc.want {
			if code == 0 || !strings.Contains(stderr, want) {
				t.Errorf("%s: code %d, %q, want %q", name, code, stderr, want)
			}
		}
	}
	s.Close()
	code, _, stderr := purser(t, []string{"PURSER_SERVER=" + s.URL}, "repo", "list")
	if code != 1 || !strings.Contains(stderr, "no registry answers at "+s.URL) || !strings.Contains(stderr, `"purser serve"`) || !strings.Contains(stderr, "--server") {
		t.Errorf("nothing is there: %d %q", code, stderr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	if code := execute(ctx, []string{"repo", "list", "--server", s.URL}, nil, &out, &errOut); code != 1 || !strings.Contains(errOut.String(), "interrupted") {
		t.Errorf("interrupted: %d %q", code, errOut.String())
	}
	// PURSER_SERVER isn't a setting, so the configuration check must not complain about it.
	if code, _, stderr := purser(t, []string{"PURSER_SERVER=" + s.URL}, "config", "check"); code != 0 {
		t.Errorf("PURSER_SERVER is in the way of settings: %s", stderr)
	}
}

// shop is a running registry, on which a test runs commands that use the API.
type shop struct {
	t   *testing.T
	url string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	return &shop{t, start(t, servetest.Config(t, "PURSER_DATABASE_MAIN="+dbtest.DSN(t))).Registry}
}

func (s *shop) send(method, path, contentType, body string, want int) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	res.Body.Close() //nolint:errcheck // nothing is read
	if res.StatusCode != want {
		s.t.Fatalf("%s %s: %s, want %d", method, path, res.Status, want)
	}
}

// push pushes an image. Images with different `n` have different manifests.
func (s *shop) push(repository, tag, n string) string {
	s.t.Helper()
	config := `{"os":"linux","architecture":"amd64"}`
	d := oci.Compute(oci.SHA256, []byte(config)).String()
	s.send("POST", "/v2/"+repository+"/blobs/uploads/?digest="+d, "application/octet-stream", config, 201)
	m := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},`+
		`"layers":[],"annotations":{"n":%q}}`, oci.MediaTypeImageManifest, d, len(config), n)
	s.send("PUT", "/v2/"+repository+"/manifests/"+tag, oci.MediaTypeImageManifest, m, 201)
	return oci.Compute(oci.SHA256, []byte(m)).String()
}

// run runs a command on the registry, and returns its output. The command must succeed.
func (s *shop) run(args ...string) string {
	s.t.Helper()
	code, stdout, stderr := purser(s.t, []string{"PURSER_SERVER=" + s.url}, args...)
	if code != 0 || stderr != "" {
		s.t.Fatalf("purser %q: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	return stdout
}

// refused runs a command on the registry. The command must fail with an error message that
// contains `want`.
func (s *shop) refused(want string, args ...string) {
	s.t.Helper()
	code, stdout, stderr := purser(s.t, []string{"PURSER_SERVER=" + s.url}, args...)
	if code == 0 || !strings.Contains(stderr, want) {
		s.t.Errorf("purser %q: exit code %d\n%s%s\nwant %q", args, code, stdout, stderr, want)
	}
}

// first returns the first column of a printed table, without the header.
func first(text string) (list []string) {
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		list = append(list, strings.Fields(line)[0])
	}
	return list
}

func TestCatalogCommands(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.run("namespace", "create", "acme")
	s.run("repo", "create", "acme/web")
	one, two := s.push("acme/app", "v1", "1"), s.push("acme/app", "v2", "2")
	s.push("other", "v1", "1")

	if got := first(s.run("namespace", "list")); !slices.Equal(got, []string{"acme", "other"}) {
		t.Errorf("namespaces: %q", got)
	}
	if got := first(s.run("repo", "list", "acme", "--sort", "-name")); !slices.Equal(got, []string{"acme/web", "acme/app"}) {
		t.Errorf("repositories: %q", got)
	}
	if got := s.run("repo", "list", "--limit", "1"); !strings.Contains(got, "… and more: --limit 0 lists all.") {
		t.Errorf("one of them: %s", got)
	}
	if got := first(s.run("tag", "list", "acme/app")); !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("tags: %q", got)
	}
	var tags []struct {
		Name   string
		Digest string `json:"manifest_digest"`
	}
	if err := json.Unmarshal([]byte(s.run("tag", "list", "acme/app", "--prefix", "v1", "-o", "json")), &tags); err != nil || len(tags) != 1 || tags[0].Digest != one {
		t.Errorf("%+v %v", tags, err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"namespace", "show", "acme"}, `repositories +2\n`},
		{[]string{"repo", "show", "acme/app"}, `(?s)tags +2\nmanifests +2\nsize +37 B in 1 blob\n`},
		{[]string{"tag", "show", "acme/app:v1"}, `(?s)digest +` + one + `\n.*platform +linux/amd64\n.*layers +0\n`},
	} {
		if got := s.run(tc.args...); !regexp.MustCompile(tc.want).MatchString(got) {
			t.Errorf("%q:\n%s\nwant %s", tc.args, got, tc.want)
		}
	}

	s.run("tag", "move", "acme/app:new", two)
	s.run("tag", "delete", "--yes", "acme/app:v1", "acme/app:new")
	if got := first(s.run("tag", "list", "acme/app")); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("tags: %q", got)
	}
	s.run("tag", "restore", "acme/app:v1", one)
	s.refused("add --yes", "tag", "delete", "acme/app:v1")
	s.refused("Delete repository acme/app with 2 tags?", "repo", "delete", "acme/app")
	s.refused("That can't be undone.", "repo", "delete", "acme/app", "--purge")
	s.refused("Delete namespace acme with 2 repositories?", "namespace", "delete", "acme")
	s.run("repo", "delete", "acme/app", "-y")
	s.refused("repository acme/app is not known", "repo", "show", "acme/app")
	s.run("namespace", "delete", "acme", "-y")
	s.refused("namespace acme is not known", "namespace", "show", "acme")
	s.refused("namespace other exists already", "namespace", "create", "other")
	s.refused("repository other exists already", "repo", "create", "other")
	s.refused(`--limit: "-1" isn't possible`, "tag", "list", "other", "--limit", "-1")
	s.refused(`"other" should be a repository and a tag`, "tag", "show", "other")
	s.refused("repository other has no tag v9", "tag", "show", "other:v9")
	s.refused("sort", "tag", "list", "other", "--sort", "age")
	s.refused(`DIGEST: "nonsense" isn't possible`, "tag", "move", "other:v2", "nonsense")
}

func TestAuditCommands(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	d := s.push("acme/app", "v1", "1")
	s.run("tag", "move", "acme/app:v2", d)
	s.run("tag", "delete", "-y", "acme/app:v2")
	kinds := func(args ...string) (list []string) {
		var entries []struct{ Kind string }
		if err := json.Unmarshal([]byte(s.run(append([]string{"audit", "list", "-o", "json"}, args...)...)), &entries); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Kind)
		}
		return list
	}
	all := []string{"delete_tag", "create_tag", "push_repo", "create_repo", "org_create"}
	if got := kinds(); !slices.Equal(got, all) {
		t.Errorf("the whole log: %q, want %q", got, all)
	}
	if got := kinds("acme/app", "--kind", "create_tag,push_repo", "--from", "1h"); !slices.Equal(got, all[1:3]) {
		t.Errorf("some kinds: %q", got)
	}
	if got := kinds("acme", "--tag", "v2", "--limit", "1"); !slices.Equal(got, all[:1]) {
		t.Errorf("of a tag, one: %q", got)
	}
	if got := kinds("none"); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
	if got := s.run("audit", "list"); !regexp.MustCompile(`delete_tag +127\.0\.0\.1 +acme/app:v2 `).MatchString(got) {
		t.Errorf("as a table:\n%s", got)
	}
	lines := strings.Split(strings.TrimSpace(s.run("audit", "export", "acme/app")), "\n")
	var e struct{ Kind string }
	if len(lines) < 4 || json.Unmarshal([]byte(lines[len(lines)-1]), &e) != nil || e.Kind != "create_repo" {
		t.Errorf("the export:\n%s", strings.Join(lines, "\n"))
	}
	s.run("policy", "create", "acme", "--num-tags", "1", "--mode", "on", "--yes")
	s.push("acme/app", "v3", "3")
	if code, stdout, stderr := purser(t, nil, "prune", "run", "acme", "--server", s.url); code != 0 {
		t.Fatalf("prune run: %d %s%s", code, stdout, stderr) // its progress may be on stderr
	}
	pruned := s.run("audit", "list", "acme", "--kind", "autoprune_tag_delete")
	if !regexp.MustCompile(`acme/app:v1 .* (1 newer|.*newest).*, policy [0-9a-f-]{36}, run [0-9a-f-]{36}\n`).MatchString(pruned) {
		t.Errorf("what a policy did:\n%s", pruned)
	}
	var entries []struct {
		Metadata    map[string]any
		Policy, Run string
	}
	if err := json.Unmarshal([]byte(s.run("audit", "list", "acme", "--kind", "autoprune_tag_delete", "-o", "json")), &entries); err != nil ||
		len(entries) != 1 || entries[0].Policy == "" || entries[0].Run == "" || entries[0].Metadata["reason"] == "" {
		t.Errorf("what a policy did, as JSON: %+v, %v", entries, err)
	}
	s.refused("kind", "audit", "list", "--kind", "nonsense")
	s.refused("from", "audit", "export", "--from", "yesterday")
	if table := s.run("audit", "export", "acme/app", "--format", "csv", "--address", "127.0.0.0/8", "--kind", "delete_tag"); !regexp.MustCompile(`^time,kind,actor,.*\r\n\S+,delete_tag,.*,acme/app,v2,`).MatchString(table) {
		t.Errorf("as CSV: %s", table)
	}
	if got := s.run("audit", "list", "--address", "192.0.2.1"); strings.Contains(got, "acme") {
		t.Errorf("by another address: %s", got)
	}
	s.refused("format", "audit", "export", "--format", "xml")
	s.refused("address", "audit", "list", "--address", "here")
}

func TestProtectionCommands(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.push("acme/app", "v1", "1")
	var made struct{ UUID string }
	if err := json.Unmarshal([]byte(s.run("protection", "add", "acme", "^v[0-9]+$", "-o", "json")), &made); err != nil || made.UUID == "" {
		t.Fatalf("%v %+v", err, made)
	}
	if got := first(s.run("protection", "list", "acme")); !slices.Equal(got, []string{made.UUID}) {
		t.Errorf("%q", got)
	}
	s.refused("protected", "tag", "delete", "-y", "acme/app:v1")
	s.run("tag", "delete", "-y", "--override-protection", "acme/app:v1")
	s.push("acme/app", "v1", "1")
	s.refused("add --yes", "protection", "remove", "acme", made.UUID)
	s.run("protection", "remove", "acme", made.UUID, "-y")
	s.run("tag", "delete", "-y", "acme/app:v1")
	if got := s.run("protection", "list", "--all"); !strings.Contains(got, "No rule of the registry protects tags.") {
		t.Errorf("%q", got)
	}
	s.refused("REGEXP", "protection", "add", "--all", "(")
	s.refused("leave TARGET out", "protection", "add", "--all", "acme", "x")
	s.refused("give 2 arguments, not 1", "protection", "add", "acme")
}
