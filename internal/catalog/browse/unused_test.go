package browse_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
)

// A client lists unused tags, and only one of 25,000 old tags is unused. For each page,
// Tags must read a bounded number of tags, and begin by asking for the last uses of a
// few tags. The next page must begin where the search for the page before ended.
func TestUnusedTagsIsBounded(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.Put(t, "app", catalogtest.Index(t), "t000000")
	// All but the last are in use.
	const tags = 25_000
	fill(t, s, tags, "now() - interval '100 days' - n * interval '1 second'")
	for _, order := range []browse.TagOrder{browse.TagsByName, browse.TagsByPush} {
		for _, descending := range []bool{false, true} {
			var asked int
			q := browse.TagQuery{Order: order, Descending: descending, Limit: 5}
			oldest := fmt.Sprintf("t%06d", tags-1)
			q.Unused = &browse.UnusedTags{Since: time.Now().Add(-90 * 24 * time.Hour),
				LastUses: func(_ context.Context, _ int64, names []string) (map[string]time.Time, error) {
					if asked += len(names); len(names) > 1000 {
						t.Errorf("asked for %d at once", len(names))
					}
					uses := map[string]time.Time{}
					for _, name := range names {
						if name != oldest {
							uses[name] = time.Now()
						}
					}
					return uses, nil
				}}
			var got []string
			pages := 0
			for {
				asked = 0
				page, err := s.Tags(t.Context(), "app", q)
				if err != nil {
					t.Fatal(err)
				}
				if pages++; asked > 11_000 {
					t.Errorf("%s: a page asks for %d tags", order, asked)
				}
				if got = append(got, tagNames(page.Tags)...); page.Next == nil {
					break
				}
				q.After = page.Next
			}
			if !slices.Equal(got, []string{oldest}) || pages != 3 {
				t.Errorf("%s, descending %v: %d pages with %q", order, descending, pages, got)
			}
		}
	}
	// If LastUses fails, Tags must return its error.
	failure := errors.New("no statistics")
	for _, order := range []browse.TagOrder{browse.TagsByPush, browse.TagsBySize} {
		q := browse.TagQuery{NameFilter: browse.NameFilter{Prefix: "t0249"}, Order: order, Limit: 1, Unused: &browse.UnusedTags{Since: time.Now().Add(-time.Hour),
			LastUses: func(context.Context, int64, []string) (map[string]time.Time, error) { return nil, failure }}}
		if _, err := s.Tags(t.Context(), "app", q); !errors.Is(err, failure) {
			t.Errorf("%s: %v", order, err)
		}
	}
}

// In the order of pushes, a list of unused tags must skip all tags pushed since
// UnusedTags.Since without reading them: one page finds the ten old tags among 15,000.
func TestUnusedTagsPassesOverYoungOnes(t *testing.T) {
	t.Parallel()
	s := setup(t)
	s.Put(t, "app", catalogtest.Index(t), "t000000")
	fill(t, s, 15_000, "CASE WHEN n > 10 THEN now() ELSE now() - interval '100 days' END")
	for _, descending := range []bool{false, true} {
		q := browse.TagQuery{Order: browse.TagsByPush, Descending: descending, Limit: 20}
		q.Unused = &browse.UnusedTags{Since: time.Now().Add(-90 * 24 * time.Hour),
			LastUses: func(context.Context, int64, []string) (map[string]time.Time, error) { return nil, nil }}
		if page, err := s.Tags(t.Context(), "app", q); err != nil || len(page.Tags) != 10 || page.Next != nil {
			t.Errorf("descending %v: %d tags, next %v, %v", descending, len(page.Tags), page.Next, err)
		}
	}
}

// fill requires that the database has one tag. It adds tags to the tag's repository until the
// repository has n tags. `pushed` is an SQL expression for the time at which an added tag was
// pushed; in this expression, "n" is the added tag's number, counted from 1.
func fill(t *testing.T, s bundle, n int, pushed string) {
	t.Helper()
	_, err := s.DB.Pool.Exec(t.Context(), `
		INSERT INTO tags (top_level_namespace_id, repository_id, name, manifest_id, created_at)
		SELECT top_level_namespace_id, repository_id, 't' || lpad(n::text, 6, '0'), manifest_id, `+pushed+`
		FROM tags, generate_series(1, $1::int - 1) n`, n)
	if err != nil {
		t.Fatal(err)
	}
}
