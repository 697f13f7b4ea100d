package browse_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
)

// TestTagsBySizeInOneReading: in a repository of many tags, whose manifests are all read at once, the
// order of size is the same as in one of few, where each tag's manifest is looked up. That goes for
// indexes too, also for one with a child that was pushed after it.
func TestTagsBySizeInOneReading(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := newShelf(t, dsn, rand.New(rand.NewPCG(1, 2)), "acme/app", "acme/web")
	var children []oci.Digest
	for i := range 4 {
		config := s.Push(t, "acme/app", "config")
		layer := s.Push(t, "acme/app", string(make([]byte, 100*i+1)))
		children = append(children, s.Put(t, "acme/app", catalogtest.Image(t, config, []oci.Digest{layer}, nil)))
		if i < 3 {
			s.Put(t, "acme/app", catalogtest.Index(t, children...), "index"+string(rune('0'+i)))
		}
	}
	s.Exec(t, `INSERT INTO manifest_references (top_level_namespace_id, repository_id, parent_id, child_id)
		SELECT c.top_level_namespace_id, c.repository_id, t.manifest_id, c.id FROM manifests c, tags t
		WHERE c.digest = $1 AND t.name = 'index1' AND t.repository_id = c.repository_id`, children[3].Bytes())
	whole := browse.New(s.Catalog)
	whole.Rank(1)
	list := func(b *browse.Browser, q browse.TagQuery) (names []string) {
		t.Helper()
		for {
			page, err := b.Tags(t.Context(), "acme/app", q)
			if err != nil {
				t.Fatal(err)
			}
			for _, tag := range page.Tags {
				names = append(names, tag.Name)
			}
			if q.After, q.Skip = page.Next, 0; q.After == nil {
				return names
			}
		}
	}
	for _, q := range []browse.TagQuery{
		{}, {Descending: true}, {NameFilter: browse.NameFilter{Prefix: "v"}}, {NameFilter: browse.NameFilter{Contains: "1"}, Descending: true}, {Skip: 5},
	} {
		q.Order, q.Limit = browse.TagsBySize, 7
		one, all := list(s.Browser, q), list(whole, q)
		if !slices.Equal(one, all) || len(one) < 5 {
			t.Errorf("%+v: %q, in one reading %q", q, one, all)
		}
	}
}

// TestTagsBySizeBoundReferences: a repository whose indexes refer to very many manifests isn't sorted by size,
// since all these references would be read for each page. The error says what can be done instead.
func TestTagsBySizeBoundReferences(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var children []oci.Digest
	for i := range 3 {
		children = append(children, b.Put(t, "acme/app", catalogtest.Image(t, b.Push(t, "acme/app", fmt.Sprint("config ", i)), nil, nil)))
	}
	for i := range 2 {
		b.Put(t, "acme/app", catalogtest.Index(t, children[i:]...), fmt.Sprint("v", i)) // three references, and two
	}
	q := browse.TagQuery{Order: browse.TagsBySize, Limit: 10}
	b.Rank(1)
	b.BoundReferences(5)
	if page, err := b.Tags(t.Context(), "acme/app", q); err != nil || len(page.Tags) != 2 {
		t.Errorf("with five references: %d tags, %v", len(page.Tags), err)
	}
	b.BoundReferences(4)
	_, err := b.Tags(t.Context(), "acme/app", q)
	if oci.CodeOf(err) != oci.Unsupported || !strings.Contains(err.Error(), "4 references from indexes to manifests") || !strings.Contains(err.Error(), "longer prefix") {
		t.Errorf("with more than four references: %v", err)
	}
	q.Prefix = "v0"
	if page, err := b.Tags(t.Context(), "acme/app", q); err != nil || len(page.Tags) != 1 {
		t.Errorf("with a longer prefix: %d tags, %v", len(page.Tags), err)
	}
}
