package browse

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/purser-registry/purser/internal/db"
	"github.com/purser-registry/purser/internal/oci"
)

// A search of a viewer who may read everything goes by indexes over all repositories. Any other
// search looks only into the repositories that its viewer may read, one after the other. So what it
// finds, in which order, how long it takes, and whether it says that there may be more, doesn't
// depend on what is hidden from the viewer.

const (
	// maxSearched is how many repositories a viewer who may not read all searches at most.
	maxSearched = 10_000
	// maxPaths and maxTagNames are how many names of repositories and of tags are compared for a text
	// that may be anywhere in a name.
	maxPaths    = 100_000
	maxTagNames = 50_000
	// maxCandidates is how many rows of an index a search reads, of which some may be in the trash.
	maxCandidates = 2_000
)

// Found has what a search has found. Each list has at most as many items as were asked for, the
// names that are exactly as was typed first.
type Found struct {
	Namespaces   []string
	Repositories []string
	Tags         []TagFound
	Manifests    []ManifestFound
	// More says of which there may be more than the lists have.
	More struct{ Namespaces, Repositories, Tags, Manifests bool }
}

// TagFound is a tag that a search has found.
type TagFound struct {
	Repository string
	Name       string
	Digest     oci.Digest
	PushedAt   time.Time
}

// ManifestFound is a manifest that a search for a digest has found.
type ManifestFound struct {
	Repository              string
	Digest                  oci.Digest
	MediaType, ArtifactType string
	Tags                    []string // some that point to it
	// Blob is the digest that was found, of the manifest's configuration or of one of its layers. The
	// zero value: it was the manifest's own.
	Blob oci.Digest
}

// searched is a repository in which a search looks.
type searched struct {
	id   int64
	path string
}

// Find searches all that the viewer may read for what is wanted. Each list of the result has at most
// n items. Tags are found by the beginning of their names; by another part too, as far as
// maxTagNames names go.
func (b *Browser) Find(ctx context.Context, v Viewer, w Wanted, n int) (f Found, err error) {
	s := search{Browser: b, viewer: v, wanted: w, n: n, found: &f}
	if !v.Unlimited() {
		if err := s.listReadable(ctx); err != nil {
			return f, fmt.Errorf("searching: %w", err)
		}
	}
	for _, step := range []func(context.Context) error{s.namespaces, s.repositories, s.tags, s.manifests} {
		if err := step(ctx); err != nil {
			return f, fmt.Errorf("searching: %w", err)
		}
	}
	return f, nil
}

// search is one search while it runs.
type search struct {
	*Browser
	viewer Viewer
	wanted Wanted
	n      int
	found  *Found

	readable []searched // of a viewer who may not read all
	cut      bool       // there are more than were searched
	within   []searched // those in which the wanted tag or digest may be, if wanted.Repository is given
}

func (s *search) listReadable(ctx context.Context) error {
	list, err := s.readableByName(ctx, s.viewer, RepositoryQuery{}, 0, maxSearched+1)
	if err != nil {
		return err
	}
	if s.cut = len(list) > maxSearched; s.cut {
		list = list[:maxSearched]
	}
	for _, r := range list {
		s.readable = append(s.readable, searched{r.ID, r.Path})
	}
	return nil
}

// everywhere says whether the search goes by the indexes over all repositories.
func (s *search) everywhere() bool { return s.viewer.Unlimited() && s.wanted.Repository == "" }

// places returns the ids of the repositories in which tags and manifests are searched for, one by one.
func (s *search) places() []int64 {
	list := s.readable
	if s.wanted.Repository != "" {
		list = s.within
	}
	ids := make([]int64, len(list))
	for i, r := range list {
		ids[i] = r.id
	}
	return ids
}

