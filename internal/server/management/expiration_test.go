package management_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/api"
	"github.com/purser-registry/purser/internal/audit"
	"github.com/purser-registry/purser/internal/autoprune"
)

type expiringTag struct {
	Name       string
	EndTS      int64  `json:"end_ts"`
	Expiration string `json:"expiration"`
}

// expires returns the expiration of a tag in Unix seconds, 0 if the tag has none. It also
// checks that the operation that describes the tag and those that list tags show the same
// expiration.
func (r *registry) expires(t testing.TB, repository, tag string) int64 {
	t.Helper()
	var one expiringTag
	var list struct{ Tags []expiringTag }
	r.Manage(t, "GET", "/repository/"+repository+"/tag/"+tag, "").Into(t, 200, &one)
	for _, query := range []string{"", "&sort=name", "&sort=size", "&not_pulled_for=1s"} {
		if strings.Contains(query, "not_pulled") { // needs statistics
			continue
		}
		r.Manage(t, "GET", "/repository/"+repository+"/tag/?specificTag="+tag+query, "").Into(t, 200, &list)
		if len(list.Tags) != 1 || list.Tags[0] != one {
			t.Errorf("the list has %+v, the tag %+v", list.Tags, one)
		}
	}
	if (one.EndTS == 0) != (one.Expiration == "") {
		t.Errorf("%+v", one)
	}
	return one.EndTS
}

// TestAPITagExpiration: a client sets the expiration of a tag. The API must show the
// expiration, accept a tag that the client sends back exactly as it received the tag, and refuse
// invalid dates. Setting the expiration to null, pushing the tag and moving the tag must each
// remove the expiration.
func TestAPITagExpiration(t *testing.T) {
	t.Parallel()
	r := setup(t)
	one := r.Simple(t, "acme/app", 1, nil)
	two := r.Simple(t, "acme/app", 2, nil)
	r.Put(t, "acme/app", "v1", one)
	const path = "/repository/acme/app/tag/v1"
	at := time.Now().Add(48 * time.Hour).Unix()
	set := fmt.Sprintf(`{"expiration": %d}`, at)
	f := r.Since(t)
	r.Manage(t, "PUT", path, set).WantStatus(t, 201)
	if got := r.expires(t, "acme/app", "v1"); got != at {
		t.Errorf("expires at %d, want %d", got, at)
	}
	r.Manage(t, "PUT", path, set).WantStatus(t, 201) // writes no second audit entry
	told := r.Manage(t, "GET", path, "")
	r.Manage(t, "PUT", path, string(told.Content)).WantStatus(t, 201)
	if got := r.expires(t, "acme/app", "v1"); got != at {
		t.Errorf("after what was read was sent back: %d, want %d", got, at)
	}
	r.Manage(t, "PUT", path, `{"expiration": null}`).WantStatus(t, 201)
	if got := r.expires(t, "acme/app", "v1"); got != 0 {
		t.Errorf("after null: %d", got)
	}
	f.Kinds = []audit.Kind{audit.ChangeTagExpiration}
	if n := len(r.Entries(t, f)); n != 3 { // set; set again after the tag was moved to the same manifest; removed
		t.Errorf("%d entries, want 3", n)
	}
	for what, push := range map[string]func(){
		"the same manifest": func() { r.Put(t, "acme/app", "v1", one) },
		"another manifest":  func() { r.Put(t, "acme/app", "v1", two) },
		"moved":             func() { r.Manage(t, "PUT", path, `{"manifest_digest": "`+digest(one).String()+`"}`).WantStatus(t, 201) },
		"restored": func() {
			r.Manage(t, "POST", path+"/restore", `{"manifest_digest": "`+digest(one).String()+`"}`).WantStatus(t, 200)
		},
	} {
		r.Manage(t, "PUT", path, `{"expiration": "`+time.Unix(at, 0).UTC().Format(time.RFC3339)+`"}`).WantStatus(t, 201)
		if got := r.expires(t, "acme/app", "v1"); got != at {
			t.Errorf("%s: %d before, want %d", what, got, at)
		}
		push()
		if got := r.expires(t, "acme/app", "v1"); got != 0 {
			t.Errorf("%s: %d after it, want none", what, got)
		}
	}
	r.Manage(t, "PUT", path, fmt.Sprintf(`{"expiration": %d, "manifest_digest": %q}`, at, digest(two))).WantStatus(t, 201)
	if got := r.expires(t, "acme/app", "v1"); got != at {
		t.Errorf("moved with a date: %d, want %d", got, at)
	}
	for body, text := range map[string]string{
		`{"expiration": 1}`:                      "^expiration: .*passed",
		`{"expiration": -1}`:                     "^expiration: .*passed",
		`{"expiration": 1e300}`:                  "^expiration: .*year 9999",
		`{"expiration": "tomorrow"}`:             "^expiration: ",
		`{"expiration": {}}`:                     "^expiration: ",
		`{"expiration": true}`:                   "^expiration: ",
		`{"expiration": "0001-01-01T00:00:00Z"}`: "^expiration: .*passed",
		`{"expirations": 1}`:                     "expirations",
		`{}`:                                     "^manifest_digest",
	} {
		r.Manage(t, "PUT", path, body).Refused(t, 400, "invalid_request", text)
	}
	r.Manage(t, "PUT", "/repository/acme/app/tag/none", set).Refused(t, 404, "not_found", "none")
	r.Manage(t, "PUT", "/repository/acme/none/tag/v1", set).Refused(t, 404, "not_found", "acme/none")
	r.Manage(t, "POST", "/repository/acme/app/tagprotection", `{"pattern": "^p"}`).WantStatus(t, 201)
	r.Put(t, "acme/app", "p1", one)
	r.Manage(t, "PUT", "/repository/acme/app/tag/p1", set).Refused(t, 409, "invalid_request", "p1 of acme/app can't be given a date of expiration")
	r.Manage(t, "PUT", "/repository/acme/app/tag/p1", `{"expiration": null}`).WantStatus(t, 201)
}

