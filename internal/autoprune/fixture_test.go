package autoprune_test

import (
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/autoprune"
	"github.com/purser-registry/purser/internal/autoprune/autoprunetest"
	"github.com/purser-registry/purser/internal/autoprune/forecast"
	"github.com/purser-registry/purser/internal/autoprune/policies"
	"github.com/purser-registry/purser/internal/catalog"
	"github.com/purser-registry/purser/internal/db/dbtest"
	"github.com/purser-registry/purser/internal/oci"
	"github.com/purser-registry/purser/internal/testscale"
)

const day = 24 * time.Hour

func TestMain(m *testing.M) {
	testscale.Properties()
	dbtest.Main(m)
}

// registry is a test database with a pruner.
type registry struct {
	*autoprunetest.Registry
	pruner *autoprune.Pruner
}

func setup(t testing.TB, change ...func(*autoprune.Options)) *registry {
	t.Helper()
	r := &registry{Registry: autoprunetest.New(t)}
	r.Catalog, r.pruner = r.replica(change...)
	return r
}

// replica is another process on the same database.
func (r *registry) replica(change ...func(*autoprune.Options)) (*catalog.Catalog, *autoprune.Pruner) {
	r.T.Helper()
	c := r.NewCatalog()
	o := autoprune.Options{DB: r.DB, Catalog: c, Background: r.Background(), Interval: time.Millisecond, Log: quiet}
	for _, f := range change {
		f(&o)
	}
	p, err := autoprune.New(o)
	r.Must(err)
	return c, p
}

// forecasts makes forecasts of what the pruner deletes.
func (r *registry) forecasts() *forecast.Forecaster {
	return forecast.New(r.pruner.Repositories, r.pruner.Policies)
}

var quiet = autoprunetest.Quiet

// prefixOf takes the name that a test gives to a manifest. It returns the prefix of the
// manifest's digest that a tag's name may contain.
func prefixOf(name string) oci.DigestPrefix {
	d, _, _ := oci.CutDigest("sha256-" + autoprunetest.DigestOf(name).Hex())
	return d
}

// policy saves a policy.
func (r *registry) policy(t policies.Target, text string) string {
	r.T.Helper()
	return r.Policy(r.pruner.Policies, t, text)
}

// run makes the tasks of all namespaces due, and lets the worker prune until every
// namespace was pruned once.
func (r *registry) run() {
	r.T.Helper()
	r.Exec("UPDATE autoprunetaskstatus SET last_ran_ms = NULL")
	for range 1000 {
		_, err := r.pruner.Work(r.T.Context())
		r.Must(err)
		if autoprunetest.Value[int](r.Registry, "SELECT count(*) FROM autoprunetaskstatus WHERE last_ran_ms IS NULL OR run IS NOT NULL") == 0 {
			return
		}
	}
	r.T.Fatal("there is always more to do")
}

// ensure lets the worker create tasks for the namespaces to which policies apply and that have none.
func (r *registry) ensure() {
	r.T.Helper()
	_, err := r.pruner.Work(r.T.Context())
	r.Must(err)
}
