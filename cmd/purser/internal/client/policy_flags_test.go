package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/policy"
)

// TestPolicyFlags: the flags of selectors and keep rules must become the policy's members,
// and the commands must show them.
func TestPolicyFlags(t *testing.T) {
	t.Parallel()
	var body []byte
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == "POST" {
			body, _ = io.ReadAll(r.Body)     // the test fails if it isn't complete
			w.Write([]byte(`{"uuid": "u"}`)) //nolint:errcheck // the test sees it
			return
		}
		json.NewEncoder(w).Encode(policyView{Method: "creation_date", Value: "2w", Selectors: policy.Selectors{LargerThan: 1 << 30},
			Safeguards: policy.Safeguards{Mode: policy.Observe, MaxDeleted: 9, MaxDeletedPercent: 20, NeverBelow: 5},
			Keep:       []policy.KeepRule{{Newest: 3}, {UsedWithin: thirtyDays(t)}}}) //nolint:errcheck // the test sees it
	}))
	t.Cleanup(registry.Close)
	create := func(args ...string) (int, string) {
		code, _, stderr := purser(t, append([]string{"policy", "create", "app", "--server", registry.URL, "--older-than", "2w"}, args...)...)
		return code, stderr
	}
	code, stderr := create("--repositories", "app/a,app/b/**", "--media-type", "*index*", "--artifact-type", "a/b", "--larger-than", "1GiB", "--smaller-than", "2TB",
		"--label", "stage=test*", "--label", "owner=a,b=c", "--annotation", "org.example=*", "--platform", "linux/arm64,windows/*",
		"--keep-newest", "3", "--keep-group", `^(v\d+),`, "--keep-used", "30d", "--keep-pattern", "^a{1,2}", "--keep-pattern", "b$",
		"--keep-versions", "releases", "--keep-versions", "newest_patches", "--keep-versions", "newest_prereleases:2",
		"--mode", "observe", "--grace", "7d", "--never-below", "5", "--keep-untagged", "14d", "--max-deleted", "1000", "--max-deleted-percent", "20", "--require-reporter", "prod-eu", "--require-reporter", "prod/us", "--window", "fri-mon,wed 22:00-06:00 Europe/Berlin", "--window", "01:00-02:00", "--window", "sun")
	want := `{"annotations":{"org.example":"*"},"artifactTypes":["a/b"],"grace":"7d","keep":[{"newest":3,"groupBy":"^(v\\d+),"},{"usedWithin":"30d"},{"tagPattern":"^a{1,2}"},{"tagPattern":"b$"},` +
		`{"versions":"releases"},{"newest":1,"versions":"newest_patches"},{"newest":2,"versions":"newest_prereleases"}],"keepUntagged":"14d",` +
		`"labels":{"owner":"a,b=c","stage":"test*"},"largerThan":"1GiB","maxDeleted":1000,"maxDeletedPercent":20,"mediaTypes":["*index*"],"method":"creation_date","mode":"observe","neverBelow":5,"olderThan":"2w","platforms":["linux/arm64","windows/*"],"repositories":["app/a","app/b/**"],"requireReporter":["prod-eu","prod/us"],"smallerThan":"2TB",` +
		`"windows":[{"days":["fri","mon","sat","sun","wed"],"from":"22:00","to":"06:00","zone":"Europe/Berlin"},{"from":"01:00","to":"02:00"},{"days":["sun"]}]}`
	if code != 0 || strings.TrimSpace(string(body)) != want {
		t.Errorf("the command ends with %d (%s) and sends\n%s, want\n%s", code, stderr, body, want)
	}
	for flags, problem := range map[string]string{
		"--keep-group (a)":                            "needs --keep-newest",
		"--larger-than 1.5GiB":                        "no size",
		"--label stage":                               "has no =",
		"--annotation =x":                             "a key is empty",
		"--label a=1 --label a=2":                     "is given twice",
		"--platform linux":                            "is no platform",
		"--repositories app//a":                       "no pattern of repositories",
		"--mode watch":                                "--mode",
		"--keep-untagged 0d":                          "--keep-untagged",
		"--never-below 0":                             "never-below",
		"--max-deleted 0":                             "max-deleted",
		"--max-deleted-percent 101":                   "from 1 to 100",
		"--require-reporter a+b":                      "no name of a reporter",
		"--grace soon":                                "grace",
		"--window monday":                             "is no day",
		"--window 22:00":                              "to: it is missing",
		"--window sun,xyz@UTC":                        "is no day",
		"--window 10:00-11:00@Mars":                   "no time zone",
		"--keep-newest 0":                             "keep-newest",
		"--keep-used 3":                               "keep-used",
		"--keep-pattern (":                            "keep-pattern",
		"--keep-versions patches":                     "write releases, newest_patches or newest_prereleases",
		"--keep-versions releases:1":                  "leave the number out",
		"--keep-versions newest_patches:1001":         "from 1 to 1000",
		"--keep-newest 1 --policy {\"method\":\"x\"}": "policy",
	} {
		words := strings.Fields(flags)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "@", " ")
		}
		if code, stderr := create(words...); code == 0 || !strings.Contains(stderr, problem) {
			t.Errorf("%s: the command ends with %d: %s", flags, code, stderr)
		}
	}
	code, stdout, _ := purser(t, "policy", "show", "app", "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", "--server", registry.URL)
	if code != 0 || !strings.Contains(stdout, "observe") || !strings.Contains(stdout, "all, larger than 1GiB, at most 9 in a run, at most 20% in a run, never below 5, but keep the newest 3, tags used within 30d") {
		t.Errorf("the policy is shown as %s", stdout)
	}
}

