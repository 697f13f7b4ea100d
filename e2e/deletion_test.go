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
