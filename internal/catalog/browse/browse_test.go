package browse_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/catalogtest"
	"github.com/purser-registry/purser/internal/oci"
)

// shelf is a registry whose tags have known times and sizes, with a model: a copy of the tags
// in memory, from which the test computes the lists that it expects.
type shelf struct {
	bundle
	model map[string]map[string]shelfTag // by repository and tag
}

type shelfTag struct {
	name         string
	pushed, size int64 // microseconds since 1970, bytes
}

// newShelf makes a shelf with random tags in the given repositories. Some tags begin with the
// name of another tag, some were pushed at the same time, and some have the same size.
func newShelf(t *testing.T, dsn string, r *rand.Rand, repositories ...string) *shelf {
	t.Helper()
	s := &shelf{replica(t, dsn), map[string]map[string]shelfTag{}}
	begin := time.Now().Add(-time.Hour).Truncate(time.Microsecond).UnixMicro()
	for _, path := range repositories {
		config := s.Push(t, path, "config")
		s.model[path] = map[string]shelfTag{}
		for i := range 30 + r.IntN(20) {
			payload := catalogtest.Image(t, config, nil, map[string]any{"annotations": map[string]string{"n": strings.Repeat("x", r.IntN(4)) + path}})
			tag := fmt.Sprintf("%s%d", []string{"v", "v1.", "nightly-", "V", "_"}[r.IntN(5)], r.IntN(40))
			s.Put(t, path, payload, tag)
			pushed := begin + int64(i/3)*1_000_001
			_, err := s.DB.Pool.Exec(t.Context(), `
				UPDATE tags t SET created_at = $3, updated_at = CASE WHEN $4 THEN $3::timestamptz END
				FROM repositories r WHERE r.path = $1 AND t.repository_id = r.id AND t.name = $2`,
				path, tag, time.UnixMicro(pushed), r.IntN(2) == 0)
			if err != nil {
				t.Fatal(err)
			}
			s.model[path][tag] = shelfTag{tag, pushed, int64(len(payload) + len("config"))}
		}
	}
	return s
}

// want returns the names of the tags that Tags must list for q, in q's order.
func (s *shelf) want(path string, q browse.TagQuery) (names []string) {
	var list []shelfTag
	for _, tag := range s.model[path] {
		if q.Unused != nil && (tag.pushed >= q.Unused.Since.UnixMicro() || useOf(tag.name).Compare(q.Unused.Since) >= 0) {
			continue
		}
		if strings.HasPrefix(tag.name, q.Prefix) && strings.Contains(tag.name, q.Contains) && (q.Exact == "" || q.Exact == tag.name) {
			list = append(list, tag)
		}
	}
	slices.SortFunc(list, func(a, b shelfTag) int {
		var d int
		switch q.Order {
		case browse.TagsByPush:
			d = cmp.Compare(a.pushed, b.pushed)
		case browse.TagsBySize:
			d = cmp.Compare(a.size, b.size)
		case browse.TagsByRank:
			d = cmp.Compare(rankOf(a.name), rankOf(b.name))
		}
		if d = cmp.Or(d, strings.Compare(a.name, b.name)); q.Descending {
			d = -d
		}
		return d
	})
	for _, tag := range list {
		names = append(names, tag.name)
	}
	return names
}

// rankOf returns the rank of a tag, which is above 0 for about half of the tags.
func rankOf(name string) int64 { return int64(len(name)+int(name[len(name)-1])) % 5 / 2 }

func rankAll(_ context.Context, _ int64, names []string) (map[string]int64, error) {
	ranks := map[string]int64{}
	for _, name := range names {
		if n := rankOf(name); n > 0 {
			ranks[name] = n
		}
	}
	return ranks, nil
}

// useOf returns when a tag was last used. It returns the zero time for the tags that were
// never used, about half of all tags.
func useOf(name string) time.Time {
	if n := rankOf(name); n > 0 {
		return time.Now().Add(-time.Duration(n-1) * 100 * 24 * time.Hour)
	}
	return time.Time{}
}

func useAll(_ context.Context, _ int64, names []string) (map[string]time.Time, error) {
	uses := map[string]time.Time{}
	for _, name := range names {
		if at := useOf(name); !at.IsZero() {
			uses[name] = at
		}
	}
	return uses, nil
}