// TestPolicyUpdateOfSafeguards: with only safeguards, a policy selects what it did; with any other flag,
// the flags replace it.
func TestPolicyUpdateOfSafeguards(t *testing.T) {
	t.Parallel()
	var sent map[string]any
	var version string
	stored := `{"uuid": "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", "method": "number_of_tags", "value": 3, "numTags": 3, "tagPattern": "^build-",
		"tagPatternMatches": true, "mode": "observe", "neverBelow": 2, "keep": [{"usedWithin": "30d"}], "labels": {"a": "b"}, "selectorOfTomorrow": "x", "version": 7}`
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method != "PUT" {
			io.WriteString(w, stored) //nolint:errcheck // the test sees it
			return
		}
		sent, version = nil, r.URL.Query().Get("version")
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(registry.Close)
	update := func(args ...string) (int, string) {
		code, _, stderr := purser(t, append([]string{"policy", "update", "app", "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", "--server", registry.URL}, args...)...)
		return code, stderr
	}
	code, stderr := update("--mode", "on", "--max-deleted", "9", "--window", "sun")
	if code != 0 || sent["value"] != 3.0 || sent["tagPattern"] != "^build-" || sent["mode"] != "on" || sent["maxDeleted"] != 9.0 ||
		sent["neverBelow"] != 2.0 || sent["windows"] == nil || sent["keep"] == nil || sent["labels"] == nil || sent["selectorOfTomorrow"] != "x" || version != "7" {
		t.Errorf("safeguards alone: %d, %s, sent %v", code, stderr, sent)
	}
	code, stderr = update("--older-than", "2w")
	if code != 0 || sent["value"] != nil || sent["tagPattern"] != nil || sent["neverBelow"] != nil || sent["mode"] != "observe" {
		t.Errorf("another policy: %d, %s, sent %v", code, stderr, sent)
	}
	for _, args := range [][]string{{"--pattern", "^x"}, {"--keep-newest", "3"}, {"--mode", "on", "--label", "a=b"}, {}} {
		if code, stderr := update(args...); code == 0 || !strings.Contains(stderr, "say which tags to delete") {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
	stored = `{"uuid": "5f0c9c1e-6b0a-4c8e-9d3b-2a1f0e9d8c7b", "problem": "no method x"}`
	if code, stderr := update("--mode", "on"); code == 0 || !strings.Contains(stderr, "no method x") {
		t.Errorf("a policy that can't be read: %d, %s", code, stderr)
	}
}

func thirtyDays(t *testing.T) policy.Age {
	t.Helper()
	age, err := policy.ParseAge("30d")
	if err != nil {
		t.Fatal(err)
	}
	return age
}
