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
	"github.com/purser-registry/purser/internal/catalog/browse"
	"github.com/purser-registry/purser/internal/catalog/trash"
	"github.com/purser-registry/purser/internal/protection"
	"github.com/purser-registry/purser/internal/quota"
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
	c := catalog.New(catalog.Options{CacheOff: true})
	whole := Options{
		Server: s, Catalog: c, Browser: browse.New(c), Quotas: quota.New(quota.Options{}), Trash: trash.New(trash.Options{Catalog: c}),
		Protection: protection.New(protection.Options{}), Store: struct{ blob.Store }{}, Log: quiet,
	}
	a, err := New(whole)
	if err != nil {
		t.Fatal(err)
	}
	s.Mount(a.Mount())
	for _, without := range []func(o *Options){
		func(o *Options) { o.Server = nil }, func(o *Options) { o.Catalog = nil }, func(o *Options) { o.Browser = nil },
		func(o *Options) { o.Quotas = nil }, func(o *Options) { o.Trash = nil }, func(o *Options) { o.Protection = nil },
		func(o *Options) { o.Store = nil },
	} {
		o := whole
		without(&o)
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
