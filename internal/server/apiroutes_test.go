package server

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/purser-registry/purser/internal/blob"
	"github.com/purser-registry/purser/internal/catalog"
)

// TestAPIOperationWithoutAccess: an operation that was registered without an access is
// denied to everybody.
func TestAPIOperationWithoutAccess(t *testing.T) {
	t.Parallel()
	s, err := New(Options{
		Catalog: catalog.New(catalog.Options{CacheOff: true}), Store: struct{ blob.Store }{}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, *struct{}) (*struct{}, error) { return nil, nil }
	huma.Register(s.api.huma, huma.Operation{Method: "GET", Path: apiRoot + "/forgotten"}, nothing)
	add(s.api, AccessAny, huma.Operation{Method: "GET", Path: "/remembered"}, nothing)
	for path, want := range map[string]int{"/forgotten": 403, "/remembered": 204} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", apiRoot+path, nil))
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}