// TestBrowseTags compares pages with a model.
func TestBrowseTags(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		s := newShelf(t, dsn, r, "acme/app", "acme/app/web")
		for range 150 {
			path := []string{"acme/app", "acme/app/web"}[r.IntN(2)]
			q := browse.TagQuery{
				Order:      []browse.TagOrder{browse.TagsByName, browse.TagsByPush, browse.TagsBySize, browse.TagsByRank}[r.IntN(4)],
				Descending: r.IntN(2) == 0, Limit: 1 + r.IntN(20), Rank: rankAll,
			}
			q.Prefix = []string{"", "", "v", "v1.", "zzz"}[r.IntN(5)]
			q.Contains = []string{"", "", "1", ".2", "t"}[r.IntN(5)]
			if r.IntN(10) == 0 {
				q.Exact = s.want(path, browse.TagQuery{})[0]
			}
			if r.IntN(3) == 0 { // exactly when some tag was pushed
				some := slices.Collect(maps.Values(s.model[path]))
				q.Unused = &browse.UnusedTags{Since: time.UnixMicro(some[r.IntN(len(some))].pushed), LastUses: useAll}
			}
			want, first := s.want(path, q), q
			if got := s.pages(t, path, q); !slices.Equal(got, want) {
				t.Fatalf("%s %+v:\n%q\nwant\n%q", path, first, got, want)
			}
			if q.Unused != nil {
				continue
			}
			// A page that skips a number of tags.
			q.Skip = r.IntN(50)
			page, err := s.Tags(t.Context(), path, q)
			if err != nil {
				t.Fatal(err)
			}
			want = want[min(q.Skip, len(want)):]
			want = want[:min(q.Limit, len(want))]
			if got := tagNames(page.Tags); !slices.Equal(got, want) {
				t.Fatalf("%s %+v:\n%q\nwant\n%q", path, q, got, want)
			}
		}
	})
}

// pages reads all pages of the list that q describes, checks the tags' details, and returns
// the tags' names.
func (s *shelf) pages(t *testing.T, path string, q browse.TagQuery) (names []string) {
	t.Helper()
	for range 1000 {
		page, err := s.Tags(t.Context(), path, q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Tags) > q.Limit {
			t.Fatalf("%+v: a page of %d", q, len(page.Tags))
		}
		for _, tag := range page.Tags {
			if m := s.model[path][tag.Name]; tag.PushedAt.UnixMicro() != m.pushed || tag.Size != m.size {
				t.Fatalf("tag %s: pushed %v, size %d, want %+v", tag.Name, tag.PushedAt, tag.Size, m)
			}
		}
		names = append(names, tagNames(page.Tags)...)
		if page.Next == nil {
			return names
		}
		q.After = page.Next
	}
	t.Fatalf("%+v: pages without end", q)
	return nil
}

func tagNames(tags []browse.TagInfo) (names []string) {
	for _, tag := range tags {
		names = append(names, tag.Name)
	}
	return names
}

// TestBrowseTagsWhileTheyChange lists tags page by page, and creates and deletes tags between
// the pages. Each tag that stays unchanged must be listed once.
func TestBrowseTagsWhileTheyChange(t *testing.T) {
	t.Parallel()
	for _, order := range []browse.TagOrder{browse.TagsByName, browse.TagsByPush, browse.TagsBySize} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := setup(t)
			config := s.Push(t, "app", "config")
			payload := catalogtest.Image(t, config, nil, nil)
			tags := []string{}
			for i := range 20 {
				tags = append(tags, fmt.Sprintf("t%02d", i))
			}
			d := s.Put(t, "app", payload, tags...)
			q, seen := browse.TagQuery{Order: order, Limit: 3}, map[string]int{}
			for turn := 0; ; turn++ {
				page, err := s.Tags(t.Context(), "app", q)
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range tagNames(page.Tags) {
					seen[name]++
				}
				if page.Next == nil {
					break
				}
				q.After = page.Next
				// Before the next page, delete the last tag of this page, and add another tag.
				if err := s.DeleteTag(t.Context(), "app", page.Tags[len(page.Tags)-1].Name); err != nil {
					t.Fatal(err)
				}
				if err := s.RestoreTag(t.Context(), "app", fmt.Sprintf("a%02d", turn), d); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range tags {
				if seen[name] != 1 {
					t.Errorf("tag %s was listed %d times", name, seen[name])
				}
			}
		})
	}
}