// expirer runs, until the test ends, the worker by which the replica `r` deletes expired tags.
func (r *registry) expirer(t testing.TB) {
	t.Helper()
	loop, err := autoprune.NewExpirer(autoprune.ExpirerOptions{Catalog: r.Catalog})
	if err != nil {
		t.Fatal(err)
	}
	background(t, loop.Run)
}

// TestTagsExpire: two replicas delete the expired tags at the same time. Each expired tag must
// be deleted once, with one audit entry, and its manifest must be queued for review. There are
// two exceptions. If a protection rule matches an expired tag, the tag must stay and lose its
// expiration. A tag that was pushed after its expiration was set must stay.
func TestTagsExpire(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range 6 {
		r.Put(t, "acme/app", fmt.Sprintf("v%d", i), r.Simple(t, "acme/app", i, nil))
		r.Put(t, "gone/app", fmt.Sprintf("v%d", i), r.Simple(t, "gone/app", i, nil))
	}
	r.Put(t, "acme/app", "p", r.Simple(t, "acme/app", "p", nil))
	r.Put(t, "acme/app", "pushed", r.Simple(t, "acme/app", "pushed", nil))
	f := r.Since(t)
	for _, tag := range []string{"v0", "v1", "v2", "v3", "v4", "p", "pushed"} {
		r.Manage(t, "PUT", "/repository/acme/app/tag/"+tag, fmt.Sprintf(`{"expiration": %d}`, time.Now().Add(time.Hour).Unix())).WantStatus(t, 201)
	}
	r.Manage(t, "POST", "/repository/acme/app/tagprotection", `{"pattern": "^p$"}`).WantStatus(t, 201)
	r.Put(t, "acme/app", "pushed", r.Simple(t, "acme/app", "again", nil))
	// The test sets the expiration of all tags except v4 to a time in the past; v4 expires only
	// in an hour. The worker must skip the tags of gone/app, since this repository is being
	// deleted.
	r.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 s' WHERE expires_at IS NOT NULL AND name <> 'v4'")
	r.Exec(t, "UPDATE tags SET expires_at = now() - interval '1 h' WHERE repository_id = (SELECT id FROM repositories WHERE path = 'gone/app')")
	r.Manage(t, "DELETE", "/organization/gone", "").WantStatus(t, 204)
	other := replica(t, r.DSN, r.Dir)
	other.Listen(t)
	var working sync.WaitGroup
	for _, x := range []*registry{r, other} {
		working.Go(func() {
			for range 3 {
				if _, err := x.Catalog.ExpireTags(audit.WithSource(context.WithoutCancel(t.Context()), audit.Source{Actor: audit.ActorExpiration})); err != nil {
					t.Error(err)
				}
			}
		})
	}
	working.Wait()
	for tag, status := range map[string]int{"v0": 404, "v1": 404, "v2": 404, "v3": 404, "v4": 200, "v5": 200, "p": 200, "pushed": 200} {
		for _, x := range []*registry{r, other} {
			eventually(t, fmt.Sprintf("%s is %d", tag, status), func() bool {
				return x.Do(t, "GET", "/v2/acme/app/manifests/"+tag, "").StatusCode == status
			})
		}
	}
	if r.expires(t, "acme/app", "p") != 0 || r.expires(t, "acme/app", "pushed") != 0 || r.expires(t, "acme/app", "v4") == 0 {
		t.Error("a protected tag or one that was pushed has its date, or one that isn't due has lost it")
	}
	f.Kinds = []audit.Kind{audit.DeleteTag}
	if n := len(r.Entries(t, f)); n != 4 {
		t.Errorf("%d entries of deletions, want 4", n)
	}
	r.wantPerformer(t, "delete_tag", api.LogPerformer{Kind: "worker", Name: "expiration worker"}, 4)
	var reviews int
	if err := r.DB.Pool.QueryRow(t.Context(), "SELECT count(*) FROM gc_manifest_review_queue WHERE event = 'tag_delete'").Scan(&reviews); err != nil || reviews != 4 {
		t.Errorf("%d manifests are to be reviewed, want 4: %v", reviews, err)
	}
	if next, some, err := r.Catalog.NextExpiration(t.Context()); err != nil || !some || next < 50*time.Minute || next > time.Hour {
		t.Errorf("the next is in %v, %v, %v", next, some, err)
	}
	// A worker that starts later deletes what is due.
	r.Exec(t, "UPDATE tags SET expires_at = now() WHERE name = 'v4'")
	other.expirer(t)
	eventually(t, "v4 is gone", func() bool { return r.Do(t, "GET", "/v2/acme/app/manifests/v4", "").StatusCode == 404 })
	r.Manage(t, "POST", "/repository/acme/app/tag/v0/restore", `{"manifest_digest": "`+digest(r.Simple(t, "acme/app", 0, nil)).String()+`"}`).WantStatus(t, 200)
	if r.expires(t, "acme/app", "v0") != 0 {
		t.Error("a tag that was restored expires again")
	}
}
