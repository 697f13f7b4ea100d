//go:build all

package e2e

import (
	"net/http"
	"testing"
)

// send sends a HEAD or GET (`method`) for a manifest. `agent` is the User-Agent of the
// request.
func (s *pullScene) send(method, agent, repo, reference string) {
	s.t.Helper()
	_, err := s.r.API().do(s.t.Context(), request{method: method, path: "/v2/" + repo + "/manifests/" + reference,
		want: http.StatusOK, header: map[string]string{"Accept": manifestTypes, "User-Agent": agent}})
	if err != nil {
		s.t.Fatal(err)
	}
}

// The test sends a HEAD of a tag and a GET by digest as Docker does, but also from two
// different clients, twice, and to two repositories. They must count as one pull of the tag
// only if they come from the same client and are for the same repository, and only once for
// each HEAD.
func TestPullsThatAreJoined(t *testing.T) {
	beginOwn(t)
	s := newPullScene(t, 1)
	img := newImage(t, 1, 1<<10)
	digest := digestOf(t, img)
	for _, repo := range []string{"asked", "agents", "one", "other"} {
		s.push(repo, "v1", img)
	}

	s.send("HEAD", "node", "asked", "v1")
	s.send("HEAD", "node", "asked", digest)
	s.expect("HEAD by tag and by digest", "asked", "v1", 0, map[string]int64{digest: 0})
	s.checked("asked", "v1")

	s.send("HEAD", "node", "agents", "v1")
	s.send("GET", "somebody", "agents", digest)
	s.expect("a GET by digest of another client", "agents", "v1", 0, map[string]int64{digest: 1})
	s.send("GET", "node", "agents", digest)
	s.send("GET", "node", "agents", digest)
	s.expect("two GET by digest after one HEAD", "agents", "v1", 1, map[string]int64{digest: 3})

	s.send("HEAD", "node", "one", "v1")
	s.send("GET", "node", "other", digest)
	s.expect("a GET by digest from another repository", "one", "v1", 0, map[string]int64{digest: 0})
	s.expect("a GET by digest from another repository", "other", "v1", 0, map[string]int64{digest: 1})
}

// Several nodes that Purser can't tell apart, since they have the same address and User-Agent,
// pull at the same time: all their HEADs come before all their GETs. The test expects that
// each node's pull counts once.
func TestPullsOfACrowd(t *testing.T) {
	beginOwn(t)
	s := newPullScene(t, 1)
	img := newImage(t, 1, 1<<10)
	digest := digestOf(t, img)
	s.push("crowd", "v1", img)
	s.push("tags", "v1", img)
	s.push("tags", "v2", img)

	const nodes = 5
	for range nodes {
		s.send("HEAD", "node", "crowd", "v1")
	}
	for range nodes {
		s.send("GET", "node", "crowd", digest)
	}
	s.expect("pulls of many nodes", "crowd", "v1", nodes, map[string]int64{digest: nodes})

	s.send("HEAD", "node", "tags", "v1")
	s.send("HEAD", "node", "tags", "v2")
	s.send("GET", "node", "tags", digest)
	s.send("GET", "node", "tags", digest)
	s.expect("pulls of two tags of one manifest", "tags", "v1", 1, map[string]int64{digest: 2})
	s.expect("pulls of two tags of one manifest", "tags", "v2", 1, nil)
}
