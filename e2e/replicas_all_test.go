//go:build all

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
)

// seenWithin is how long after a change on one replica the other replicas may still answer
// with the former state.
const seenWithin = time.Second

// The test changes a tag on one replica. It fails if the other replica answers with the old
// manifest to a request that began more than a second after the change was acknowledged.
func TestReplicasSeeMovedTag(t *testing.T) {
	beginOwn(t)
	a, b := startReplicas(t, storages["filesystem"])
	ctx := t.Context()
	for round := range 10 {
		if round > 0 {
			warm(t, b, "replicas/app", "latest")
		}
		want, err := a.API().pushImage(ctx, "replicas/app", "latest", randomBytes(1<<10))
		if err != nil {
			t.Fatal(err)
		}
		acknowledged := time.Now()
		for {
			asked := time.Since(acknowledged)
			_, got, err := b.API().manifest(ctx, "replicas/app", "latest")
			if err == nil && got == want {
				break
			}
			if asked > seenWithin {
				t.Fatalf("round %d: %v after the tag was moved the other replica has %s (%v), want %s", round, asked, got, err, want)
			}
		}
		a, b = b, a
	}
}

// warm asks a replica for a tag so often that the replica caches the answer.
func warm(t *testing.T, r *registry, repo, tag string) {
	t.Helper()
	for range 5 {
		if _, _, err := r.API().manifest(t.Context(), repo, tag); err != nil {
			t.Fatalf("reading %s:%s to have it cached: %v", repo, tag, err)
		}
	}
}

func TestReplicasSeeDeletion(t *testing.T) {
	beginOwn(t)
	a, b := startReplicas(t, storages["filesystem"])
	ctx := t.Context()
	deletions := map[string]func(d digest.Digest) string{
		"tag":      func(digest.Digest) string { return "/v2/replicas/app/manifests/latest" },
		"manifest": func(d digest.Digest) string { return "/v2/replicas/app/manifests/" + d.String() },
	}
	for name, path := range deletions {
		d, err := a.API().pushImage(ctx, "replicas/app", "latest", randomBytes(1<<10))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, func() error { _, _, err := b.API().manifest(ctx, "replicas/app", "latest"); return err })
		warm(t, b, "replicas/app", "latest")
		if _, err := a.API().do(ctx, request{method: "DELETE", path: path(d), want: http.StatusAccepted}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.API().manifest(ctx, "replicas/app", "latest"); !isStatus(err, 404) {
			t.Errorf("%s deleted: the same process answers %v, want 404", name, err)
		}
		acknowledged := time.Now()
		for {
			asked := time.Since(acknowledged)
			_, _, err := b.API().manifest(ctx, "replicas/app", "latest")
			if isStatus(err, 404) {
				break
			}
			if asked > seenWithin {
				t.Fatalf("%s deleted: %v later the other replica answers %v, want 404", name, asked, err)
			}
		}
	}
}

func TestConcurrentPushesOfTheSame(t *testing.T) {
	eachStorage(t, func(t *testing.T, a, b *registry) {
		ctx := t.Context()
		for round := range 3 {
			layers := [][]byte{randomBytes(100 << 10), randomBytes(1 << 10), bytes.Repeat([]byte{byte(round)}, 50<<10)}
			var wg sync.WaitGroup
			for worker := range 8 {
				api := []*registry{a, b}[worker%2].API()
				wg.Go(func() {
					// Each worker pushes the same layers three times: to a repository that all
					// workers share, and to one that two or three workers share, each under
					// the tag latest; and once more to the first repository, under a tag of
					// the worker's own.
					for _, repo := range []string{"same/app", fmt.Sprintf("same/app%d", worker%3)} {
						if _, err := api.pushImage(ctx, repo, "latest", layers...); err != nil {
							t.Errorf("worker %d, %s: %v", worker, repo, err)
						}
					}
					if _, err := api.pushImage(ctx, "same/app", fmt.Sprintf("own%d", worker), layers...); err != nil {
						t.Errorf("worker %d: %v", worker, err)
					}
				})
			}
			wg.Wait()
			for _, r := range []*registry{a, b} {
				for worker := range 8 {
					if _, err := r.API().pullWhole(ctx, "same/app", fmt.Sprintf("own%d", worker)); err != nil {
						t.Errorf("pulling what worker %d pushed: %v", worker, err)
					}
				}
			}
		}
	})
}
