package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/purser-registry/purser/cmd/purser/internal/command"
)

// TestExitCodes: wrong usage, refusals by the registry and other failures have different
// exit codes. The error about a mistyped command names similar commands.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := http.StatusNotFound
		if strings.Contains(r.URL.Path, "broken") {
			status = http.StatusServiceUnavailable
		}
		w.WriteHeader(status)
		w.Write([]byte(`{"detail": "the registry said this"}`)) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"version":                               {0, "purser"},
		"--version":                             {0, "purser"},
		"serv":                                  {2, `did you mean "purser serve"?`},
		"srve":                                  {2, `did you mean "purser serve"?`},
		"grant acme ann reader":                 {2, `write "purser grant list", "purser grant remove" or "purser grant set"`},
		"push acme/app":                         {2, "clients push: docker push "},
		"ls":                                    {2, `write "purser repo list"`},
		"serve --listen :5000":                  {2, "unknown flag: --listen: did you mean --addr?"},
		"gc statu":                              {2, `did you mean "purser gc status"?`},
		"loosefk statu":                         {2, `did you mean "purser loosefk status"?`},
		"nothing-like-it":                       {2, `unknown command "nothing-like-it" for "purser"`},
		"gc --verison":                          {2, "See 'purser gc --help'"},
		"serve extra":                           {2, "unknown command"},
		"policy create acme --keep 5":           {2, "unknown flag: --keep: did you mean --keep-used, --keep-group, --keep-newest"},
		"policy create acme --keep-newst 5":     {2, "did you mean --keep-newest?"},
		"policy create acme --nun-tags 5":       {2, "did you mean --num-tags?"},
		"policy list acme --num-tags 5":         {2, `--num-tags: it is a flag of "purser policy create" or "purser policy update"`},
		"tag list acme/app -limit 5":            {2, "did you mean --limit?"},
		"tag list acme/app --protection":        {2, "unknown flag: --protection\n"},
		"tag delete acme/app:v1 --protection":   {2, "did you mean --override-protection?"},
		"repo list --sevrer http://example.com": {2, "did you mean --server?"},
		"tag ls acme/app":                       {2, `did you mean "purser tag list"?`},
		"protection delete acme x":              {2, `did you mean "purser protection remove"?`},
		"repositories list":                     {2, `did you mean "purser repo"?`},
		"rotate acme+ci":                        {2, `did you mean "purser robot rotate"?`},
		"tag list":                              {2, `write "purser tag list `},
		"namespace show acme":                   {3, "the registry said this"},
		"namespace show broken":                 {1, "the registry said this"},
		"repo list --server :bad":               {2, "--server:"},
		"demo --addr 0.0.0.0:0":                 {2, "isn't on loopback"},
		"demo --data-dir /tmp/x":                {2, "--data-dir isn't for the demo"},

		"policy create acme --num-tags 0":                             {2, `--num-tags: "0" isn't possible: use a whole number from 1 to 1000000000`},
		"policy create acme --num-tags many":                          {2, `--num-tags: "many" isn't possible`},
		"policy create acme --older-than 2":                           {2, `--older-than: "2" isn't possible: "2" has no unit; units are s, m, h`},
		"policy create acme --older-than 0d":                          {2, "is zero, which would select every tag"},
		"policy create acme --method newest --num-tags 1":             {2, "--method: \"newest\" isn't possible: use one of creation_date, number_of_tags, last_pulled, max_bytes"},
		"policy create acme --num-tags 1 --older-than 2w":             {2, "create one for each"},
		"policy create acme --method last_pulled --num-tags 5":        {2, "needs --older-than AGE"},
		"policy create acme --method number_of_tags":                  {2, "needs --num-tags N"},
		"policy create acme --method untagged":                        {2, "needs --untagged AGE"},
		"policy create acme --method untagged --older-than 5d":        {2, "--older-than isn't for --method untagged, which needs --untagged AGE"},
		"policy create acme --method max_bytes":                       {2, "needs --max-bytes SIZE"},
		"policy create acme --method max_bytes --older-than 5d":       {2, "--older-than isn't for --method max_bytes, which needs --max-bytes SIZE"},
		"policy create acme --max-bytes 5 --older-than 5d":            {2, "create one for each"},
		"policy create acme --max-bytes 5XB":                          {2, `--max-bytes: "5XB" isn't possible`},
		"policy create acme --num-tags 5 --pattern (":                 {2, "--pattern: "},
		"policy create acme --num-tags 5 --not-matching":              {2, "--not-matching needs --pattern"},
		"policy create acme --older-than 5d --per-branch":             {2, "--per-branch goes only with --num-tags N"},
		"policy create acme --num-tags 5 --per-branch --group-by (a)": {2, "give one of them"},
		"policy create acme --num-tags 5 --keep-count-images":         {2, "needs --keep-newest N"},
		"policy create acme --num-tags 5 --keep-per-platform":         {2, "needs --keep-newest N"},
		"policy create acme --older-than 5d --per-platform":           {2, "--per-platform goes only with --num-tags N"},
		"policy create acme --older-than 5d --count-images":           {2, "--count-images goes only with --num-tags N"},
		"policy create acme --policy {":                               {2, "--policy: \"{\" isn't possible: it isn't JSON"},
		"policy create acme --policy {\"method\":\"creation_date\"}":  {2, "--policy: "},
		"policy create acme":                                          {2, "say which tags to delete"},
		"policy create":                                               {2, "give 1 arguments, not 0"},
		"policy show acme 7":                                          {3, "the registry said this"},
		"prune preview acme --limit 0":                                {2, "from 1 to 10000"},
		"prune forecast acme --days 400":                              {2, "from 1 to 365"},
		"prune forecast acme --settings 3d,x":                         {2, "--settings: "},
		"prune forecast acme --settings 3d":                           {2, "--settings needs a policy"},
		"prune show 7":                                                {2, `RUN: "7" isn't possible`},
		"prune undo 7":                                                {2, `RUN: "7" isn't possible`},
		"prune defaults acme maybe":                                   {2, "neither on nor off"},
		"audit list --kind push":                                      {2, `--kind: "push" isn't possible: use one of push_repo`},
		"audit list --from yesterday":                                 {2, "write 2026-03-05"},
		"audit list --run 1":                                          {2, "--run: "},
		"audit list --digest sha256:1":                                {2, "--digest: "},
		"tag list acme/app --sort age":                                {2, "use one of name, pushed, size, last_pulled, pull_count, with - in front"},
		"tag list acme/app --not-pulled-for month":                    {2, "--not-pulled-for: "},
		"tag list acme/app --limit -1":                                {2, `--limit: "-1" isn't possible: use a whole number from 0`},
		"tag show acme/app":                                           {2, "like library/app:v1"},
		"tag move acme/app:v1 sha256:1":                               {2, `DIGEST: "sha256:1" isn't possible`},
		"protection add acme [":                                       {2, `REGEXP: "[" isn't possible`},
		"repo list -o xml":                                            {2, `--output: "xml" isn't possible: write text or json`},
		"prune run acme --wait=perhaps":                               {2, `--wait: "perhaps" isn't possible: write true or false`},
		"gc run --limit 5":                                            {2, "--limit is for --dry-run"},
		"gc explain acme":                                             {2, "a digest is sha256:"},
		"gc status --data-dir ~nobody":                                {2, "flag --data-dir: "},
		"serve --addr 5000":                                           {2, `flag --addr: http.addr: "5000" is no host:port`},
		"serve --config /nowhere.yaml":                                {2, "flag --config: "},
		"loosefk status --fail-over soon":                             {2, "--fail-over: \"soon\" isn't possible: write a duration"},
		"tag delete acme/app:v1":                                      {3, "There is no terminal to ask for confirmation: add --yes"},
		"pulls reset":                                                 {3, "add --yes"},
		"protection remove acme 5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b": {3, "add --yes"},
	} {
		args := strings.Fields(line)
		code, stdout, stderr := purser(t, []string{"PURSER_SERVER=" + registry.URL}, args...)
		if code != want.code || !strings.Contains(stdout+stderr, want.text) {
			t.Errorf("purser %s ends with %d, want %d with %q: %s%s", line, code, want.code, want.text, stdout, stderr)
		}
	}
}

