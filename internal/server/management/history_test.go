package management_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/purser-registry/purser/internal/oci"
)

// listedOnce is a tag of the history.
type listedOnce struct {
	Name           string
	ManifestDigest oci.Digest `json:"manifest_digest"`
	StartTS        int64      `json:"start_ts"`
	EndTS          int64      `json:"end_ts"`
	EndedBy        string     `json:"ended_by"`
	ManifestGone   bool       `json:"manifest_gone"`
	Size           int64
}

func (l listedOnce) String() string {
	return fmt.Sprintf("%s %s %s", l.Name, l.ManifestDigest.String()[7:13], l.EndedBy)
}

// tagHistory reads all pages of a repository's tag history. It gets the next page by next_page
// or, if `numbered` is true, by Quay's parameter page. It returns the existing tags (`live`)
// and the former states of tags (`former`), and checks that the history is sorted by time.
func (r *registry) tagHistory(t *testing.T, path, query string, limit int, numbered bool) (live, former []string) {
	t.Helper()
	last := int64(1 << 62)
	for page, next := 1, ""; ; page++ {
		var p struct {
			Tags          []listedOnce
			HasAdditional bool   `json:"has_additional"`
			NextPage      string `json:"next_page"`
		}
		place := "&next_page=" + next
		if numbered {
			place = fmt.Sprintf("&page=%d", page)
		}
		r.Manage(t, "GET", fmt.Sprintf("/repository/%s/tag/?onlyActiveTags=false&limit=%d%s%s", path, limit, query, place), "").Into(t, 200, &p)
		for _, l := range p.Tags {
			moment := l.EndTS
			if l.EndedBy == "" {
				live, moment = append(live, l.String()), l.StartTS
			} else {
				former = append(former, l.String())
			}
			if moment > last || l.StartTS == 0 || moment < l.StartTS {
				t.Errorf("%v from %d to %d, behind %d", l, l.StartTS, l.EndTS, last)
			}
			last = moment
		}
		if next = p.NextPage; !p.HasAdditional {
			return live, former
		}
		if page > 200 {
			t.Fatal("the history has no end")
		}
	}
}

// TestQuayTagHistory: a client pushes, moves, restores and deletes tags sixty times. Then the
// tag history, read in pages of any size, must list each existing tag, and each state of a tag
// that a move or deletion has ended.
func TestQuayTagHistory(t *testing.T) {
	t.Parallel()
	r, _ := pruning(t)
	const path = "acme/app"
	rng := rand.New(rand.NewPCG(1, 2))
	payloads := make([]string, 4)
	for i := range payloads {
		payloads[i] = r.Simple(t, path, i, nil)
		r.Put(t, path, fmt.Sprint("keep", i), payloads[i])
	}
	now, former := map[string]oci.Digest{}, []string{}
	ended := func(tag, kind string) {
		former = append(former, listedOnce{Name: tag, ManifestDigest: now[tag], EndedBy: kind}.String())
	}
	for range 60 {
		tag, payload := fmt.Sprint("v", rng.IntN(3)), payloads[rng.IntN(len(payloads))]
		old, there := now[tag]
		d := digest(payload)
		switch n := rng.IntN(5); {
		case n == 0 && there:
			r.Manage(t, "DELETE", "/repository/"+path+"/tag/"+tag, "").WantStatus(t, 204)
			ended(tag, "delete_tag")
			delete(now, tag)
		case n == 1:
			r.Manage(t, "POST", "/repository/"+path+"/tag/"+tag+"/restore", `{"manifest_digest":"`+d.String()+`"}`).WantStatus(t, 200)
			if there && old != d {
				ended(tag, "revert_tag")
			}
			now[tag] = d
		case n == 2:
			r.Manage(t, "PUT", "/repository/"+path+"/tag/"+tag, `{"manifest_digest":"`+d.String()+`"}`).WantStatus(t, 201)
			if there && old != d {
				ended(tag, "move_tag")
			}
			now[tag] = d
		default:
			r.Put(t, path, tag, payload)
			if there && old != d {
				ended(tag, "move_tag")
			}
			now[tag] = d
		}
	}
	slices.Reverse(former)
	if len(former) < 20 {
		t.Fatalf("only %d ended", len(former))
	}
	for _, limit := range []int{1, 3, 7, 100} {
		for _, numbered := range []bool{false, true} {
			live, got := r.tagHistory(t, path, "", limit, numbered)
			if !slices.Equal(got, former) || len(live) != len(now)+4 {
				t.Errorf("by %d (%v): %d tags, want %d; former\n%q, want\n%q", limit, numbered, len(live), len(now)+4, got, former)
			}
		}
	}
	of := slices.DeleteFunc(slices.Clone(former), func(s string) bool { return s[:2] != "v1" })
	for _, query := range []string{"&specificTag=v1", "&filter_tag_name=like:1&prefix=v", "&prefix=v1"} {
		if _, got := r.tagHistory(t, path, query, 2, false); !slices.Equal(got, of) {
			t.Errorf("%s: %q, want %q", query, got, of)
		}
	}
	r.Manage(t, "GET", "/repository/"+path+"/tag/?onlyActiveTags=false&sort=name", "").Refused(t, 400, "invalid_request", "onlyActiveTags")
	r.Manage(t, "GET", "/repository/acme/none/tag/?onlyActiveTags=false", "").Refused(t, 404, "not_found", "acme/none")
	for _, query := range []string{"", "?onlyActiveTags=true"} {
		var p struct{ Tags []listedOnce }
		if r.Manage(t, "GET", "/repository/"+path+"/tag/"+query, "").Into(t, 200, &p); len(p.Tags) != len(now)+4 {
			t.Errorf("%q: %d tags", query, len(p.Tags))
		}
	}
}

