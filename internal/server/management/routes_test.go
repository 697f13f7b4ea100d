package management

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/auth"
	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/server"
)

// TestAPIOperationWithoutAccess: an operation is registered with huma directly instead of with
// add, and so has no access. The API must answer every request to this operation with 403.
func TestAPIOperationWithoutAccess(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	s, err := server.New(server.Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{
		Server: s, Catalog: catalog.New(catalog.Options{CacheOff: true}), Store: struct{ blob.Store }{}, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Mount(a.Mount())
	for _, o := range []Options{
		{}, {Catalog: a.catalog, Store: a.store}, {Server: s, Store: a.store}, {Server: s, Catalog: a.catalog},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
	nothing := func(context.Context, *struct{}) (*struct{}, error) { return nil, nil }
	huma.Register(a.huma, huma.Operation{Method: "GET", Path: apiRoot + "/forgotten"}, nothing)
	add(a, auth.Anyone, huma.Operation{Method: "GET", Path: "/remembered"}, nothing)
	for path, want := range map[string]int{"/forgotten": 403, "/remembered": 204} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", apiRoot+path, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}
