package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The test runs the commands that use the management API, on a registry to which crane pushes
// and from which it pulls.
func TestCommandsOfTheAPI(t *testing.T) {
	beginOwn(t)
	r, crane := startRegistry(t, options{}), toolClient(t, "crane")
	img, index := newImage(t, 2, 1<<10), newIndex(t, "amd64", "arm64")
	digest := digestOf(t, img)
	crane.Run("push", writeImage(t, img, "v1"), r.Ref("team/deep/app", "v1"))
	crane.Run("push", "--index", writeIndex(t, index, "all"), r.Ref("team/deep/app", "all"))

	cli := func(args ...string) string {
		t.Helper()
		code, out := purser(t, []string{"PURSER_SERVER=" + r.URL()}, args...)
		if code != 0 {
			t.Fatalf("purser %q: exit code %d\n%s", args, code, out)
		}
		return out
	}
	has := func(out string, want ...string) {
		t.Helper()
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("it says nothing of %q:\n%s", text, out)
			}
		}
	}
	has(cli("namespace", "list"), "team")
	has(cli("repo", "show", "team/deep/app"), "tags        2\n")
	has(cli("tag", "list", "team/deep/app"), "v1", "all")
	has(cli("tag", "show", "team/deep/app:v1"), digest, "linux/amd64", "layers ")

	crane.Run("push", writeImage(t, img, "v1"), r.Ref("team/unused", "v1"))
	for range 3 {
		crane.Run("manifest", r.Ref("team/deep/app", "v1"))
	}
	// Pulls of the last second aren't counted yet.
	eventually(t, time.Minute, func() error {
		cli("pulls", "flush")
		if out := cli("pulls", "history", "team/deep/app:v1"); !regexp.MustCompile(`(?m)^total +3$`).MatchString(out) {
			return fmt.Errorf("the history of the tag, want 3 pulls:\n%s", out)
		}
		return nil
	})
	for command, want := range map[string]string{
		"pulls history":                         `(?m)^total +3$`,
		"pulls history team":                    `(?m)^DAY +PULLS\n(.*\n)+total +3$`,
		"pulls history team/deep/app@" + digest: `(?m)^total +3$`,
		"pulls top --days 7":                    `^REPOSITORY +PULLS\nteam/deep/app +3\n$`,
		"pulls top team":                        `(?m)^team/deep/app +3$`,
		"pulls top team/deep/app":               `^TAG +PULLS\nv1 +3\n$`,
		"pulls unpulled team":                   `(?m)^team/unused$`,
		"repo list team --statistics":           `(?m)^team/deep/app +2 +\S+ (K|M)iB\+? .* \d{4}-\d\d-\d\d \S+ +3$`,
	} {
		if out := cli(strings.Fields(command)...); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("purser %s: want %s in:\n%s", command, want, out)
		}
	}
	if out := cli("pulls", "unpulled", "team"); strings.Contains(out, "deep/app") {
		t.Errorf("what was pulled is among what wasn't:\n%s", out)
	}

	cli("tag", "delete", "--yes", "team/deep/app:v1")
	crane.Refused("digest", r.Ref("team/deep/app", "v1"))
	cli("tag", "restore", "team/deep/app:v1", digest)
	cli("tag", "move", "team/deep/app:stable", digest)
	for _, tag := range []string{"v1", "stable"} {
		if got := crane.Run("digest", r.Ref("team/deep/app", tag)); got != digest {
			t.Errorf("%s: %s, want %s", tag, got, digest)
		}
	}
	has(cli("audit", "list", "team/deep/app", "--tag", "v1"), "delete_tag", "revert_tag", "push_repo")
	has(cli("audit", "export", "--kind", "create_tag"), `"tag":"stable"`)

	cli("protection", "add", "team", "v[0-9]+")
	code, out := purser(t, []string{"PURSER_SERVER=" + r.URL()}, "tag", "delete", "--yes", "team/deep/app:v1")
	refused(t, code, out, "protected")
	// There is no terminal here.
	code, out = purser(t, nil, "repo", "delete", "team/deep/app", "--server", r.URL())
	refused(t, code, out, "team/deep/app with 3 tags", "--yes")
	cli("repo", "delete", "--yes", "team/deep/app")
	crane.Refused("digest", r.Ref("team/deep/app", "stable"))
	code, out = purser(t, nil, "repo", "list", "--server", "127.0.0.1:1")
	refused(t, code, out, "no registry answers at http://127.0.0.1:1", "purser serve")
	if got := getStatus(t.Context(), r.URL()+"/api/v1/"); got != http.StatusOK {
		t.Errorf("the page of the API: %d", got)
	}
}
