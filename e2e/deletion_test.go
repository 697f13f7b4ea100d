package e2e

import (
	"net/http"
	"testing"

	"github.com/purser-registry/purser/internal/db/dbtest"
)

func TestRepositoryDeleted(t *testing.T) {
	beginOwn(t)
	e, shared := newEstate(t, dbtest.EmptyDSN(t)), newImage(t, 2, 4<<10)
	app, web, other := e.fill("acme/app", shared), e.fill("acme/web", shared), e.fill("other/app", shared)
	e.there(e.r.API(), app)
	e.r.manage("DELETE", "/repository/acme/app", nil, nil, http.StatusNoContent)
	e.gone(app, "acme/web")
	e.whole(web, other)
	again := e.again(app)
	e.atRest(again, web, other)
}

// settle pushes an image to each of the repositories. Some of them may exist, with images that
// were pushed before. It returns all content that each repository has afterwards.
func (e *estate) settle(repos []string) (list []property) {
	e.t.Helper()
	for _, repo := range repos {
		p := property{repo: repo, tags: map[string]string{}}
		if _, err := e.r.API().pushImage(e.t.Context(), repo, "last", randomBytes(1<<10)); err != nil {
			e.t.Fatalf("pushing when all is quiet again: %v", err)
		}
		tags, err := e.r.API().listTags(e.t.Context(), repo)
		if err != nil {
			e.t.Fatal(err)
		}
		for _, tag := range tags {
			_, d, err := e.r.API().manifest(e.t.Context(), repo, tag)
			if err != nil {
				e.t.Fatalf("%s:%s is listed: %v", repo, tag, err)
			}
			p.tags[tag] = d.String()
		}
		p.blobs = e.blobs(repo, tags...)
		list = append(list, p)
	}
	return list
}