// TestBadValues passes a bad value to each flag that doesn't accept every value. The error
// must name the flag and the value.
func TestBadValues(t *testing.T) {
	t.Parallel()
	tried := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		cmd.InheritedFlags() // adds those of the commands above
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			var bad string
			switch f.Value.Type() {
			case "int", "duration", "bool", "FORMAT", "format", "strings", "NAME=VALUE":
				bad = "what?"
			case "string":
				if fmt.Sprintf("%T", f.Value) == "*pflag.stringValue" { // any text is possible
					return
				}
			default:
				t.Errorf("%s --%s has the type %s", cmd.CommandPath(), f.Name, f.Value.Type())
				return
			}
			tried++
			args := append(strings.Fields(cmd.CommandPath())[1:], "--"+f.Name+"="+bad)
			code, _, stderr := purser(t, nil, args...)
			if code != 2 || !strings.Contains(stderr, fmt.Sprintf("--%s: %q isn't possible: ", f.Name, bad)) {
				t.Errorf("purser %s ends with %d: %s", strings.Join(args, " "), code, stderr)
			}
		})
	}
	walk(newRoot(new(command.Source)))
	if tried < 60 {
		t.Errorf("%d flags were tried", tried)
	}
}

// TestExitCodesAreDocumented: the table in docs/cli.md has each exit code.
func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{0, 1, command.ExitUsage, command.ExitRefused, command.ExitFindings} {
		if !strings.Contains(string(text), fmt.Sprintf("\n| %d | ", code)) {
			t.Errorf("%d isn't there", code)
		}
	}
}
