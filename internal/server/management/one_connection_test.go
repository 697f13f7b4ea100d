package management_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/builtinpg/pgtest"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/server/servertest"
)

// TestOneConnection: only one connection of the pool is free. Each operation is answered nevertheless,
// since it takes no second connection while it has one. If it did, as many requests at once as there are
// connections would wait for each other, and all others with them.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	r := replica(t, dsn, pgtest.TempDir(t), func(o *servertest.Options) {
		everything(t)(o, o.Catalog.DB())
		o.Management.Checks = dbtest.Open(t, dsn)
	})
	r.Put(t, "acme/app", "v1", r.Simple(t, "acme/app", 1, nil))
	for _, at := range []string{"/organization/acme", "/repository/acme/app"} {
		r.Manage(t, "POST", at+"/autoprunepolicy/", `{"method":"creation_date","olderThan":"30d","maxDeleted":1}`)
	}
	var all described
	r.Manage(t, "GET", "/openapi.json", "").Into(t, 200, &all)
	r.LeaveOneConnection(t)
	answered := 0
	for _, method := range []string{"get", "put", "post", "patch", "delete"} { // what deletes comes last
		for _, path := range slices.Sorted(maps.Keys(all.Paths)) {
			op, known := all.Paths[path][method]
			if !known {
				continue
			}
			body := ""
			if s, ok := op.RequestBody.Content["application/json"]; ok {
				body = encode(t, validBody(all, s.Schema))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			a, err := r.Try(ctx, strings.ToUpper(method), fill(path, "", "", op.Parameters), strings.NewReader(body), "Content-Type", "application/json")
			cancel()
			switch {
			case err != nil:
				t.Errorf("%s %s isn't answered: %v", method, path, err)
			case a.StatusCode >= 500 && !strings.Contains(string(a.Content), "runs no loose foreign keys") && !strings.Contains(string(a.Content), "measured yet"):
				t.Errorf("%s %s: %d %s", method, path, a.StatusCode, a.Content)
			case a.StatusCode < 300:
				answered++
			}
		}
	}
	if answered < 80 {
		t.Errorf("only %d operations succeeded", answered)
	}
}