func TestBrowseTagsOfIndex(t *testing.T) {
	t.Parallel()
	s := setup(t)
	config := s.Push(t, "app", "config")
	one := catalogtest.Image(t, config, nil, nil)
	two := catalogtest.Image(t, config, []oci.Digest{config}, nil)
	a, b := s.Put(t, "app", one), s.Put(t, "app", two)
	list := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[`+
		`{"mediaType":%[2]q,"digest":%[3]q,"size":1,"platform":{"os":"linux","architecture":"arm64","variant":"v8"}},`+
		`{"mediaType":%[2]q,"digest":%[4]q,"size":1,"platform":{"os":"linux","architecture":"amd64"}},`+
		`{"mediaType":%[2]q,"digest":%[4]q,"size":1,"platform":{"os":"unknown","architecture":"unknown"}}]}`,
		oci.MediaTypeImageIndex, oci.MediaTypeImageManifest, a, b)
	d := s.Put(t, "app", []byte(list), "latest")
	page, err := s.Tags(t.Context(), "app", browse.TagQuery{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	size := int64(len(list) + len(one) + len(two) + 2*len("config"))
	if len(page.Tags) != 1 {
		t.Fatalf("%+v", page)
	}
	if got := page.Tags[0]; !got.IsIndex || got.Digest != d || got.Size != size ||
		!slices.Equal(got.Platforms, []string{"linux/arm64/v8", "linux/amd64"}) {
		t.Errorf("%+v, want a size of %d", got, size)
	}
	m, err := s.DescribeManifest(t.Context(), "app", a)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Indexes) != 1 || m.Indexes[0] != d || len(m.Tags) != 0 || string(m.Payload) != string(one) || m.Size != int64(len(one)+len("config")) {
		t.Errorf("%+v", m)
	}
	if m, err = s.DescribeManifest(t.Context(), "app", d); err != nil || m.Size != size || !slices.Equal(m.Tags, []string{"latest"}) {
		t.Errorf("%+v %v, want a size of %d", m, err, size)
	}
	_, err = s.DescribeManifest(t.Context(), "app", oci.Compute(oci.SHA256, []byte("x")))
	if oci.CodeOf(err) != oci.ManifestUnknown {
		t.Errorf("a manifest that isn't there: %v", err)
	}
	if _, err = s.DescribeManifest(t.Context(), "web", a); oci.CodeOf(err) != oci.NameUnknown {
		t.Errorf("a repository that isn't there: %v", err)
	}
	if _, err = s.Tags(t.Context(), "web", browse.TagQuery{Limit: 1}); oci.CodeOf(err) != oci.NameUnknown {
		t.Errorf("a repository that isn't there: %v", err)
	}
}

func TestBrowseRepositories(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		s := replica(t, dsn)
		var paths []string // in the order of their creation
		for _, ns := range []string{"a", "a-b", "a.b", "a0", "b"} {
			for _, rest := range []string{"", "/x", "/x/y", "/web", "/-"} {
				if path := ns + rest; oci.ValidateName(path) == nil {
					paths = append(paths, path)
				}
			}
		}
		r.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
		for _, path := range paths {
			if err := s.CreateRepository(t.Context(), path); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			q := browse.RepositoryQuery{
				Namespace: []string{"", "a", "a-b", "b"}[r.IntN(4)], ByCreation: r.IntN(2) == 0, Descending: r.IntN(2) == 0,
				Limit: 1 + r.IntN(8),
			}
			q.Prefix = []string{"", "a", "a/", "a/x", "b", "c"}[r.IntN(6)]
			q.Contains = []string{"", "x", "/", "web"}[r.IntN(4)]
			want := slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
				ns, _, _ := strings.Cut(path, "/")
				return q.Namespace != "" && ns != q.Namespace || !strings.HasPrefix(path, q.Prefix) || !strings.Contains(path, q.Contains)
			})
			if !q.ByCreation {
				slices.Sort(want)
			}
			if q.Descending {
				slices.Reverse(want)
			}
			got, first := []string{}, q
			for {
				list, next, err := s.Repositories(t.Context(), browse.Everyone, q)
				if err != nil {
					t.Fatal(err)
				}
				if len(list) > q.Limit {
					t.Fatalf("%+v: a page of %d", q, len(list))
				}
				for _, i := range list {
					got = append(got, i.Path)
				}
				if q.After = next; next == nil {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%+v:\n%q\nwant\n%q", first, got, want)
			}
		}
		if _, _, err := s.Repositories(t.Context(), browse.Everyone, browse.RepositoryQuery{Namespace: "none", Limit: 1}); oci.CodeOf(err) != oci.NameUnknown {
			t.Errorf("a namespace that isn't there: %v", err)
		}
	})
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	s := setup(t)
	for _, name := range []string{"web", "app", "apple", "zoo"} {
		if err := s.CreateNamespace(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CreateNamespace(t.Context(), "app"); err == nil || !strings.Contains(err.Error(), "namespace app exists already") {
		t.Errorf("a second one: %v", err)
	}
	for _, path := range []string{"app/a", "app/b", "web"} {
		if err := s.CreateRepository(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CreateRepository(t.Context(), "app/a"); err == nil || !strings.Contains(err.Error(), "repository app/a exists already") {
		t.Errorf("a second one: %v", err)
	}
	for _, tc := range []struct {
		f     browse.NameFilter
		after string
		n     int
		want  string
	}{
		{n: 10, want: "app=2 apple=0 web=1 zoo=0"},
		{n: 2, want: "app=2 apple=0 >apple"},
		{n: 2, after: "apple", want: "web=1 zoo=0"},
		{n: 10, f: browse.NameFilter{Prefix: "ap"}, want: "app=2 apple=0"},
		{n: 1, f: browse.NameFilter{Contains: "o"}, want: "zoo=0"},
		{n: 1, f: browse.NameFilter{Contains: "p"}, want: "app=2 >app"},
		{n: 1, f: browse.NameFilter{Contains: "p"}, after: "app", want: "apple=0"},
	} {
		list, next, err := s.Namespaces(t.Context(), browse.Everyone, tc.f, tc.after, tc.n)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range list {
			got = append(got, fmt.Sprintf("%s=%d", n.Name, n.Repositories.Rows))
		}
		if next != "" {
			got = append(got, ">"+next)
		}
		if text := strings.Join(got, " "); text != tc.want {
			t.Errorf("%+v: %s, want %s", tc, text, tc.want)
		}
	}
}

func TestSizes(t *testing.T) {
	catalogtest.AtBoth(t, func(t *testing.T, dsn string) {
		s := replica(t, dsn)
		for path, contents := range map[string][]string{
			"acme/app": {"shared by all", "shared in acme", "of app alone"},
			"acme/web": {"shared by all", "shared in acme", "of web alone!"},
			"else":     {"shared by all"},
		} {
			for _, content := range contents {
				s.Push(t, path, content)
			}
		}
		config := s.Push(t, "acme/app", "config")
		s.Put(t, "acme/app", catalogtest.Image(t, config, nil, nil), "v1", "v2")
		r, err := s.DescribeRepository(t.Context(), browse.Everyone, "acme/app", 0)
		if err != nil {
			t.Fatal(err)
		}
		want, own := browse.Size{Blobs: 4, Bytes: 13 + 14 + 12 + 6, OwnBytes: r.Size.OwnBytes, Exact: true}, int64(12+6)
		if r.Size != want || own != *r.Size.OwnBytes || r.Tags != 2 || r.Manifests != 1 || r.PushedAt == nil || r.Namespace != "acme" {
			t.Errorf("%+v, want %+v", r, want)
		}
		n, err := s.DescribeNamespace(t.Context(), browse.Everyone, "acme", 0)
		if err != nil {
			t.Fatal(err)
		}
		want, own = browse.Size{Blobs: 5, Bytes: 13 + 14 + 12 + 13 + 6, OwnBytes: n.Size.OwnBytes, Exact: true}, 14+12+13+6
		if n.Size != want || own != *n.Size.OwnBytes || n.Repositories != 2 {
			t.Errorf("%+v, want %+v", n, want)
		}
		if r, err = s.DescribeRepository(t.Context(), browse.Everyone, "else", 0); err != nil || *r.Size.OwnBytes != 0 || r.Size.Bytes != 13 || r.PushedAt != nil {
			t.Errorf("%+v %v", r, err)
		}
		if _, err := s.DescribeRepository(t.Context(), browse.Everyone, "none", 0); oci.CodeOf(err) != oci.NameUnknown {
			t.Errorf("a repository that isn't there: %v", err)
		}
		if _, err := s.DescribeNamespace(t.Context(), browse.Everyone, "none", 0); oci.CodeOf(err) != oci.NameUnknown {
			t.Errorf("a namespace that isn't there: %v", err)
		}
	})
}
