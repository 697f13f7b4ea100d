package autoprune_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/judge"
)

// TestDetachedSignaturesStay: signatures are in a repository of their own, apart from their
// images, as with cosign's COSIGN_REPOSITORY. A run must delete those signatures that a
// policy selects, like other tags. It must keep all other signatures, however old they are.
func TestDetachedSignaturesStay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy string
		stay   []string
	}{
		"another pattern": {`{"method": "creation_date", "olderThan": "1d", "tagPattern": "^pr-"}`, []string{"a.sig", "a.att", "a.sbom", "a", "512", "subject"}},
		"age":             {`{"method": "creation_date", "olderThan": "5d"}`, []string{"a.sig", "a.att"}},
		"number":          {`{"method": "number_of_tags", "numTags": 3}`, []string{"a.sig", "a.att", "a.sbom"}},
		"orphans":         {`{"method": "creation_date", "olderThan": "50d", "removeOrphans": true}`, []string{"a.sig"}},
		"orphans that match": {
			`{"method": "number_of_tags", "numTags": 50, "removeOrphans": true, "tagPattern": "sig$|att$"}`,
			[]string{"a.sig", "a.sbom", "a", "512", "subject"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.Repository("signatures/web")
			digest := "sha256-" + autoprunetest.DigestOf("an image elsewhere").Hex()
			names := map[string]string{
				"a.sig": digest + ".sig", "a.att": digest + ".att", "a.sbom": digest + ".sbom", "a": digest,
				"512": "sha512-" + autoprunetest.DigestOf("another").Hex(), "subject": "sbom",
			}
			for i, short := range []string{"a.sig", "a.att", "a.sbom", "a", "512"} {
				r.Tag(a, names[short], short, time.Duration(i)*3*day-time.Duration(i)*time.Hour)
			}
			id := r.Manifest(a, "of a subject", "a subject elsewhere")
			r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
				VALUES ($1, $2, 'sbom', $3, now() - interval '40 days')`, a.NamespaceID, a.ID, id)
			r.policy(policies.Target{Namespace: "signatures"}, c.policy)
			r.run()
			var want []string
			for _, short := range c.stay {
				want = append(want, names[short])
			}
			slices.Sort(want)
			if got := r.Tags(a); !slices.Equal(got, want) {
				t.Errorf("tags:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestReferrersTagOfSHA512: a referrers tag contains only half of its image's sha512
// digest. A run must nevertheless find the image, and keep the old referrers tag because
// the image stays.
func TestReferrersTagOfSHA512(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.Repository("app/a")
	full := strings.Repeat("ab", 64)
	r.Exec(`INSERT INTO manifests (top_level_namespace_id, repository_id, digest, media_type, payload, total_size)
		VALUES ($1, $2, decode('02' || $3, 'hex'), 'application/vnd.oci.image.manifest.v1+json', '{}', 2)`, a.NamespaceID, a.ID, full)
	r.Exec(`INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id)
		SELECT $1, $2, 'new', id FROM manifests WHERE repository_id = $2`, a.NamespaceID, a.ID)
	attached := "sha512-" + full[:64]
	r.Tag(a, attached, "referrers", 100*day)
	r.Tag(a, "sha512-"+full[1:64]+"c", "of another", 100*day)
	r.policy(policies.Target{Namespace: "app"}, `{"method": "creation_date", "olderThan": "5d"}`)
	r.run()
	if got, want := r.Tags(a), []string{"new", attached}; !slices.Equal(got, want) {
		t.Errorf("tags: %v, want %v", got, want)
	}
}

// TestOrphanIsAttachedAgain: a run has selected an orphan, and a client pushes the orphan's
// image before the deletion. The orphan must stay.
func TestOrphanIsAttachedAgain(t *testing.T) {
	t.Parallel()
	m := inTheMiddle(t, policies.Target{Namespace: "app"})
	orphan := "sha256-" + autoprunetest.DigestOf("late").Hex() + ".sig"
	m.Tag(m.a, orphan, "signature", 10*day)
	m.timeSlice(func(context.Context, []*judge.Tag) error {
		m.Tag(m.a, "image", "late", 0)
		return nil
	})
	if got, want := m.Tags(m.a), []string{"image", orphan}; !slices.Equal(got, want) {
		t.Errorf("tags: %v, want %v", got, want)
	}
}

// TestAgeFirstThenNumber: a policy by age and a policy by number apply, in various scopes.
// Of 15 tags, the policy by age must delete 10; the policy by number must delete none,
// because it only counts the 5 tags that remain, which are fewer than its number. The
// documentation promises this order.
func TestAgeFirstThenNumber(t *testing.T) {
	t.Parallel()
	age, number := `{"method": "creation_date", "olderThan": "1d", "tagPattern": "^pr-.*"}`, `{"method": "number_of_tags", "numTags": 10}`
	app, repository := policies.Target{Namespace: "app"}, policies.Target{Repository: "app/a"}
	for name, c := range map[string][2]policies.Target{ // of the number, of the age
		"in one namespace":         {app, app},
		"namespace and repository": {app, repository},
		"repository and namespace": {repository, app},
		"defaults":                 {{}, {}},
		"defaults and repository":  {{}, repository},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			a := r.Repository("app/a")
			for i := range 15 {
				kind := "pr-"
				if i >= 10 {
					kind = "release-"
				}
				r.Tag(a, kind+string(rune('a'+i)), "m", time.Duration(i+2)*day)
			}
			r.policy(c[0], number)
			r.policy(c[1], age)
			preview, err := r.pruner.Preview(t.Context(), app, autoprune.PreviewOptions{})
			r.Must(err)
			r.ensure()
			r.run()
			if got, want := r.Tags(a), []string{"release-k", "release-l", "release-m", "release-n", "release-o"}; !slices.Equal(got, want) {
				t.Errorf("tags: %v, want %v", got, want)
			}
			if preview.Deleted != 10 || preview.Tags != 15 || preview.Reasons[judge.TooOld] != 10 || preview.Reasons[judge.AmongNewest] != 5 {
				t.Errorf("the preview: %d of %d, %v", preview.Deleted, preview.Tags, preview.Reasons)
			}
		})
	}
}

// TestUnreadablePoliciesAreSkipped: a namespace and the registry's defaults have policies
// that this version can't read. A run must report them. It must not apply policies by number
// beside them, which depend on the unreadable policy. It must apply the policies by age,
// unless the unreadable policy may have keep rules.
func TestUnreadablePoliciesAreSkipped(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]string{
		"a newer method":                 `{"method": "by_magic", "olderThan": "1d"}`,
		"a newer member, may keep":       `{"method": "creation_date", "olderThan": "1d", "onlyOnSundays": true}`,
		"no JSON, may keep":              `{"method": `,
		"a bad pattern":                  `{"method": "creation_date", "olderThan": "1d", "tagPattern": "("}`,
		"nothing, may keep":              ``,
		"something else, may keep":       `7`,
		"an unknown expression":          `{"method": "creation_date", "olderThan": "1d", "tagPattern": "(?=a)"}`,
		"a newer keep rule, may keep":    `{"method": "creation_date", "olderThan": "1d", "keep": [{"everything": true}]}`,
		"a member in capitals, may keep": `{"method": "creation_date", "olderThan": "1d", "KEEP": [{"newest": 1}]}`,
		"a method twice, may keep":       `{"method": "creation_date", "method": "creation_date", "olderThan": "1d"}`,
	} {
		deleted, left := int64(1), []string{"v1", "v2", "v3"}
		if strings.HasSuffix(name, "may keep") {
			deleted, left = 0, []string{"pr-1", "v1", "v2", "v3"}
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			bad, plain := r.Repository("bad/a"), r.Repository("plain/a")
			for _, target := range []catalog.Repository{bad, plain} {
				for i, name := range []string{"pr-1", "v1", "v2", "v3"} {
					r.Tag(target, name, name, time.Duration(10+i)*day)
				}
			}
			r.policy(policies.Target{Namespace: "bad"}, `{"method": "creation_date", "olderThan": "2d", "tagPattern": "^pr-"}`)
			r.policy(policies.Target{Namespace: "bad"}, `{"method": "number_of_tags", "numTags": 1}`)
			id := "00000000-0000-4000-8000-000000000001"
			r.Exec("INSERT INTO namespaceautoprunepolicy (uuid, namespace_id, policy) VALUES ($1, $2, $3)", id, bad.NamespaceID, stored)
			r.policy(policies.Target{Repository: "plain/a"}, `{"method": "creation_date", "olderThan": "2d", "tagPattern": "^pr-"}`)
			r.Exec("INSERT INTO defaultautoprunepolicy (uuid, policy) VALUES ('d', $1)", stored)
			preview, err := r.pruner.Preview(t.Context(), policies.Target{Namespace: "bad"}, autoprune.PreviewOptions{})
			r.Must(err)
			if preview.Deleted != deleted || preview.Reasons[judge.PolicyUnreadable] != 4-deleted {
				t.Errorf("the preview: %+v", preview)
			}
			r.run()
			for _, target := range []catalog.Repository{bad, plain} {
				if got := r.Tags(target); !slices.Equal(got, left) {
					t.Errorf("tags of %s: %v, want %v", target.Path, got, left)
				}
			}
			runs, _, err := r.pruner.Runs(t.Context(), "bad", "", 1)
			r.Must(err)
			if len(runs) != 1 || runs[0].State != "success" || !strings.Contains(runs[0].Notices[id], "can't be read") {
				t.Errorf("runs: %+v", runs)
			}
			task, err := r.pruner.Task(t.Context(), "bad")
			r.Must(err)
			if !strings.Contains(task.Status, "1 policy can't be read") {
				t.Errorf("status: %s", task.Status)
			}
			list, err := r.pruner.Policies.List(t.Context(), policies.Target{Namespace: "bad"})
			r.Must(err)
			if len(list) != 3 || list[2].Problem == "" || list[2].Stored != stored {
				t.Errorf("policies: %+v", list)
			}
			r.Must(r.pruner.Policies.Delete(t.Context(), policies.Target{Namespace: "bad"}, id))
			r.run()
			if got, want := r.Tags(bad), []string{"v1"}; !slices.Equal(got, want) {
				t.Errorf("tags without the policy: %v, want %v", got, want)
			}
		})
	}
}
