package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/purser-registry/purser/internal/testscale"
)

// splitRef cuts REPOSITORY:TAG.
func splitRef(name string) (repo, tag string) {
	i := strings.LastIndexByte(name, ':')
	return name[:i], name[i+1:]
}

// unanswered returns whether `err` means that a request got no answer, as when the server is
// killed.
func unanswered(err error) bool {
	var answer *statusError
	return !errors.As(err, &answer)
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	rounds := 1
	if testscale.All {
		rounds = 3
	}
	for name, storage := range storages {
		t.Run(name, func(t *testing.T) {
			beginOwn(t)
			r := startRegistry(t, options{env: storage(t)})
			var loads []*load
			for round := range rounds {
				l := startLoad(t, r.API(), 6, unanswered)
				l.Await(3+11*round, time.Minute)
				r.Kill9()
				r.Restart()
				l.Check(r.API())
				loads = append(loads, l)
				// A push after the restart must succeed, even to a repository to which the
				// last push before the kill was interrupted.
				if _, err := r.API().pushImage(t.Context(), "load/worker0", "after", randomBytes(1<<10)); err != nil {
					t.Fatalf("the push after the restart: %v", err)
				}
				if t.Failed() {
					return
				}
			}
			r.Stop()
			r.Restart()
			loads[len(loads)-1].CheckWhole(r.API())
		})
	}
}
