package protection_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/protection"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func tagPattern(t testing.TB, text string) oci.TagPattern {
	t.Helper()
	p, err := oci.ParseTagPattern(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// protect makes a rule.
func protect(t testing.TB, b catalogtest.Bundle, s protection.Scope, pattern string) protection.Rule {
	t.Helper()
	r, err := b.Protection.Create(t.Context(), s, tagPattern(t, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestProtectionRules(t *testing.T) {
	t.Parallel()
	b := catalogtest.Setup(t)
	ctx := t.Context()
	b.Push(t, "acme/app", "x")
	for _, s := range []protection.Scope{{}, {Namespace: "acme"}, {Repository: "acme/app"}} {
		first, second := protect(t, b, s, "v.*"), protect(t, b, s, "w.*")
		_, err := b.Protection.Create(ctx, s, tagPattern(t, "v.*"))
		catalogtest.WantCode(t, err, oci.Unsupported)
		if !strings.Contains(err.Error(), first.ID.String()) {
			t.Errorf("the error %v doesn't name the rule", err)
		}
		list, _, err := b.Protection.List(ctx, s, protection.Place{}, 1000)
		if err != nil || len(list) != 2 || list[0].ID != first.ID || list[1].Pattern.String() != "w.*" || list[0].Scope != s || list[0].Created.IsZero() {
			t.Errorf("rules of %s: %+v, %v", s, list, err)
		}
		for _, other := range []protection.Scope{{}, {Namespace: "acme"}, {Repository: "acme/app"}} {
			if other != s {
				catalogtest.WantCode(t, b.Protection.Delete(ctx, other, second.ID), oci.NameUnknown)
			}
		}
		if err := b.Protection.Delete(ctx, s, second.ID); err != nil {
			t.Error(err)
		}
		catalogtest.WantCode(t, b.Protection.Delete(ctx, s, second.ID), oci.NameUnknown)
	}
	for _, s := range []protection.Scope{{Namespace: "nowhere"}, {Repository: "acme/nothing"}} {
		_, err := b.Protection.Create(ctx, s, tagPattern(t, "v.*"))
		catalogtest.WantCode(t, err, oci.NameUnknown)
		_, _, err = b.Protection.List(ctx, s, protection.Place{}, 1000)
		catalogtest.WantCode(t, err, oci.NameUnknown)
		catalogtest.WantCode(t, b.Protection.Delete(ctx, s, uuid.New()), oci.NameUnknown)
	}
	if n := b.Count(t, "SELECT value::int FROM settings WHERE name = 'tag_protection_version'"); n != 9 {
		t.Errorf("the version is %d after 9 changes", n)
	}
	for i := range protection.MaxRules - 1 {
		protect(t, b, protection.Scope{}, fmt.Sprint(i))
	}
	_, err := b.Protection.Create(ctx, protection.Scope{}, tagPattern(t, "more"))
	catalogtest.WantCode(t, err, oci.Unsupported)
	if err := b.Trash.DeleteNamespace(ctx, "acme"); err != nil {
		t.Fatal(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM tagprotectionrules WHERE namespace_id IS NOT NULL AND repository_id IS NULL"); n != 0 {
		t.Errorf("%d rules of a namespace that is gone", n)
	}
}

// TestLabelsMeanwhile: a transaction that isn't committed yet lets labels decide about tags, when a
// client says that they don't. That must come afterwards, and not find that nothing is to do.
func TestLabelsMeanwhile(t *testing.T) {
	t.Parallel()
	b := catalogtest.Setup(t)
	b.Push(t, "acme/app", "x")
	if err := b.Meanwhile(t, func() error { return b.Protection.SetTagLabels(t.Context(), "acme", protection.TagLabels{}) }, "UPDATE top_level_namespaces SET immutable_labels = true"); err != nil {
		t.Error(err)
	}
	if n := b.Count(t, "SELECT count(*) FROM top_level_namespaces WHERE immutable_labels"); n != 0 {
		t.Error("labels decide about tags")
	}
}

// TestRuleOfWhatGoes: a repository or a namespace goes into the trash while somebody makes a rule
// that protects its tags. There must be no such rule.
func TestRuleOfWhatGoes(t *testing.T) {
	t.Parallel()
	for deletion, scope := range map[string]protection.Scope{catalogtest.TrashRepository: {Repository: "acme/app"}, catalogtest.TrashNamespace: {Namespace: "acme"}} {
		b := catalogtest.WithTrash(t, dbtest.DSN(t), time.Hour)
		b.Push(t, "acme/app", "x")
		catalogtest.WantCode(t, b.Meanwhile(t, func() error {
			_, err := b.Protection.Create(t.Context(), scope, tagPattern(t, "v1"))
			return err
		}, deletion), oci.NameUnknown)
	}
}