// TestQuayTagHistoryOfDeleted: a tag has pointed to a manifest that is deleted later. The tag
// history must mark this former state of the tag. Then the repository is deleted, and a new
// repository gets the same name. The new repository must not show the tag history of the old
// one.
func TestQuayTagHistoryOfDeleted(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const path = "acme/app"
	r.Put(t, path, "stays", r.Simple(t, path, 0, nil))
	d := r.Put(t, path, "v1", r.Simple(t, path, 1, nil))
	type page struct{ Tags []listedOnce }
	var p page
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/v1", "").Want(t, 202, "")
	r.Manage(t, "GET", "/repository/"+path+"/tag/?onlyActiveTags=false&specificTag=v1", "").Into(t, 200, &p)
	if len(p.Tags) != 1 || p.Tags[0].ManifestGone || p.Tags[0].Size == 0 || p.Tags[0].ManifestDigest != d {
		t.Errorf("%+v", p.Tags)
	}
	r.Put(t, path, "v1", r.Simple(t, path, 1, nil))
	r.Do(t, "DELETE", "/v2/"+path+"/manifests/"+d.String(), "").Want(t, 202, "")
	p = page{}
	r.Manage(t, "GET", "/repository/"+path+"/tag/?onlyActiveTags=false&specificTag=v1", "").Into(t, 200, &p)
	if len(p.Tags) != 2 || !p.Tags[0].ManifestGone || p.Tags[0].Size != 0 || p.Tags[0].StartTS == 0 {
		t.Errorf("%+v", p.Tags)
	}
	r.Exec(t, "DELETE FROM auditlog WHERE kind = 'push_repo' AND tag = 'v1'") // as if the retention had deleted the entry
	p = page{}
	r.Manage(t, "GET", "/repository/"+path+"/tag/?onlyActiveTags=false&specificTag=v1", "").Into(t, 200, &p)
	if len(p.Tags) != 2 || p.Tags[0].StartTS != 0 || p.Tags[0].EndTS == 0 {
		t.Errorf("%+v", p.Tags)
	}
	r.Manage(t, "DELETE", "/repository/"+path, "").WantStatus(t, 204)
	r.Put(t, path, "new", r.Simple(t, path, 2, nil))
	p = page{}
	r.Manage(t, "GET", "/repository/"+path+"/tag/?onlyActiveTags=false", "").Into(t, 200, &p)
	if len(p.Tags) != 1 || p.Tags[0].Name != "new" {
		t.Errorf("%+v", p.Tags)
	}
}