// closeness orders names by how well they match a text: the text itself, its last part, a beginning,
// the beginning of a part, anything else.
func closeness(name, text string) int {
	switch {
	case name == text:
		return 0
	case strings.HasSuffix(name, "/"+text):
		return 1
	case strings.HasPrefix(name, text):
		return 2
	case strings.Contains(name, "/"+text):
		return 3
	}
	return 4
}

// namespaces finds namespaces. maxScan names are compared.
func (s *search) namespaces(ctx context.Context) error {
	text := strings.ToLower(s.wanted.Name)
	if text == "" || strings.Contains(text, "/") {
		return nil
	}
	list := s.readableNamespaces
	if s.viewer.Unlimited() {
		list = s.allNamespaces
	}
	names, err := list(ctx, s.viewer, NameFilter{}, "", maxScan+1)
	if err != nil {
		return err
	}
	cut := len(names) > maxScan
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, text) })
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(closeness(a, text), closeness(b, text)), strings.Compare(a, b))
	})
	s.found.Namespaces, s.found.More.Namespaces = names[:min(s.n, len(names))], cut || len(names) > s.n
	return nil
}

// repositories finds repositories, and those within which a tag or a digest is wanted.
func (s *search) repositories(ctx context.Context) error {
	text := strings.ToLower(cmp.Or(s.wanted.Name, s.wanted.Repository))
	if text == "" {
		return nil
	}
	var list []searched
	cut := s.cut
	if s.viewer.Unlimited() {
		var err error
		if list, cut, err = s.allRepositories(ctx, text); err != nil {
			return err
		}
	} else {
		for _, r := range s.readable {
			if strings.Contains(r.path, text) {
				list = append(list, r)
			}
		}
	}
	slices.SortFunc(list, func(a, b searched) int {
		return cmp.Or(cmp.Compare(closeness(a.path, text), closeness(b.path, text)), strings.Compare(a.path, b.path))
	})
	if s.within = list; len(list) > 0 && list[0].path == text {
		s.within = list[:1] // what was pasted names its repository
	} else if s.wanted.Repository != "" {
		s.cut = cut
	}
	for _, r := range list[:min(s.n, len(list))] {
		s.found.Repositories = append(s.found.Repositories, r.path)
	}
	s.found.More.Repositories = cut || len(list) > s.n
	return nil
}

// allRepositories returns the repositories whose names contain the text, among the first maxPaths,
// and whether there may be more. It looks for the exact name first. OFFSET 0 in its SQL makes
// PostgreSQL look rows up by an index: see "Plans" in package db.
func (s *search) allRepositories(ctx context.Context, text string) (list []searched, cut bool, err error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT COALESCE(r.id, 0), COALESCE(r.path, ''), f.nth FROM (
			(SELECT path, 0 AS nth FROM repositories WHERE path = @text AND deleted_at IS NULL)
			UNION ALL
			(SELECT path, nth FROM (
				SELECT path, row_number() OVER () AS nth FROM (
					SELECT path FROM repositories WHERE deleted_at IS NULL ORDER BY path LIMIT @most + 1) names) numbered
			WHERE position(@text IN path) > 0 AND path <> @text OR nth > @most LIMIT @found)) f
		LEFT JOIN LATERAL (SELECT id, path FROM live_repositories WHERE path = f.path OFFSET 0) r ON true`,
		db.SharedArgs{"text": text, "most": maxPaths, "found": maxCandidates})
	if err != nil {
		return nil, false, err
	}
	var r searched
	n, nth := 0, 0
	_, err = pgx.ForEachRow(rows, []any{&r.id, &r.path, &nth}, func() error {
		n++
		if nth > maxPaths {
			cut = true
		}
		if r.id != 0 && strings.Contains(r.path, text) {
			list = append(list, r)
		}
		return nil
	})
	return list, cut || n >= maxCandidates, err
}

// digestOf reads a digest from the database.
func digestOf(raw []byte) (d oci.Digest, err error) {
	if len(raw) == 0 {
		return d, nil
	}
	return oci.DigestFromBytes(raw)
}
